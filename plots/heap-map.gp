# title: Where blocks lie during one step
# help: Addresses in the heap over one training step, blocks coloured by category, segment above segment; of several recipes side by side
# select: heap-map
array fills[7] = [0x0072b2, 0xd55e00, 0xcc79a7, 0x56b4e9, 0xe69f00, 0x009e73, 0x332288]
left(p) = 0.09 + (p - 1) * 0.89 / panels
# A step of 1, 2 or 5 times a power of ten, two or three of them in a panel.
decade(x) = 10 ** floor(log10(x))
step_of(x) = decade(x) * (x / decade(x) < 2 ? 1 : x / decade(x) < 5 ? 2 : 5)
set style fill solid noborder
unset grid
set multiplot
# The key alone, over the whole width: what is drawn here lies outside.
set lmargin at screen 0.09
set rmargin at screen 0.98
set bmargin at screen 62.0 / height
set border 0
unset xtics
unset ytics
set yrange [1:2]
set xrange [0:1]
plot -1 with boxes title "reserved, not in use" fillcolor rgb 0xd4d4d4, \
     for [i = 1:shown] -1 with boxes title names[i] fillcolor rgb fills[colours[i]]
unset key
unset label 98
unset label 99
set border 3
set ytics nomirror out textcolor rgb "#303030"
set tmargin at screen 1 - (head + 8 + 20.0 * panel_lines) / height
set yrange [0:ymax]
set ylabel "reserved memory, segment above segment (GiB)" offset 0.5,0
do for [p = 1:panels] {
  set lmargin at screen left(p)
  set rmargin at screen left(p + 1) - (panels > 1 ? 0.02 : 0)
  set label 97 panel_names[p] at graph 0, graph 1 offset 0,0.7+(panel_lines-1) left textcolor rgb "#101010" noenhanced \
    font (panels < 3 ? "" : term eq "svg" ? "sans-serif,11" : term eq "pngcairo" ? "sans,17" : "sans,7")
  set xlabel (p == (panels + 1) / 2 ? (timed ? "time since the step began (ms)" : "allocation event, in the order of the step") : " ")
  set xrange [0:panel_xmax[p]]
  set xtics 0, step_of(panel_xmax[p] / (panels > 1 ? 2.2 : 5)), (panels > 1 ? 0.93 : 1) * panel_xmax[p] nomirror out textcolor rgb "#303030"
  # A segment is grey where nothing of it is in use. Light lines around blocks, thin enough to leave small ones visible.
  plot dat index (p - 1) * (shown + 1) using (($1 + $2) / 2):(($3 + $4) / 2):1:2:3:4 with boxxyerror \
         fillcolor rgb 0xd4d4d4 fillstyle solid border linecolor rgb 0xffffff linewidth 0.3, \
       for [i = 1:shown] dat index (p - 1) * (shown + 1) + i using (($1 + $2) / 2):(($3 + $4) / 2):1:2:3:4 with boxxyerror \
         fillcolor rgb fills[colours[i]] fillstyle solid border linecolor rgb 0xffffff linewidth 0.15
  unset ylabel
  set format y ""
}
unset multiplot
