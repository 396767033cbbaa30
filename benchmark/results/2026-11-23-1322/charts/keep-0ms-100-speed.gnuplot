set encoding utf8
set terminal svg size 860,496 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-0ms-100-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1089
set tmargin at screen 0.8750
set yrange [0.4:11.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
11 127456.9450 122780.6200 155044.0300 10395294 "127,457"
10 66773.8400 63200.6250 98865.1000 13840175 "66,774"
9 46656.2200 35630.4000 47458.9900 16027569 "46,656"
8 116310.6640 103186.9300 128474.9700 8323072 "116,311"
7 21353.9960 19549.2000 22280.3460 1402304 "21,354"
6 24101.0680 18678.5920 25494.3000 6600182 "24,101"
5 69980.9100 66918.4450 85215.5300 16485376 "69,981"
4 47574.2660 35657.6170 53399.1130 12531212 "47,574"
3 99596.8000 81967.1800 125653.3360 3046706 "99,597"
2 59470.3800 55655.2200 63293.3700 44225 "59,470"
1 52216.7030 43354.4200 58874.3600 10275941 "52,217"
END
$cpu << END
11 6.4240 5.5940 6.9480 10395294 "6.42"
10 15.8470 11.0220 16.8900 13840175 "15.8"
9 26.3880 25.0080 33.2700 16027569 "26.4"
8 7.7350 7.0410 8.8810 8323072 "7.74"
7 67.6460 65.6600 73.8350 1402304 "67.6"
6 57.2640 56.3800 74.5300 6600182 "57.3"
5 15.5670 13.0510 16.6820 16485376 "15.6"
4 25.9280 24.5710 33.8330 12531212 "25.9"
3 9.4660 7.5760 11.6430 3046706 "9.47"
2 18.0100 16.8310 19.1800 44225 "18.0"
1 22.1770 19.9420 27.4220 10275941 "22.2"
END
set multiplot title 'keep-alive, instant handler, 100 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 11, 'ours' 10, 'ours, portable engine' 9, 'our engine alone' 8, 'Hunchentoot' 7, 'Hunchentoot, no limit' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:193805.0375]
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
set xrange [0:93.1625]
set format x '%g'
set xtics autofreq 20.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
