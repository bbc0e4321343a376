# title: Memory needed over the batch
# help: Needed memory of every recipe, measured and predicted, over the batch
# select: series y=needed_bytes unit=GiB
set xlabel "samples a step"
set ylabel "needed memory (GiB)"
set xrange [0:xmax]
set yrange [0:ymax]
do for [m = 1:marks] {
  set label 100 + m mark_texts[m] at mark_x[m], mark_y[m] center textcolor linetype mark_colours[m]
}
plot for [i = 1:series] dat index i - 1 using 2:3 with linespoints title names[i] \
       linecolor colours[i] pointtype points[i] dashtype dashes[i] pointsize 1.1
