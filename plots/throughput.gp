# title: Throughput over the batch
# help: Samples a second of every recipe, with the interval of the median step time
# select: series y=samples_per_s
set xlabel "samples a step"
set ylabel "samples a second"
set xrange [0:xmax]
set yrange [0:ymax]
do for [m = 1:marks] {
  set label 100 + m mark_texts[m] at mark_x[m], mark_y[m] center textcolor linetype mark_colours[m]
}
plot for [i = 1:series] dat index i - 1 using 2:3 with linespoints title names[i] \
       linecolor colours[i] pointtype points[i] dashtype dashes[i] pointsize 1.1, \
     for [i = 1:series] dat index i - 1 using 2:(is_known($4) ? $4 : $3):(0):(is_known($4) ? $5 - $4 : 0) \
       notitle with vectors nohead linewidth 4 linecolor colours[i]
