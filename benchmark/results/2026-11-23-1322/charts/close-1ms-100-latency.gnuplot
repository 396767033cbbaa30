set encoding utf8
set terminal svg size 860,520 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/close-1ms-100-latency.svg'
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
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 connection closed after each request, handler of 1 ms, 100 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [1.9229:274.0590]
$data << END
10 3.0040 4.1940 5.8210 8.3330 9.9520 10395294 "p99 5.82 ms"
9 3.7520 5.8430 10.5710 20.7630 30.4700 13840175 "p99 10.6 ms"
8 6.8920 9.6270 18.6820 32.8520 68.7870 16027569 "p99 18.7 ms"
7 3.4800 5.2470 8.7600 15.1400 27.8670 8323072 "p99 8.76 ms"
6 17.0610 20.7290 24.8250 26.1680 28.7090 1402304 "p99 24.8 ms"
5 16.4630 19.3050 24.6180 30.0080 32.0540 6600182 "p99 24.6 ms"
4 58.0690 69.0340 77.3260 81.3560 91.3530 16485376 "p99 77.3 ms"
3 2.7470 5.5220 9.8490 25.0530 26.9760 12531212 "p99 9.85 ms"
2 4.1150 7.2200 11.4620 21.9730 31.6660 44225 "p99 11.5 ms"
1 5.6420 8.8190 15.6510 23.8520 33.5600 10275941 "p99 15.7 ms"
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
