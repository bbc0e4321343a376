# title: Throughput at the same batch
# help: Of several stores: samples a second of the same recipe and batch
# select: hardware metric=throughput-equal-batch
# stores: several
# draws: compare-bars
set xlabel "samples a second"
