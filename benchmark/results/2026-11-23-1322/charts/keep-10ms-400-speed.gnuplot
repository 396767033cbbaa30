set encoding utf8
set terminal svg size 860,506 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-10ms-400-speed.svg'
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
10 36548.2770 33229.0940 36802.2340 10395294 "36,548"
9 9238.6300 9155.3950 9575.9340 13840175 "9,239"
8 9118.4030 8629.1460 9330.7030 16027569 "9,118"
7 9508.2260 9338.6800 9581.4910 8323072 "9,508"
6 11594.8390 5861.8240 11755.7890 1402304 "11,595"
5 17795.3480 9757.4440 18673.8280 6600182 "17,795"
4 0.4830 0.0000 126.7740 16485376 "0.48"
3 9323.6680 9179.3950 9398.9930 12531212 "9,324"
2 28560.2850 26264.4000 30484.5310 44225 "28,560"
1 30223.6760 25530.4430 32389.1950 10275941 "30,224"
END
$cpu << END
10 11.1920 8.3560 13.2390 10395294 "11.2"
9 47.7440 43.2260 51.9810 13840175 "47.7"
8 67.8830 64.4170 71.4140 16027569 "67.9"
7 37.5240 28.7250 41.6880 8323072 "37.5"
6 120.6190 118.2380 162.7410 1402304 "121"
5 84.9830 79.8730 120.1860 6600182 "85.0"
4 7500.0000 269.2310 60000.0000 16485376 "7,500"
3 57.7580 49.8570 59.8210 12531212 "57.8"
2 30.0880 26.0690 33.8210 44225 "30.1"
1 30.5510 26.3620 32.4500 10275941 "30.6"
END
set multiplot title 'keep-alive, handler of 10 ms, 400 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'our engine alone' 7, 'Hunchentoot *' 6, 'Hunchentoot, no limit *' 5, 'Woo, 1 per core * †' 4, 'Woo, 100 workers †' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:46002.7925]
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
set xrange [0:75000.0000]
set format x '%.0s %c'
set xtics autofreq 20000.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
