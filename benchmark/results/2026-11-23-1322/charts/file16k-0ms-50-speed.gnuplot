set encoding utf8
set terminal svg size 860,462 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/file16k-0ms-50-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1169
set tmargin at screen 0.8658
set yrange [0.4:10.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
10 80640.0700 63997.6800 89520.3000 10395294 "80,640"
9 39242.0900 34454.2270 41284.8240 13840175 "39,242"
8 27750.6860 24007.5250 39129.1880 16027569 "27,751"
7 1137.6880 1122.9250 1138.3470 1402304 "1,138"
6 1140.5360 1120.2790 1147.2530 6600182 "1,141"
5 1146.7190 1145.4630 1147.0100 16485376 "1,147"
4 1147.6760 1146.3120 1148.3330 12531212 "1,148"
3 58910.3240 41599.3500 64686.8600 3046706 "58,910"
2 21310.6100 16456.4690 27870.4730 44225 "21,311"
1 5615.6080 5240.4010 6966.4040 10275941 "5,616"
END
$cpu << END
10 9.2700 8.8590 10.4350 10395294 "9.27"
9 30.5140 28.4010 34.7630 13840175 "30.5"
8 47.0030 32.7620 55.5540 16027569 "47.0"
7 231.7450 194.8630 254.3860 1402304 "232"
6 231.4410 195.8220 253.2210 6600182 "231"
5 47.8260 43.4780 52.1740 16485376 "47.8"
4 100.0000 82.6810 108.6960 12531212 "100"
3 17.2860 15.9740 19.7290 3046706 "17.3"
2 53.2400 42.2880 59.5600 44225 "53.2"
1 268.1740 234.3410 305.6660 10275941 "268"
END
set multiplot title 'keep-alive, file of 16 KiB, 50 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'Hunchentoot' 7, 'Hunchentoot, no limit' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:111900.3750]
set format x '%.0s %c'
set xtics autofreq 20000.0000
plot $rate using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $rate using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $rate using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset ytics
unset label
set lmargin at screen 0.615
set rmargin at screen 0.980
set title "{/:Bold CPU per request}  (lower is better)"
set xlabel 'us' textcolor '#424242'
set xrange [0:382.0825]
set format x '%g'
set xtics autofreq 100.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
