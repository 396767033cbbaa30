set encoding utf8
set terminal svg size 860,464 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/upload-0ms-4-latency.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1940
set tmargin at screen 0.8664
set yrange [0.4:9.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
set key at screen 0.55,0.0474 center center horizontal samplen 1 width 3
set ytics scale 0 textcolor '#212121' ('limit (C)' 9, 'ours' 8, 'ours, portable engine' 7, 'Hunchentoot' 6, 'Hunchentoot, no limit' 5, 'Woo, 1 per core' 4, 'Woo, 100 workers' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set title "{/:Bold Latency}  (lower is better)\n{/*0.9 keep-alive, upload of 10 MiB, 4 connections}"
set xlabel 'ms, logarithmic' textcolor '#424242'
set logscale x
set format x '%g'
set xrange [6.1957:549.6210]
$data << END
9 8.8510 12.9810 17.4430 21.3410 23.9160 10395294 "p99 17.4 ms"
8 20.5260 52.6660 91.7980 104.0740 104.0740 13840175 "p99 91.8 ms"
7 19.3150 47.0900 94.1680 141.2080 141.2080 16027569 "p99 94.2 ms"
6 27.5650 57.6210 84.2960 101.3770 101.3770 1402304 "p99 84.3 ms"
5 27.0620 48.4210 78.6190 100.8970 100.8970 6600182 "p99 78.6 ms"
4 81.2190 129.1890 171.4940 171.4940 171.4940 16485376 "p99 171 ms"
3 92.0180 142.0000 183.2070 183.2070 183.2070 12531212 "p99 183 ms"
2 56.1390 95.3680 144.1440 144.5910 144.5910 44225 "p99 144 ms"
1 20.0200 37.5830 71.1220 86.5890 86.5890 10275941 "p99 71.1 ms"
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
