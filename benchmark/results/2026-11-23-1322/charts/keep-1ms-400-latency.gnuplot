set encoding utf8
set terminal svg size 860,542 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-1ms-400-latency.svg'
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
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'our engine alone' 7, 'Hunchentoot *' 6, 'Hunchentoot, no limit *' 5, 'Woo, 1 per core †' 4, 'Woo, 100 workers †' 3, 'Go net/http †' 2, 'Node, 1 per core †' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, handler of 1 ms, 400 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [1.8900:4547.2770]
$data << END
10 2.7000 3.9670 5.7240 8.4850 10.1850 10395294 "p99 5.72 ms"
9 8.6630 12.9540 21.6690 47.3930 56.6280 13840175 "p99 21.7 ms"
8 8.3790 101.5140 253.0340 270.3520 292.8120 16027569 "p99 253 ms"
7 5.5430 7.3180 13.3410 31.2140 43.8100 8323072 "p99 13.3 ms"
6 5.1110 724.0160 1293.1850 1400.1370 1485.8440 1402304 "p99 1,293 ms"
5 13.5110 192.9260 1164.3790 1515.5140 1515.7590 6600182 "p99 1,164 ms"
4 224.9480 230.6480 235.5440 343.9890 376.0490 16485376 "p99 236 ms"
3 7.9890 11.8490 22.9590 38.2730 57.0030 12531212 "p99 23.0 ms"
2 5.4840 10.4310 16.0030 24.5770 31.0550 44225 "p99 16.0 ms"
1 6.0140 11.3220 21.8740 34.8550 51.3250 10275941 "p99 21.9 ms"
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
