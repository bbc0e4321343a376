# title: Memory during one step
# help: Live memory by category over one training step
# select: timeline
array fills[8] = ["#b8b8b8", "#0072b2", "#d55e00", "#cc79a7", "#56b4e9", "#e69f00", "#009e73", "#332288"]
array patterns[8] = [3, 3, 3, 2, 3, 3, 3, 6]
set xlabel (timed ? "time since the step began (ms)" : "allocation event")
set ylabel sprintf("live memory, %s (GiB)", recipe)
set xrange [0:xmax]
set yrange [0:ymax]
if (peak_x < 0.25 * xmax) { set label 1 peak_text at peak_x, graph 0.96 left textcolor rgb "#101010" }
if (peak_x >= 0.25 * xmax && peak_x <= 0.75 * xmax) { set label 1 peak_text at peak_x, graph 0.96 center textcolor rgb "#101010" }
if (peak_x > 0.75 * xmax) { set label 1 peak_text at peak_x, graph 0.96 right textcolor rgb "#101010" }
set label 2 "" at peak_x, peak_y point pointtype 7 pointsize 1 linecolor rgb "#101010"
plot for [b in used] dat using 1:(b eq "1" ? 0 : column(int(b))):(column(int(b) + 1)) \
       with filledcurves title band_names[int(b)] linecolor rgb fills[int(b)] \
       fillstyle pattern patterns[int(b)], \
     dat using 1:(column(bands + 2)) with lines title "reserved" linecolor rgb "#101010" linewidth 1.2 dashtype 2
