# title: Where blocks lie during one step
# help: Addresses in the heap over one training step, blocks coloured by category, segment above segment
# select: heap-map
array fills[7] = [0x0072b2, 0xd55e00, 0xcc79a7, 0x56b4e9, 0xe69f00, 0x009e73, 0x332288]
set xlabel (timed ? "time since the step began (ms)" : "allocation event, in the order of the step")
set ylabel "reserved memory, segment above segment (GiB)"
set xrange [0:xmax]
set yrange [0:ymax]
set style fill solid noborder
unset grid
# Light lines between segments and around blocks, thin enough to leave small ones visible.
plot dat index 0 using (($1 + $2) / 2):(($3 + $4) / 2):1:2:3:4 with boxxyerror title "reserved, not in use" \
       fillcolor rgb 0xd4d4d4 fillstyle solid border linecolor rgb 0xffffff linewidth 0.3, \
     for [i = 1:shown] dat index i using (($1 + $2) / 2):(($3 + $4) / 2):1:2:3:4 with boxxyerror title names[i] \
       fillcolor rgb fills[colours[i]] fillstyle solid border linecolor rgb 0xffffff linewidth 0.15
