set encoding utf8
set terminal svg size 860,542 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-10ms-400-latency.svg'
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
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, handler of 10 ms, 400 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [7.2121:5257.6680]
$data << END
10 10.3030 11.0300 12.9380 14.8870 15.7510 10395294 "p99 12.9 ms"
9 41.5230 43.0280 46.5010 60.7520 63.3910 13840175 "p99 46.5 ms"
8 10.9330 279.1950 543.6330 548.1490 549.9390 16027569 "p99 544 ms"
7 40.6700 40.8800 43.3100 56.3070 63.3320 8323072 "p99 43.3 ms"
6 13.2170 80.7810 102.7330 118.3930 128.3760 1402304 "p99 103 ms"
5 17.7630 65.3510 215.1640 307.0120 373.5180 6600182 "p99 215 ms"
4 1525.6940 1752.5560 1752.5560 1752.5560 1752.5560 16485376 "p99 1,753 ms"
3 40.6460 41.2420 50.9670 61.0740 71.2730 12531212 "p99 51.0 ms"
2 12.4860 17.1640 23.4260 26.9150 31.8780 44225 "p99 23.4 ms"
1 12.3210 15.0070 18.9910 23.2340 25.7000 10275941 "p99 19.0 ms"
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
