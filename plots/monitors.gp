# title: What each step did to the numbers
# help: Loss, gradient norm, loss scale and share flushed to zero of monitored cells, step by step; skipped steps marked
# select: monitors
array labels[4] = ["loss", "gradient norm", "loss scale", "flushed (%)"]
array shapes[8] = [7, 5, 9, 13, 11, 15, 7, 5]
set multiplot
set lmargin at screen 0.12
set rmargin at screen 0.97
set xrange [0.5:steps + 0.5]
set xtics 1 + int(steps / 20)
place = 0
do for [p = 1:4] {
  if (strlen(shown[p]) > 0) {
    set tmargin at screen 1 - (head + 150.0 * place) / height
    set bmargin at screen 1 - (head + 150.0 * place + 132.0) / height
    place = place + 1
    if (place == panels) { set format x "%g"; set xlabel "step" } else { set format x "" }
    unset logscale y
    if (p == 2 && wide) { set logscale y 10 }
    if (p == 3) { set logscale y 2 }
    set format y (p == 3 ? "2^%L" : "%g")
    set yrange [lows[p]:highs[p]]
    set label 1 labels[p] at screen 0.022, graph 0.5 center rotate by 90
    if (p == 1 && strlen(skips) > 0) {
      plot for [i in shown[p]] dat index int(i) - 1 using 1:(column(p + 1)) with linespoints title names[int(i)] \
             linecolor int(i) pointtype shapes[int(i)] pointsize 0.6, \
           keyentry with points linecolor rgb "#101010" pointtype 2 pointsize 1.2 title "skipped step"
    }
    if (p == 3 && strlen(skips) > 0) {
      plot for [i in shown[p]] dat index int(i) - 1 using 1:(column(p + 1)) with linespoints linecolor int(i) \
             pointtype shapes[int(i)] pointsize 0.6, \
           for [i in skips] dat index int(i) - 1 using 1:($6 > 0 ? $4 : NaN) with points linecolor rgb "#101010" \
             pointtype 2 pointsize 1.2
    }
    if ((p != 1 && p != 3) || strlen(skips) == 0) {
      plot for [i in shown[p]] dat index int(i) - 1 using 1:(column(p + 1)) with linespoints title names[int(i)] \
             linecolor int(i) pointtype shapes[int(i)] pointsize 0.6
    }
    unset key
    unset label 98
    unset label 99
  }
}
unset multiplot
