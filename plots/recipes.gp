# title: What each recipe needs, and how fast it is
# help: Needed memory and throughput of every recipe at one batch
# select: recipes
unset key
set style fill solid 0.9 border linecolor rgb "#404040"
set yrange [rows - 0.4:-0.6]
set border 1
set ytics scale 0 textcolor rgb "#101010"
unset grid
set grid xtics linetype 1 linecolor rgb "#e2e2e2" linewidth 1 dashtype 1
bar(row) = row == 0 ? 0x7a7a7a : 0x0072b2
solid(predicted) = predicted == 0 ? 0.34 : 0
hollow(predicted) = predicted == 1 ? 0.34 : 0
set multiplot
set lmargin at screen 0.30
set rmargin at screen 0.62
set tmargin at screen 1.0 - 55.0 / height
set bmargin at screen 65.0 / height
set xlabel sprintf("needed memory at batch %d (GiB)", batch)
set xrange [0:memory_max]
# Predicted bars are hollow; a row without a value says why (columns 9 to 15 hold what is drawn: 0 and a word there).
plot dat using (0):1:(0):9:($1 - solid($8)):($1 + solid($8)):(bar($1)):ytic(2) with boxxyerror \
       linecolor rgb variable, \
     dat using (0):1:(0):($9 * $8):($1 - hollow($8)):($1 + hollow($8)) with boxxyerror fillstyle empty border \
       linecolor rgb "#0072b2", \
     dat using 9:1:10 with labels left offset 0.6,0 textcolor rgb "#303030"
unset label 99
set lmargin at screen 0.66
set rmargin at screen 0.97
unset ytics
set xlabel "samples a second"
set xrange [0:speed_max]
plot dat using (0):1:(0):11:($1 - solid($8)):($1 + solid($8)):(bar($1)) with boxxyerror \
       linecolor rgb variable, \
     dat using (0):1:(0):($11 * $8):($1 - hollow($8)):($1 + hollow($8)) with boxxyerror fillstyle empty border \
       linecolor rgb "#0072b2", \
     dat using 11:1:12:13 with xerrorbars linecolor rgb "#101010" linewidth 1 pointtype 0, \
     dat using 14:1:15 with labels left offset 0.6,0 textcolor rgb "#303030"
unset multiplot
