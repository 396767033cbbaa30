set encoding utf8
set terminal svg size 860,554 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-0ms-1000-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set label 1 '* out of the contest: some clients were refused or not served' at screen 0.02,0.0199 left font ',12' textcolor '#424242'
set bmargin at screen 0.2022
set tmargin at screen 0.8881
set yrange [0.4:11.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0794 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('limit (C)' 11, 'ours' 10, 'ours, portable engine' 9, 'our engine alone' 8, 'Hunchentoot *' 7, 'Hunchentoot, no limit *' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, instant handler, 1,000 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [3.2214:5448.3060]
$data << END
11 5.9300 10.9950 17.0210 21.5840 23.4340 10395294 "p99 17.0 ms"
10 10.3960 15.4440 23.3210 55.6500 79.7630 13840175 "p99 23.3 ms"
9 15.4500 74.1190 133.1340 153.7100 263.2830 16027569 "p99 133 ms"
8 7.3030 11.4990 22.7930 40.6190 46.2840 8323072 "p99 22.8 ms"
7 4.6020 102.7680 992.3530 1371.1130 1588.0240 1402304 "p99 992 ms"
6 12.4530 247.5100 837.7370 1405.1670 1816.1020 6600182 "p99 838 ms"
5 13.8740 20.5430 29.9890 42.6710 45.2980 16485376 "p99 30.0 ms"
4 9.6170 16.5370 29.1930 47.2300 54.1990 12531212 "p99 29.2 ms"
3 7.2830 12.7970 18.9150 27.0670 37.6070 3046706 "p99 18.9 ms"
2 17.8280 40.5790 62.9440 80.2910 92.1490 44225 "p99 62.9 ms"
1 17.3980 30.8520 792.2090 1216.7320 1435.1700 10275941 "p99 792 ms"
END
plot $data using 2:1:2:6:7 with xerrorbars pt -1 lw 2 lc rgb variable notitle, \
  $data using 6:1:8 with labels left offset 1.2,0 font ',12' notitle, \
  $data using 2:1:7 with points pt 7 ps 0.9 lc rgb variable notitle, \
  NaN with points pt 7 ps 0.9 lc '#616161' title 'p50', \
  $data using 3:1:7 with points pt 9 ps 0.8 lc rgb variable notitle, \
  NaN with points pt 9 ps 0.8 lc '#616161' title 'p90', \
  $data using 4:1:7 with points pt 13 ps 1.1 lc rgb variable notitle, \
  NaN with points pt 13 ps 1.1 lc '#616161' title 'p99', \
  $data using 5:1:7 with points pt 5 ps 0.7 lc rgb variable notitle, \
  NaN with points pt 5 ps 0.7 lc '#616161' title 'p99.9', \
  $data using 6:1:7 with points pt 2 ps 0.8 lc rgb variable notitle, \
  NaN with points pt 2 ps 0.8 lc '#616161' title 'max'
