# title: Throughput for each GiB needed
# help: Of several stores: samples a second over needed memory, same recipe and batch
# select: hardware metric=samples-per-gib
# stores: several
# draws: compare-bars
set xlabel "samples a second and GiB"
