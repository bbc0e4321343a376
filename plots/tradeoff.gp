# title: Speed against memory
# help: Of several stores: samples a second over needed memory of everything that ran, with the Pareto front
# select: tradeoff
# stores: several
set lmargin at screen 0.10
set rmargin at screen 0.97
set bmargin at screen 65.0 / height
set xlabel "needed memory (GiB)"
set ylabel "samples a second"
set xrange [0:xmax]
set yrange [0:ymax]
plot for [i = 1:series] dat index 2 * i - 1 using 1:2 with steps notitle linecolor colours[i] dashtype dashes[i], \
     for [i = 1:series] dat index 2 * i - 2 using 1:2 with points notitle linecolor colours[i] pointtype shapes[i] \
       pointsize 0.7, \
     for [i = 1:series] dat index 2 * i - 1 using 1:2 with points title names[i] linecolor colours[i] pointtype shapes[i] \
       pointsize 1.3, \
     for [i = 1:(texts > 0)] dat index 2 * series using 1:2:3:4 with labels center textcolor variable notitle
