set encoding utf8
set terminal svg size 860,506 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-1ms-400-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set label 2 '* out of the contest: some clients were refused or not served' at screen 0.02,0.0652 left font ',12' textcolor '#424242'
set label 1 '† does not measure what the others do: see the report' at screen 0.02,0.0217 left font ',12' textcolor '#424242'
set bmargin at screen 0.1937
set tmargin at screen 0.8775
set yrange [0.4:10.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
10 123490.1700 113349.5600 126454.5800 10395294 "123,490"
9 42650.1640 40973.3200 44987.7030 13840175 "42,650"
8 23415.0310 16893.7320 25280.5370 16027569 "23,415"
7 64966.8550 54824.8300 75380.9000 8323072 "64,967"
6 21933.0800 13948.9140 22799.6820 1402304 "21,933"
5 19214.3280 16424.5210 19645.6840 6600182 "19,214"
4 1563.5190 1538.9700 1719.0070 16485376 "1,564"
3 43051.6900 39441.9340 46315.2270 12531212 "43,052"
2 64768.6520 55519.7100 68572.6600 44225 "64,769"
1 55460.1500 45298.7460 58938.0900 10275941 "55,460"
END
$cpu << END
10 6.3700 6.0610 6.9780 10395294 "6.37"
9 28.3350 27.1640 29.6690 13840175 "28.3"
8 51.6580 46.3640 62.9090 16027569 "51.7"
7 15.5340 14.3810 16.5290 8323072 "15.5"
6 67.7430 62.8390 106.1060 1402304 "67.7"
5 78.0590 74.5790 92.8000 6600182 "78.1"
4 49.9840 40.6380 71.8750 16485376 "50.0"
3 29.9710 27.0040 32.9340 12531212 "30.0"
2 17.6750 16.8170 20.9870 44225 "17.7"
1 22.5220 21.0010 27.9600 10275941 "22.5"
END
set multiplot title 'keep-alive, handler of 1 ms, 400 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'our engine alone' 7, 'Hunchentoot *' 6, 'Hunchentoot, no limit *' 5, 'Woo, 1 per core †' 4, 'Woo, 100 workers †' 3, 'Go net/http †' 2, 'Node, 1 per core †' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:158068.2250]
set format x '%.0s %c'
set xtics autofreq 50000.0000
plot $rate using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $rate using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $rate using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset ytics
unset label
set lmargin at screen 0.615
set rmargin at screen 0.980
set title "{/:Bold CPU per request}  (lower is better)"
set xlabel 'us' textcolor '#424242'
set xrange [0:132.6325]
set format x '%g'
set xtics autofreq 50.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
