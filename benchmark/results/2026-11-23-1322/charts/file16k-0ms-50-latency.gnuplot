set encoding utf8
set terminal svg size 860,498 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/file16k-0ms-50-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1807
set tmargin at screen 0.8755
set yrange [0.4:10.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0442 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'Hunchentoot' 7, 'Hunchentoot, no limit' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, file of 16 KiB, 50 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [0.2856:177.5130]
$data << END
10 0.4080 2.0820 6.6900 8.3440 12.9590 10395294 "p99 6.69 ms"
9 1.1340 2.0730 3.6430 5.7450 9.9480 13840175 "p99 3.64 ms"
8 1.6250 4.9970 16.4810 33.4560 57.6500 16027569 "p99 16.5 ms"
7 43.9010 44.4880 48.2500 51.6680 52.4560 1402304 "p99 48.3 ms"
6 43.8610 44.2390 48.0340 51.0750 52.3080 6600182 "p99 48.0 ms"
5 43.8870 44.1560 48.0070 48.1820 48.1920 16485376 "p99 48.0 ms"
4 43.6570 44.1850 48.0340 48.5380 51.1670 12531212 "p99 48.0 ms"
3 0.6390 2.3170 5.6510 8.3910 11.9110 3046706 "p99 5.65 ms"
2 2.3320 10.9950 24.6280 36.5950 59.1710 44225 "p99 24.6 ms"
1 7.7590 15.4620 30.3420 48.7540 53.4170 10275941 "p99 30.3 ms"
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
