# title: Samples for each joule
# help: Of several stores: samples over energy, same recipe and batch
# select: hardware metric=samples-per-joule
# stores: several
# draws: compare-bars
set xlabel "samples a joule"
