set encoding utf8
set terminal svg size 860,328 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-resumed-0ms-50-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.2744
set tmargin at screen 0.8110
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0671 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 TLS, resumed connection for each request, instant handler, 50 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [9.4297:436.3710]
$data << END
5 14.9060 22.4300 30.6980 44.5740 51.3750 13840175 "p99 30.7 ms"
4 17.7590 34.2170 56.0760 96.9320 121.6950 16027569 "p99 56.1 ms"
3 45.9080 77.6270 111.0820 138.3400 145.4570 1402304 "p99 111 ms"
2 14.0570 18.6540 24.8460 41.2380 44.2790 3046706 "p99 24.8 ms"
1 13.4710 28.0320 62.0370 86.6010 87.8630 44225 "p99 62.0 ms"
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
