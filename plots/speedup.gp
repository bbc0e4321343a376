# title: Speed against the reference
# help: Of several stores: throughput over that of the reference label, same recipe and batch
# select: hardware metric=speedup
# stores: several
# draws: compare-bars
set xlabel "times the reference"
