# title: Fragmentation over steps
# help: Reserved over allocated memory, and how scattered what is free is, step by step, of recipes that concern allocation
# select: fragmentation
set multiplot
set lmargin at screen 0.10
set rmargin at screen 0.97
set xrange [0.5:xmax + 0.5]
set xtics 1 + int(xmax / 20)
# Above: at the peak of each step.
set tmargin at screen 1 - head / height
set bmargin at screen 1 - (head + 235.0) / height
set yrange [1:ratio_max]
set ylabel "reserved / allocated, at the peak" offset 0.5,0
set format x ""
plot for [i = 1:series] dat index i - 1 using 1:2 with linespoints title names[i] \
       linetype i dashtype 1 + (i - 1) % 4 pointsize 1.0
unset label 98
unset label 99
unset key
# Below: what is free after each step. 0: all in one piece.
set tmargin at screen 1 - (head + 265.0) / height
set bmargin at screen 58.0 / height
set format x "%g"
set yrange [0:1]
set ylabel "1 - largest hole / free" offset 0.5,0
set xlabel "step, warm-up included"
plot for [i = 1:series] dat index i - 1 using 1:3 with linespoints notitle \
       linetype i dashtype 1 + (i - 1) % 4 pointsize 1.0
unset multiplot
