# title: What each recipe needs, by category
# help: Needed memory of every recipe at one batch of a device on paper, by category, beside the card's memory
# select: parts marks=bert-case:28,22
array fills[9] = [0x0072b2, 0xd55e00, 0xcc79a7, 0x56b4e9, 0xe69f00, 0x009e73, 0x332288, 0xb0b0b0, 0x505050]
name_of(part) = strstrt(used, sprintf(" %d ", part)) > 0 ? parts_names[part] : ""
set style fill solid noborder
set style textbox opaque noborder
set yrange [rows - 0.4:-0.6]
set border 1
set ytics scale 0 textcolor rgb "#101010"
unset grid
set grid xtics linetype 1 linecolor rgb "#e2e2e2" linewidth 1 dashtype 1
set lmargin at screen 0.34
set rmargin at screen 0.97
set bmargin at screen 65.0 / height
set xlabel "needed memory (GiB)"
set xrange [0:memory_max]
do for [m = 1:marks] {
  set arrow from mark_x[m], graph 0 to mark_x[m], graph 1 nohead linecolor rgb "#101010" linewidth 1.5 dashtype 2 back
  set label mark_texts[m] at mark_x[m], graph 1 offset 0,0.6 center textcolor rgb "#101010" front
}
# Columns 3 to 12: where each part begins and the last ends; a row without a value says why at its beginning.
plot for [p = 1:9] dat using (column(p + 2)):1:(column(p + 2)):(column(p + 3)):($1 - 0.36):($1 + 0.36):ytic(2) \
       with boxxyerror title name_of(p) linecolor rgb fills[p], \
     dat using 12:1:13 with labels boxed left offset 0.6,0 textcolor rgb "#303030" notitle
