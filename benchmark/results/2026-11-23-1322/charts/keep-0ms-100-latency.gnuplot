set encoding utf8
set terminal svg size 860,532 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-0ms-100-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1692
set tmargin at screen 0.8835
set yrange [0.4:11.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0414 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('limit (C)' 11, 'ours' 10, 'ours, portable engine' 9, 'our engine alone' 8, 'Hunchentoot' 7, 'Hunchentoot, no limit' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, instant handler, 100 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [0.3654:1749.0180]
$data << END
11 0.5220 2.0290 6.5020 7.9670 9.8940 10395294 "p99 6.50 ms"
10 1.2280 2.2010 4.5660 7.1650 11.8230 13840175 "p99 4.57 ms"
9 1.4940 5.6220 85.5240 204.2150 248.5880 16027569 "p99 85.5 ms"
8 0.5680 1.7660 5.5290 16.6930 21.0260 8323072 "p99 5.53 ms"
7 4.0360 44.8810 237.0460 453.6290 583.0060 1402304 "p99 237 ms"
6 4.0950 22.5230 218.5910 283.4880 317.2560 6600182 "p99 219 ms"
5 1.0510 3.3990 6.8450 10.2050 13.8440 16485376 "p99 6.84 ms"
4 1.6370 3.6710 15.9400 29.5300 46.4140 12531212 "p99 15.9 ms"
3 0.6320 3.4160 7.0250 11.4980 15.7470 3046706 "p99 7.03 ms"
2 1.4620 6.5890 18.3900 32.8740 54.4210 44225 "p99 18.4 ms"
1 1.5970 3.9780 7.5560 12.7500 16.8630 10275941 "p99 7.56 ms"
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
