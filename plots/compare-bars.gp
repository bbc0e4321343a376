# Bars of several labels side by side: drawn by the figures that name it (# draws:).
set border 1
set yrange [rows - 0.4:-0.6]
set xrange [xmin:xmax]
set lmargin at screen 0.30
set rmargin at screen 0.97
set bmargin at screen 65.0 / height
set ytics scale 0 textcolor rgb "#101010"
unset grid
set grid xtics linetype 1 linecolor rgb "#e2e2e2" linewidth 1 dashtype 1
if (xmin < 0) { set arrow 1 from 0, graph 0 to 0, graph 1 nohead linecolor rgb "#707070" }
# gnuplot takes the key to be as narrow as the plot, which it begins left of.
if (key_columns == 1) { set key width -24 }
# A bar says by its filling where it is from: solid, hatched or an outline.
plot for [i = 1:series] dat index i - 1 using (0):1:(0):2:($1 - 0.42):($1 + 0.42) with boxxyerror title names[i] \
       linetype colours[i] fillstyle pattern patterns[i] border linetype colours[i], \
     for [i = 1:series] dat index i - 1 using (is_known($3) ? $2 : 1/0):1:3:4 with xerrorbars notitle \
       linecolor rgb "#101010" linewidth 1 pointtype 0, \
     dat index series using 2:1:3 with labels left offset 0.8,0 textcolor rgb "#303030" notitle, \
     dat index series + 1 using (0):1:ytic(2) with dots notitle linecolor rgb "#ffffff"
