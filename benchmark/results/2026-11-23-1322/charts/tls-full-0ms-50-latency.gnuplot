set encoding utf8
set terminal svg size 860,328 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-full-0ms-50-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.2744
set tmargin at screen 0.8110
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0671 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 TLS, whole handshake for each request, instant handler, 50 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [16.1483:785.5320]
$data << END
5 23.0690 34.4220 60.5150 73.1340 77.4780 13840175 "p99 60.5 ms"
4 30.3830 43.8360 61.9020 74.4220 86.7320 16027569 "p99 61.9 ms"
3 58.5280 96.9350 195.9870 237.7440 261.8440 1402304 "p99 196 ms"
2 25.1750 34.7590 50.0490 60.1120 62.8540 3046706 "p99 50.0 ms"
1 27.0050 46.9950 71.9630 96.7180 109.5500 44225 "p99 72.0 ms"
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
