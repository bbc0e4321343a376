# title: Speed against memory
# help: Of several stores: samples a second over needed memory of everything that ran, with the Pareto front
# select: tradeoff
# stores: several
set xlabel "needed memory (GiB)"
set ylabel "samples a second"
set xrange [0:xmax]
set yrange [0:ymax]
plot for [i = 1:series] dat index 2 * i - 2 using 1:2 with points title names[i] linecolor colours[i] pointtype points[i] \
       pointsize 1.1, \
     for [i = 1:series] dat index 2 * i - 1 using 1:2 with steps notitle linecolor colours[i] dashtype points[i] == 7 ? 1 : 2
