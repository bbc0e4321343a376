# title: Where the memory goes, over the batch
# help: Needed memory of the baseline at its peak, by category, over the batch
# select: categories recipe=baseline
array fills[9] = ["#0072b2", "#d55e00", "#cc79a7", "#56b4e9", "#e69f00", "#009e73", "#332288", "#707070", "#303030"]
array patterns[9] = [3, 3, 2, 3, 3, 3, 6, 4, 5]
set style data histograms
set style histogram rowstacked
set boxwidth 0.7
set xlabel "samples a step (* predicted)"
set ylabel sprintf("needed memory, %s (GiB)", recipe)
set xrange [-0.6:bars - 0.4]
set yrange [0:ymax]
set xtics scale 0
plot for [p = 1:parts] dat using p + 2:xtic(2) title parts_names[p] linecolor rgb fills[p] \
       fillstyle pattern patterns[p] noborder
