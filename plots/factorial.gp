# title: Three measures, alone and together
# help: Reserved memory and throughput with and without groups, dynamic batch and defragmentation, all eight cells
# select: factorial
array fills[4] = [0x0072b2, 0x56b4e9, 0xd55e00, 0xe69f00]
if (predicted) { set style fill empty border } else { set style fill solid 0.9 noborder }
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
plot for [s = 1:sets] -1 with boxes title set_names[s] linecolor rgb fills[s]
unset key
unset label 99
unset label 98
set border 1
set xtics nomirror out textcolor rgb "#303030"
set grid xtics linetype 1 linecolor rgb "#e2e2e2" linewidth 1 dashtype 1
set ytics scale 0 textcolor rgb "#101010"
set for [r = 1:rows] ytics add (row_names[r] r - 1)
set yrange [rows - 0.4:-0.6]
set lmargin at screen 0.29
set rmargin at screen (timed ? 0.61 : 0.97)
set xlabel "reserved memory (GiB)"
set xrange [0:memory_max]
plot for [s = 1:sets] dat index s - 1 using (0):1:(0):3:1:2 with boxxyerror linecolor rgb fills[s], \
     for [s = 1:sets] dat index s - 1 using 3:(($1 + $2) / 2):7 with labels left offset 0.6,0 textcolor rgb "#303030"
set lmargin at screen 0.65
set rmargin at screen 0.97
unset ytics
set xlabel "samples a second"
set xrange [0:speed_max]
if (timed) {
  plot for [s = 1:sets] dat index s - 1 using (0):1:(0):4:1:2 with boxxyerror linecolor rgb fills[s], \
       for [s = 1:sets] dat index s - 1 using 4:(($1 + $2) / 2):5:6 with xerrorbars linecolor rgb "#101010" linewidth 1 pointtype 0, \
       for [s = 1:sets] dat index s - 1 using 6:(($1 + $2) / 2):8 with labels left offset 0.6,0 textcolor rgb "#303030"
}
unset multiplot
