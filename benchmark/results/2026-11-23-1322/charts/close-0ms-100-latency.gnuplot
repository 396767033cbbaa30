set encoding utf8
set terminal svg size 860,532 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/close-0ms-100-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1692
set tmargin at screen 0.8835
set yrange [0.4:11.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0414 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('limit (C)' 11, 'ours' 10, 'ours, portable engine' 9, 'our engine alone' 8, 'Hunchentoot' 7, 'Hunchentoot, no limit' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 connection closed after each request, instant handler, 100 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [0.8253:112.6260]
$data << END
11 2.2110 3.6040 5.1290 7.7210 11.6670 10395294 "p99 5.13 ms"
10 2.7900 5.0740 7.7580 10.9610 13.6240 13840175 "p99 7.76 ms"
9 1.3140 2.4690 5.7180 11.7110 15.2870 16027569 "p99 5.72 ms"
8 2.2520 3.9100 5.5950 8.4970 14.4640 8323072 "p99 5.59 ms"
7 16.4440 18.7540 21.9450 23.7970 26.3790 1402304 "p99 21.9 ms"
6 17.8700 19.3220 20.9940 23.1970 24.4190 6600182 "p99 21.0 ms"
5 1.1790 3.7340 6.3500 11.7760 21.2950 16485376 "p99 6.35 ms"
4 1.3750 3.3710 7.0020 12.6330 21.1840 12531212 "p99 7.00 ms"
3 1.2690 2.9400 4.9780 8.2960 11.9870 3046706 "p99 4.98 ms"
2 1.9100 5.7630 14.0320 28.9390 31.6200 44225 "p99 14.0 ms"
1 8.2130 12.2850 21.3760 33.7830 37.5420 10275941 "p99 21.4 ms"
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
