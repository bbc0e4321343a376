# title: A checkpoint every k operators
# help: Needed memory and repeated work over the number of operators between two checkpoints, with the best by theory
# select: checkpoint layer=operator
unset key
set multiplot
# Above: what is needed. Left of the first interval there is room for a best one below 1.
set lmargin at screen 0.10
set rmargin at screen 0.97
set tmargin at screen 1 - head / height
set bmargin at screen 1 - (head + 290.0) / height
set logscale x 2
set xrange [0.9:kmax * 1.1]
set xtics 2
set yrange [0:ymax]
set ylabel "needed memory (GiB)" offset 0.5,0
set format x ""
set arrow 1 from optimum, graph 0 to optimum, graph 1 nohead linecolor rgb "#d55e00" dashtype 2 linewidth 1.5
set label 1 sprintf(" k* = %.1f by theory", optimum) at optimum, graph 0.95 left textcolor rgb "#d55e00"
if (is_known(baseline_gib)) {
  set arrow 2 from graph 0, first baseline_gib to graph 1, first baseline_gib nohead linecolor rgb "#7a7a7a" dashtype 3
  set label 2 "no checkpoint " at graph 1, first baseline_gib right offset 0,0.6 textcolor rgb "#606060"
}
# A profile's need has two ends; where they are one, the band has no width.
if (banded) { set label 3 "band: from the lower end of the profile's need" at graph 0.98, graph 0.07 right textcolor rgb "#606060" }
plot dat using 1:3:2 with filledcurves linecolor rgb "#cfe3f1" fillstyle solid noborder, \
     dat using 1:2 with linespoints linecolor 1 pointtype (predicted ? 6 : 7) pointsize 1.0
unset label 1
unset label 2
unset label 3
unset label 98
unset label 99
unset arrow 2
# Below: what is repeated, and what that took.
set tmargin at screen 1 - (head + 320.0) / height
set bmargin at screen 58.0 / height
set format x "%g"
set yrange [sharemin:sharemax]
set ylabel "above the baseline (%)" offset 0.5,0
set xlabel "k, operators a checkpoint (the last run is not repeated)"
set key at graph 0.99, graph 0.97 top right vertical maxcols 1 Left reverse samplen 3
if (timed) {
  plot dat using 1:(is_known($6) ? $5 : NaN):6:7 with yerrorbars linecolor rgb "#e3b5cf" pointtype 7 pointsize 0.1 notitle, \
       dat using 1:4 with linespoints linecolor 3 pointtype 9 pointsize 1.0 title "FLOPs, counted", \
       dat using 1:5 with linespoints linecolor 4 pointtype 13 pointsize 1.0 title "step time, measured"
} else {
  plot dat using 1:4 with linespoints linecolor 3 pointtype 8 pointsize 1.0 title "FLOPs, counted"
}
unset multiplot
