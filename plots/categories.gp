# title: Where the memory goes, over the batch
# help: Needed memory of the baseline at its peak, by category, over the batch
# select: categories recipe=baseline
array fills[9] = ["#0072b2", "#d55e00", "#cc79a7", "#56b4e9", "#e69f00", "#009e73", "#332288", "#707070", "#303030"]
set style data histograms
set style histogram rowstacked
set boxwidth 0.7
set xlabel "samples a step (* predicted)"
set ylabel sprintf("needed memory, %s (GiB)", recipe)
set xrange [-0.6:bars - 0.4]
set yrange [0:ymax]
set xtics scale 0
# The large parts are solid, the small ones at the top and what is seldom there have patterns.
plot dat using 3:xtic(2) title parts_names[1] linecolor rgb fills[1] fillstyle solid noborder, \
     dat using 4 title parts_names[2] linecolor rgb fills[2] fillstyle solid noborder, \
     dat using 5 title parts_names[3] linecolor rgb fills[3] fillstyle pattern 2 noborder, \
     dat using 6 title parts_names[4] linecolor rgb fills[4] fillstyle solid noborder, \
     dat using 7 title parts_names[5] linecolor rgb fills[5] fillstyle solid noborder, \
     dat using 8 title parts_names[6] linecolor rgb fills[6] fillstyle solid noborder, \
     dat using 9 title parts_names[7] linecolor rgb fills[7] fillstyle pattern 6 noborder, \
     dat using 10 title parts_names[8] linecolor rgb fills[8] fillstyle pattern 4 noborder, \
     dat using 11 title parts_names[9] linecolor rgb fills[9] fillstyle pattern 5 noborder
