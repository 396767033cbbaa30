set encoding utf8
set terminal svg size 860,428 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/upload-0ms-4-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1262
set tmargin at screen 0.8551
set yrange [0.4:9.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
9 417.2650 368.6560 521.0150 10395294 "417"
8 166.1460 133.8060 170.8250 13840175 "166"
7 174.5270 127.3210 206.4730 16027569 "175"
6 127.7010 109.1760 148.9870 1402304 "128"
5 136.5250 75.4460 147.2010 6600182 "137"
4 47.5110 28.5910 53.5420 16485376 "47.5"
3 40.2860 28.5870 44.3780 12531212 "40.3"
2 65.7170 58.8360 69.1100 44225 "65.7"
1 164.1230 148.1410 197.4980 10275941 "164"
END
$cpu << END
9 1470.8790 1196.3590 1694.6960 10395294 "1,471"
8 7529.0700 6381.7670 9595.5880 13840175 "7,529"
7 7349.7270 6009.3900 7480.9160 16027569 "7,350"
6 11081.0810 10276.8160 14234.2340 1402304 "11,081"
5 11232.3950 10686.2740 11764.7060 6600182 "11,232"
4 36400.0000 33125.0000 40481.9260 16485376 "36,400"
3 45063.2930 39560.4400 47333.3320 12531212 "45,063"
2 22101.4500 15142.8570 24750.0000 44225 "22,101"
1 8750.0000 7046.1540 10100.0000 10275941 "8,750"
END
set multiplot title 'keep-alive, upload of 10 MiB, 4 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 9, 'ours' 8, 'ours, portable engine' 7, 'Hunchentoot' 6, 'Hunchentoot, no limit' 5, 'Woo, 1 per core' 4, 'Woo, 100 workers' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:651.2687]
set format x '%g'
set xtics autofreq 200.0000
plot $rate using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $rate using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $rate using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset ytics
unset label
set lmargin at screen 0.615
set rmargin at screen 0.980
set title "{/:Bold CPU per request}  (lower is better)"
set xlabel 'us' textcolor '#424242'
set xrange [0:59166.6650]
set format x '%.0s %c'
set xtics autofreq 10000.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
