set encoding utf8
set terminal svg size 860,542 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/mixed-0ms-200-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set label 2 '* out of the contest: some clients were refused or not served' at screen 0.02,0.0609 left font ',12' textcolor '#424242'
set label 1 '† does not measure what the others do: see the report' at screen 0.02,0.0203 left font ',12' textcolor '#424242'
set bmargin at screen 0.2472
set tmargin at screen 0.8856
set yrange [0.4:10.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.1218 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'our engine alone' 7, 'Hunchentoot *' 6, 'Hunchentoot, no limit *' 5, 'Woo, 1 per core * †' 4, 'Woo, 100 workers †' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, instant handler beside one of 100 ms for one in ten, 200 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [0.7238:4313.3970]
$data << END
10 1.0340 2.7780 6.3510 9.1730 11.3110 10395294 "p99 6.35 ms"
9 1.7790 3.2780 7.4150 17.0800 42.8140 13840175 "p99 7.42 ms"
8 1.2640 79.9350 230.8570 253.7660 257.1580 16027569 "p99 231 ms"
7 1.2790 1.9190 7.3710 21.3320 24.0720 8323072 "p99 7.37 ms"
6 3.6490 334.9350 709.2310 795.3260 830.6310 1402304 "p99 709 ms"
5 6.9650 134.3900 522.8630 712.3470 812.3070 6600182 "p99 523 ms"
4 1434.4270 1437.3100 1437.7620 1437.7990 1437.7990 16485376 "p99 1,438 ms"
3 3.3620 16.8010 101.4120 141.1390 182.8420 12531212 "p99 101 ms"
2 2.9710 11.2900 26.9140 40.6480 54.8510 44225 "p99 26.9 ms"
1 4.0520 8.5710 16.1680 30.2480 35.3630 10275941 "p99 16.2 ms"
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
