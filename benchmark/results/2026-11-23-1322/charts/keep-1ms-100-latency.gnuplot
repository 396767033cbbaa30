set encoding utf8
set terminal svg size 860,520 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-1ms-100-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set label 1 '† does not measure what the others do: see the report' at screen 0.02,0.0212 left font ',12' textcolor '#424242'
set bmargin at screen 0.2154
set tmargin at screen 0.8808
set yrange [0.4:10.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0846 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'our engine alone' 7, 'Hunchentoot' 6, 'Hunchentoot, no limit' 5, 'Woo, 1 per core †' 4, 'Woo, 100 workers †' 3, 'Go net/http †' 2, 'Node, 1 per core †' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, handler of 1 ms, 100 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [0.9121:969.8490]
$data << END
10 1.3030 1.7560 2.4560 4.3260 6.8630 10395294 "p99 2.46 ms"
9 2.2830 3.7630 8.3160 18.0370 27.5220 13840175 "p99 8.32 ms"
8 2.3370 5.9130 25.3460 59.4840 71.3380 16027569 "p99 25.3 ms"
7 1.7780 2.8750 5.3260 10.3290 19.0980 8323072 "p99 5.33 ms"
6 4.7770 9.8180 51.6230 137.6910 180.9130 1402304 "p99 51.6 ms"
5 4.3810 9.8920 83.3780 228.8810 323.2830 6600182 "p99 83.4 ms"
4 57.7030 58.9280 60.8460 62.3740 95.4090 16485376 "p99 60.8 ms"
3 2.6980 5.3680 11.4870 29.7720 57.6740 12531212 "p99 11.5 ms"
2 2.0860 3.6620 5.9680 8.5470 14.9530 44225 "p99 5.97 ms"
1 2.2980 3.4490 5.9590 10.0180 12.9690 10275941 "p99 5.96 ms"
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
