set encoding utf8
set terminal svg size 860,532 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/browser-0ms-100-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1692
set tmargin at screen 0.8835
set yrange [0.4:11.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0414 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('limit (C)' 11, 'ours' 10, 'ours, portable engine' 9, 'our engine alone' 8, 'Hunchentoot' 7, 'Hunchentoot, no limit' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, requests as browsers send them, instant handler, 100 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [0.3941:1009.4700]
$data << END
11 0.5890 2.1780 5.5450 9.9580 13.3160 10395294 "p99 5.54 ms"
10 1.2440 2.5060 4.6470 6.9960 10.5440 13840175 "p99 4.65 ms"
9 2.0030 10.1540 66.9210 105.0640 130.0380 16027569 "p99 66.9 ms"
8 0.5630 2.1300 5.7670 11.2550 13.8190 8323072 "p99 5.77 ms"
7 5.8030 32.1810 156.9610 262.0760 306.5030 1402304 "p99 157 ms"
6 5.6410 32.7030 148.1650 263.4620 336.4900 6600182 "p99 148 ms"
5 1.5310 3.8410 7.1660 13.8470 16.4110 16485376 "p99 7.17 ms"
4 2.2320 7.5910 39.0090 62.3900 97.7330 12531212 "p99 39.0 ms"
3 0.6880 3.6120 8.4980 12.3860 16.4660 3046706 "p99 8.50 ms"
2 2.1460 9.8930 20.3440 32.3150 42.0510 44225 "p99 20.3 ms"
1 2.8690 5.5980 10.9170 16.0450 23.4720 10275941 "p99 10.9 ms"
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
