# title: What each recipe needs, and how fast it is
# help: Needed memory and throughput of every recipe at one batch
# select: recipes
unset key
# One device, so all of them are predicted (hollow) or none.
if (predicted) { set style fill empty border } else { set style fill solid 0.9 border linecolor rgb "#404040" }
# The baseline, recipes, other engines.
array fills[3] = [0x7a7a7a, 0x0072b2, 0xd55e00]
set yrange [rows - 0.4:-0.6]
set border 1
set ytics scale 0 textcolor rgb "#101010"
unset grid
set grid xtics linetype 1 linecolor rgb "#e2e2e2" linewidth 1 dashtype 1
set multiplot
set lmargin at screen 0.30
set rmargin at screen (timed ? 0.62 : 0.97)
set bmargin at screen 65.0 / height
set xlabel (peers > 0 ? "memory of the step (GiB)" : "needed memory (GiB)")
set xrange [0:memory_max]
# A row without a value says why (columns 8 to 14 hold what is drawn: 0 and a word there).
plot dat using (0):1:(0):8:($1 - 0.34):($1 + 0.34):(fills[$15]):ytic(2) with boxxyerror linecolor rgb variable, \
     dat using 8:1:9 with labels left offset 0.6,0 textcolor rgb "#303030"
unset label 99
unset label 98
set lmargin at screen 0.66
set rmargin at screen 0.97
unset ytics
set xlabel "samples a second"
set xrange [0:speed_max]
if (timed) {
  plot dat using (0):1:(0):10:($1 - 0.34):($1 + 0.34):(fills[$15]) with boxxyerror linecolor rgb variable, \
       dat using 10:1:11:12 with xerrorbars linecolor rgb "#101010" linewidth 1 pointtype 0, \
       dat using 13:1:14 with labels left offset 0.6,0 textcolor rgb "#303030"
}
unset multiplot
