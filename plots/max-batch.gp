# title: Largest batch that fits
# help: Of several stores: the largest batch of every recipe
# select: hardware metric=max-batch
# stores: several
# draws: compare-bars
set xlabel "samples a step"
