set encoding utf8
set terminal svg size 860,484 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/close-1ms-100-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set label 1 '† does not measure what the others do: see the report' at screen 0.02,0.0227 left font ',12' textcolor '#424242'
set bmargin at screen 0.1570
set tmargin at screen 0.8719
set yrange [0.4:10.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
10 24966.0570 15859.2100 28266.7000 10395294 "24,966"
9 19590.4240 17317.8980 20107.9320 13840175 "19,590"
8 13325.5920 10423.4540 13504.2910 16027569 "13,326"
7 20962.9340 20546.6560 22036.9570 8323072 "20,963"
6 5639.8080 5072.6480 5848.6790 1402304 "5,640"
5 5856.3020 5224.2240 6050.4310 6600182 "5,856"
4 1706.0690 1653.8830 1745.8620 16485376 "1,706"
3 12106.8920 10775.8830 12979.4620 12531212 "12,107"
2 16304.1700 9263.1340 18785.6170 44225 "16,304"
1 15708.4580 10331.8540 16448.1910 10275941 "15,708"
END
$cpu << END
10 19.6820 17.1230 21.2240 10395294 "19.7"
9 45.0440 42.2800 52.2830 13840175 "45.0"
8 85.7370 81.3660 114.0430 16027569 "85.7"
7 33.6100 32.5760 35.9310 8323072 "33.6"
6 233.9130 224.0330 262.9780 1402304 "234"
5 221.4610 216.3400 252.5540 6600182 "221"
4 84.3270 65.3220 101.4020 16485376 "84.3"
3 98.1300 86.2590 108.3410 12531212 "98.1"
2 54.5510 47.5770 86.3390 44225 "54.6"
1 75.1670 70.8800 128.8500 10275941 "75.2"
END
set multiplot title 'connection closed after each request, handler of 1 ms, 100 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'our engine alone' 7, 'Hunchentoot' 6, 'Hunchentoot, no limit' 5, 'Woo, 1 per core †' 4, 'Woo, 100 workers †' 3, 'Go net/http †' 2, 'Node, 1 per core †' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:35333.3750]
set format x '%.0s %c'
set xtics autofreq 10000.0000
plot $rate using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $rate using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $rate using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset ytics
unset label
set lmargin at screen 0.615
set rmargin at screen 0.980
set title "{/:Bold CPU per request}  (lower is better)"
set xlabel 'us' textcolor '#424242'
set xrange [0:328.7225]
set format x '%g'
set xtics autofreq 100.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
