set encoding utf8
set terminal svg size 860,496 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/close-0ms-100-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1089
set tmargin at screen 0.8750
set yrange [0.4:11.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
11 28354.1400 26173.0230 32641.5960 10395294 "28,354"
10 22406.1250 21306.5980 27378.5800 13840175 "22,406"
9 17213.7300 15899.5050 19006.3950 16027569 "17,214"
8 27405.5490 26327.9280 30560.6110 8323072 "27,406"
7 5997.5380 5442.1600 6586.0510 1402304 "5,998"
6 5671.0070 5390.2830 6675.9670 6600182 "5,671"
5 17568.5450 13164.4100 17888.3700 16485376 "17,569"
4 13506.5890 11786.1090 15139.9660 12531212 "13,507"
3 24800.3930 23343.2300 27865.0300 3046706 "24,800"
2 16788.9510 14792.7130 18344.6930 44225 "16,789"
1 10876.0800 10465.5070 11866.9270 10275941 "10,876"
END
$cpu << END
11 17.9470 15.6090 19.0020 10395294 "17.9"
10 32.5680 25.7260 35.6070 13840175 "32.6"
9 57.3810 51.5120 64.1280 16027569 "57.4"
8 21.3810 18.9340 21.9690 8323072 "21.4"
7 209.8130 189.7730 228.3380 1402304 "210"
6 224.8950 188.1460 236.5930 6600182 "225"
5 56.8880 55.5660 69.5060 16485376 "56.9"
4 84.1430 75.1810 100.9470 12531212 "84.1"
3 24.9480 23.9120 27.0690 3046706 "24.9"
2 61.4170 55.4550 71.0930 44225 "61.4"
1 116.0950 102.0410 128.5750 10275941 "116"
END
set multiplot title 'connection closed after each request, instant handler, 100 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 11, 'ours' 10, 'ours, portable engine' 9, 'our engine alone' 8, 'Hunchentoot' 7, 'Hunchentoot, no limit' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:40801.9950]
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
set xrange [0:295.7412]
set format x '%g'
set xtics autofreq 50.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
