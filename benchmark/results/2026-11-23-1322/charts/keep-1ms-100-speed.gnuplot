set encoding utf8
set terminal svg size 860,484 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-1ms-100-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set label 1 '† does not measure what the others do: see the report' at screen 0.02,0.0227 left font ',12' textcolor '#424242'
set bmargin at screen 0.1570
set tmargin at screen 0.8719
set yrange [0.4:10.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
10 67836.1640 64178.6700 76141.4400 10395294 "67,836"
9 38865.2970 35892.9730 45525.9500 13840175 "38,865"
8 31994.0880 25160.8130 38104.9060 16027569 "31,994"
7 48663.1330 30347.4040 57120.8950 8323072 "48,663"
6 18595.2290 14692.4080 21226.9120 1402304 "18,595"
5 19913.7660 18854.9340 20178.0860 6600182 "19,914"
4 1686.3420 1677.8750 1690.3670 16485376 "1,686"
3 31374.4650 20742.0570 33394.9260 12531212 "31,374"
2 41632.8240 39482.5660 44247.5080 44225 "41,633"
1 41011.5080 37238.6560 42179.2230 10275941 "41,012"
END
$cpu << END
10 10.0970 8.6450 10.3590 10395294 "10.1"
9 30.5800 25.5190 33.0400 13840175 "30.6"
8 38.9990 33.2630 42.9170 16027569 "39.0"
7 20.0980 19.2610 28.2010 8323072 "20.1"
6 80.9570 69.4100 99.4790 1402304 "81.0"
5 75.0820 73.6990 79.6550 6600182 "75.1"
4 76.5160 73.3570 79.4820 16485376 "76.5"
3 40.4260 38.7230 43.1410 12531212 "40.4"
2 21.3740 20.2960 23.3650 44225 "21.4"
1 24.8140 21.9540 29.3590 10275941 "24.8"
END
set multiplot title 'keep-alive, handler of 1 ms, 100 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'our engine alone' 7, 'Hunchentoot' 6, 'Hunchentoot, no limit' 5, 'Woo, 1 per core †' 4, 'Woo, 100 workers †' 3, 'Go net/http †' 2, 'Node, 1 per core †' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:95176.8000]
set format x '%.0s %c'
set xtics autofreq 20000.0000
plot $rate using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $rate using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $rate using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset ytics
unset label
set lmargin at screen 0.615
set rmargin at screen 0.980
set title "{/:Bold CPU per request}  (lower is better)"
set xlabel 'us' textcolor '#424242'
set xrange [0:124.3487]
set format x '%g'
set xtics autofreq 50.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
