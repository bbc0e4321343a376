# Made from /tmp/w/infer-store1; edit and draw again with: gnuplot recipes-2.gp
name = "recipes-2"
dat = name . ".dat"
figure_title = 'What each recipe needs, and how fast it is'
subtitle = "unet3d training queue 32x48x64:6,64x64x64:6,96x96x64:3,96x96x96:2: batch 17, predicted for plan:cpu\n(AMD EPYC)"
subtitle_lines = 2
rows = 10
peers = 0
predicted = 1
timed = 0
memory_max = 5.03662109
speed_max = 1
body = 700

# Common to all figures: copied into each NAME.gp, so that every one can be edited and drawn on its own:
#   gnuplot NAME.gp    gnuplot -e 'term="svg"' NAME.gp    gnuplot -e 'term="pdfcairo"' NAME.gp
# Colours: Okabe and Ito's, told apart by colour-blind readers; dashes, point shapes and patterns vary as well.
if (!exists("term")) term = "pngcairo"
# From the top: the title, what is shown (in grey, over subtitle_lines), the key with two names a row (one where they
# are long), the plot. Lengths are in 1/800 of the width.
if (!exists("keys")) keys = 0
if (!exists("key_columns")) key_columns = 2
if (!exists("body")) body = 400
key_rows = (keys + key_columns - 1) / key_columns
key_top = 40 + 18.0 * subtitle_lines
head = key_top + 20.0 * key_rows + 12
height = head + body
if (term eq "pngcairo") set terminal pngcairo noenhanced size 1600,2*height font "sans,20" linewidth 2 pointscale 1.6 background rgb "#ffffff"
if (term eq "svg") set terminal svg noenhanced size 800,height font "sans-serif,13" linewidth 1.2 background rgb "#ffffff"
if (term eq "pdfcairo") set terminal pdfcairo noenhanced size 8,8*height/800.0 font "sans,8" fontscale 1 linewidth 1 pointscale 0.8
set output name . "." . (term eq "pngcairo" ? "png" : term eq "pdfcairo" ? "pdf" : "svg")
# NaN is read as an undefined number: a gap in a line. (As "missing" it would drop whole rows.)
is_known(value) = value == value
set linetype 1 linecolor rgb "#0072b2" linewidth 2 pointtype 7
set linetype 2 linecolor rgb "#d55e00" linewidth 2 pointtype 5
set linetype 3 linecolor rgb "#009e73" linewidth 2 pointtype 9
set linetype 4 linecolor rgb "#cc79a7" linewidth 2 pointtype 13
set linetype 5 linecolor rgb "#e69f00" linewidth 2 pointtype 11
set linetype 6 linecolor rgb "#56b4e9" linewidth 2 pointtype 15
set linetype 7 linecolor rgb "#7a7a7a" linewidth 2 pointtype 7
set linetype 8 linecolor rgb "#332288" linewidth 2 pointtype 5
# Other engines' lines.
set linetype 9 linecolor rgb "#101010" linewidth 2
set linetype 10 linecolor rgb "#a0522d" linewidth 2
set linetype 11 linecolor rgb "#b0006a" linewidth 2
set linetype 12 linecolor rgb "#5a6b00" linewidth 2
set linetype cycle 12
set border 3 linecolor rgb "#707070"
set tics nomirror out textcolor rgb "#303030"
set grid ytics linetype 1 linecolor rgb "#e2e2e2" linewidth 1 dashtype 1
set label 99 figure_title at screen 0.015, screen 1 - 22.0 / height left textcolor rgb "#101010" noenhanced \
  font (term eq "svg" ? "sans-serif:Bold,14" : term eq "pngcairo" ? "sans:Bold,21" : "sans:Bold,8.5")
set label 98 subtitle at screen 0.015, screen 1 - 44.0 / height left textcolor rgb "#606060" noenhanced
set tmargin at screen 1 - head / height
# Rows of the key are 20 high in every terminal.
set key at screen 0.015, screen 1 - key_top / height top left horizontal maxcols key_columns Left reverse samplen 3 \
  spacing (term eq "svg" ? 1.03 : term eq "pngcairo" ? 1.29 : 1.12) textcolor rgb "#303030" noenhanced

# title: What each recipe needs, and how fast it is
# help: Needed memory and throughput of every recipe at one batch
# select: recipes
unset key
# One device, so all of them are predicted (hollow) or none.
if (predicted) { set style fill empty border } else { set style fill solid 0.9 border linecolor rgb "#404040" }
# The baseline, recipes, other engines.
array fills[3] = [0x7a7a7a, 0x0072b2, 0xd55e00]
set yrange [rows - 0.4:-0.6]
set border 1
set ytics scale 0 textcolor rgb "#101010"
unset grid
set grid xtics linetype 1 linecolor rgb "#e2e2e2" linewidth 1 dashtype 1
set multiplot
set lmargin at screen 0.30
set rmargin at screen (timed ? 0.62 : 0.97)
set bmargin at screen 65.0 / height
set xlabel (peers > 0 ? "memory of the step (GiB)" : "needed memory (GiB)")
set xrange [0:memory_max]
# A row without a value says why (columns 8 to 14 hold what is drawn: 0 and a word there).
plot dat using (0):1:(0):8:($1 - 0.34):($1 + 0.34):(fills[$15]):ytic(2) with boxxyerror linecolor rgb variable, \
     dat using 8:1:9 with labels left offset 0.6,0 textcolor rgb "#303030"
unset label 99
unset label 98
set lmargin at screen 0.66
set rmargin at screen 0.97
unset ytics
set xlabel "samples a second"
set xrange [0:speed_max]
if (timed) {
  plot dat using (0):1:(0):10:($1 - 0.34):($1 + 0.34):(fills[$15]) with boxxyerror linecolor rgb variable, \
       dat using 10:1:11:12 with xerrorbars linecolor rgb "#101010" linewidth 1 pointtype 0, \
       dat using 13:1:14 with labels left offset 0.6,0 textcolor rgb "#303030"
}
unset multiplot
set output
