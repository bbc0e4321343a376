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
# Plain in SVG, where ":Bold" would be taken for a part of the family's name, and the title set in another font.
set label 99 figure_title at screen 0.015, screen 1 - 22.0 / height left textcolor rgb "#101010" noenhanced \
  font (term eq "svg" ? "sans-serif,15" : term eq "pngcairo" ? "sans:Bold,21" : "sans:Bold,8.5")
set label 98 subtitle at screen 0.015, screen 1 - 44.0 / height left textcolor rgb "#606060" noenhanced
set tmargin at screen 1 - head / height
# Rows of the key are 20 high in every terminal.
set key at screen 0.015, screen 1 - key_top / height top left horizontal maxcols key_columns Left reverse samplen 3 \
  spacing (term eq "svg" ? 1.03 : term eq "pngcairo" ? 1.29 : 1.12) textcolor rgb "#303030" noenhanced
