set encoding utf8
set terminal svg size 860,328 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-file16k-0ms-50-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.2744
set tmargin at screen 0.8110
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0671 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 TLS, keep-alive, file of 16 KiB, 50 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [0.8232:277.5210]
$data << END
5 1.8400 3.1220 4.6480 7.1940 19.2560 13840175 "p99 4.65 ms"
4 2.4140 6.5860 20.4630 53.4870 92.5070 16027569 "p99 20.5 ms"
3 43.9450 45.8660 54.3780 64.0880 70.0140 1402304 "p99 54.4 ms"
2 1.1760 2.5820 4.5230 8.5990 17.6830 3046706 "p99 4.52 ms"
1 2.0930 7.0300 17.0060 26.8930 41.1560 44225 "p99 17.0 ms"
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
