# title: Memory during one step
# help: Live memory by category over one training step
# select: timeline
array fills[8] = ["#b8b8b8", "#0072b2", "#d55e00", "#cc79a7", "#56b4e9", "#e69f00", "#009e73", "#332288"]
name_of(band) = strstrt(used, sprintf(" %d ", band)) > 0 ? band_names[band] : ""
set xlabel (timed ? "time since the step began (ms)" : "allocation event, in the order of the step")
set ylabel "live memory (GiB)"
set xrange [0:xmax]
set yrange [0:ymax]
if (peak_x < 0.25 * xmax) { set label 1 peak_text at peak_x, graph 0.96 left textcolor rgb "#101010" }
if (peak_x >= 0.25 * xmax && peak_x <= 0.75 * xmax) { set label 1 peak_text at peak_x, graph 0.96 center textcolor rgb "#101010" }
if (peak_x > 0.75 * xmax) { set label 1 peak_text at peak_x, graph 0.96 right textcolor rgb "#101010" }
set label 2 "" at peak_x, peak_y point pointtype 7 pointsize 1 linecolor rgb "#101010"
# Bands that nothing is in have no height and no name in the key.
plot dat using 1:(0):2 with filledcurves title name_of(1) linecolor rgb fills[1] fillstyle solid, \
     dat using 1:2:3 with filledcurves title name_of(2) linecolor rgb fills[2] fillstyle solid, \
     dat using 1:3:4 with filledcurves title name_of(3) linecolor rgb fills[3] fillstyle solid, \
     dat using 1:4:5 with filledcurves title name_of(4) linecolor rgb fills[4] fillstyle pattern 2, \
     dat using 1:5:6 with filledcurves title name_of(5) linecolor rgb fills[5] fillstyle solid, \
     dat using 1:6:7 with filledcurves title name_of(6) linecolor rgb fills[6] fillstyle solid, \
     dat using 1:7:8 with filledcurves title name_of(7) linecolor rgb fills[7] fillstyle solid, \
     dat using 1:8:9 with filledcurves title name_of(8) linecolor rgb fills[8] fillstyle pattern 6, \
     dat using 1:10 with lines title "reserved" linecolor rgb "#101010" linewidth 1.2 dashtype 2
