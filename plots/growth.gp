# title: Does the memory grow exponentially?
# help: Three fits of needed memory on batches up to 128, judged on those held out
# select: growth recipe=baseline fit_at_most=128
set xlabel "samples a step"
set ylabel "needed memory (GiB)"
set xrange [0:xmax]
set yrange [0:ymax]
set samples 400
set arrow 1 from fit_at_most, graph 0 to fit_at_most, graph 1 nohead linecolor rgb "#a0a0a0" dashtype 3
set label 1 "fitted  " at fit_at_most, graph 0.04 right textcolor rgb "#606060"
set label 2 "  held out" at fit_at_most, graph 0.04 left textcolor rgb "#606060"
gib = 2.0**30
kind = predicted ? "predicted" : "measured"
plot (affine_fitted ? (affine_a + affine_b * x) / gib : NaN) title affine_title linecolor 1 dashtype 1, \
     (power_fitted ? power_a * x**power_b / gib : NaN) title power_title linecolor 3 dashtype 2, \
     (exponential_fitted ? exponential_a * exp(exponential_b * x) / gib : NaN) title exponential_title \
       linecolor 2 dashtype 4, \
     dat using 1:($3 == 0 ? $2 : NaN) with points title kind . ", fitted" linecolor rgb "#101010" \
       pointtype (predicted ? 6 : 7) pointsize 1.3, \
     dat using 1:($3 == 1 ? $2 : NaN) with points title kind . ", held out" linecolor rgb "#101010" \
       pointtype (predicted ? 12 : 13) pointsize 1.8
