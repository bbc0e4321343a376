# title: Memory of a step, beside other engines
# help: Peak of the step above weights and input, ours and imported engines', over the batch
# select: series y=peak_step_bytes unit=GiB only=beside-peers
set xlabel "samples a step"
set ylabel "memory of the step (GiB)"
set xrange [0:xmax]
set yrange [0:ymax]
do for [m = 1:marks] {
  set label 100 + m mark_texts[m] at mark_x[m], mark_y[m] center textcolor linetype mark_colours[m]
}
plot for [i = 1:series] dat index i - 1 using 2:3 with linespoints title names[i] \
       linecolor colours[i] pointtype points[i] dashtype dashes[i] pointsize 1.1
