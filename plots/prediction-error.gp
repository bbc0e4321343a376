# title: Error of predicted memory
# help: Of several stores: predicted needed memory against measured
# select: hardware metric=prediction-error
# stores: several
# draws: compare-bars
set xlabel "percent of what was measured"
