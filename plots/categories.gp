# title: Where the memory goes, over the batch
# help: Needed memory of the baseline at its peak, by category, over the batch
# select: categories recipe=baseline
array fills[9] = ["#0072b2", "#d55e00", "#cc79a7", "#56b4e9", "#e69f00", "#009e73", "#332288", "#707070", "#303030"]
name_of(part) = strstrt(used, sprintf(" %d ", part)) > 0 ? parts_names[part] : ""
set style data histograms
set style histogram rowstacked
set boxwidth 0.7
set xlabel "samples a step" . (predicted ? " (* predicted)" : "")
set ylabel "needed memory (GiB)"
set xrange [-0.6:bars - 0.4]
set yrange [0:ymax]
set xtics scale 0
# Parts that no bar has have no name in the key. The large ones are solid, the small ones at the top and what is seldom there have patterns.
plot dat using 3:xtic(2) title name_of(1) linecolor rgb fills[1] fillstyle solid noborder, \
     dat using 4 title name_of(2) linecolor rgb fills[2] fillstyle solid noborder, \
     dat using 5 title name_of(3) linecolor rgb fills[3] fillstyle pattern 2 noborder, \
     dat using 6 title name_of(4) linecolor rgb fills[4] fillstyle solid noborder, \
     dat using 7 title name_of(5) linecolor rgb fills[5] fillstyle solid noborder, \
     dat using 8 title name_of(6) linecolor rgb fills[6] fillstyle solid noborder, \
     dat using 9 title name_of(7) linecolor rgb fills[7] fillstyle pattern 6 noborder, \
     dat using 10 title name_of(8) linecolor rgb fills[8] fillstyle pattern 4 noborder, \
     dat using 11 title name_of(9) linecolor rgb fills[9] fillstyle pattern 5 noborder
