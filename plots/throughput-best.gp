# title: Throughput at the best batch
# help: Of several stores: samples a second of every recipe at its best batch
# select: hardware metric=throughput-best
# stores: several
# draws: compare-bars
set xlabel "samples a second"
