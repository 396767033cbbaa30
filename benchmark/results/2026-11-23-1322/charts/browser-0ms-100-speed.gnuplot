set encoding utf8
set terminal svg size 860,496 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/browser-0ms-100-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1089
set tmargin at screen 0.8750
set yrange [0.4:11.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
11 119542.0860 77323.3900 152625.2700 10395294 "119,542"
10 67781.6400 58714.9730 73795.3500 13840175 "67,782"
9 42848.5230 31144.8480 46681.5230 16027569 "42,849"
8 118633.9450 110013.8360 121159.3000 8323072 "118,634"
7 14229.0880 8607.0120 16195.4780 1402304 "14,229"
6 15409.1140 9201.6550 15893.7100 6600182 "15,409"
5 56432.8400 46166.9180 61471.3360 16485376 "56,433"
4 36031.3240 30999.3070 41211.2270 12531212 "36,031"
3 90938.1400 61650.6330 115383.4300 3046706 "90,938"
2 46645.1250 27264.2770 54039.4380 44225 "46,645"
1 30956.6110 26300.6130 41635.6050 10275941 "30,957"
END
$cpu << END
11 6.5400 5.6450 8.1460 10395294 "6.54"
10 16.2290 14.5170 19.2160 13840175 "16.2"
9 27.8010 26.4240 40.0330 16027569 "27.8"
8 7.9850 7.8620 8.2620 8323072 "7.99"
7 108.9380 94.8680 121.2360 1402304 "109"
6 107.4030 96.5490 133.4260 6600182 "107"
5 21.2890 18.7760 24.7940 16485376 "21.3"
4 35.5990 30.8020 41.3450 12531212 "35.6"
3 10.2190 8.6170 12.4040 3046706 "10.2"
2 24.8460 20.6740 27.5470 44225 "24.8"
1 37.4570 30.2160 44.7300 10275941 "37.5"
END
set multiplot title 'keep-alive, requests as browsers send them, instant handler, 100 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 11, 'ours' 10, 'ours, portable engine' 9, 'our engine alone' 8, 'Hunchentoot' 7, 'Hunchentoot, no limit' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:190781.5875]
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
set xrange [0:166.7825]
set format x '%g'
set xtics autofreq 50.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
