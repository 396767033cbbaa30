set encoding utf8
set terminal svg size 860,328 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-file1m-0ms-50-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.2744
set tmargin at screen 0.8110
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0671 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 TLS, keep-alive, file of 1 MiB, 50 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [26.5734:560.8500]
$data << END
5 40.1230 62.5460 88.1860 98.1310 98.1840 13840175 "p99 88.2 ms"
4 38.4610 68.7900 102.8710 131.3570 157.6600 16027569 "p99 103 ms"
3 100.4030 134.6400 168.1870 186.9500 186.9500 1402304 "p99 168 ms"
2 40.2790 51.1560 64.3540 72.7880 75.3910 3046706 "p99 64.4 ms"
1 37.9620 61.4650 88.2800 104.7060 119.2790 44225 "p99 88.3 ms"
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
