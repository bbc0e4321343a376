# title: What each measure does, and how they depend on each other
# help: Effects and interactions of groups, dynamic batch and defragmentation on memory and time, with intervals
# select: effects
array fills[4] = [0x0072b2, 0x56b4e9, 0xd55e00, 0xe69f00]
array shapes[4] = [7, 9, 5, 13]
shape(s) = shapes[s] - (predicted ? 1 : 0)
set multiplot
# The key alone, over the whole width: what is drawn here lies outside.
set lmargin at screen 0.02
set rmargin at screen 0.98
set bmargin at screen 65.0 / height
set border 0
unset xtics
unset ytics
unset grid
set xrange [0:1]
set yrange [1:2]
plot for [s = 1:sets] -1 with points title set_names[s] linecolor rgb fills[s] pointtype shape(s) pointsize 1.2
unset key
unset label 99
unset label 98
set border 1
set xtics nomirror out textcolor rgb "#303030"
set grid xtics linetype 1 linecolor rgb "#e2e2e2" linewidth 1 dashtype 1
set ytics scale 0 textcolor rgb "#101010"
set for [r = 1:rows] ytics add (row_names[r] r - 1)
set yrange [rows - 0.4:-0.6]
set lmargin at screen 0.31
set rmargin at screen (timed ? 0.63 : 0.97)
set arrow 1 from 0, graph 0 to 0, graph 1 nohead linecolor rgb "#707070" linewidth 1 back
set xlabel "on reserved memory (%)"
set xrange [memory_low:memory_high]
plot for [s = 1:sets] dat index s - 1 using 2:1:3:4 with xerrorbars linecolor rgb fills[s] linewidth 2 pointtype shape(s) pointsize 1.2
set lmargin at screen 0.66
set rmargin at screen 0.97
unset ytics
set xlabel "on the time of a pass (%)"
set xrange [time_low:time_high]
if (timed) {
  plot for [s = 1:sets] dat index s - 1 using 5:1:6:7 with xerrorbars linecolor rgb fills[s] linewidth 2 pointtype shape(s) pointsize 1.2
}
unset multiplot
