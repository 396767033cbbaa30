set encoding utf8
set terminal svg size 860,518 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/keep-0ms-1000-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set label 1 '* out of the contest: some clients were refused or not served' at screen 0.02,0.0212 left font ',12' textcolor '#424242'
set bmargin at screen 0.1467
set tmargin at screen 0.8803
set yrange [0.4:11.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
11 97802.8500 92694.3200 114480.9300 10395294 "97,803"
10 74068.0160 69127.5500 83674.3800 13840175 "74,068"
9 21634.6000 18825.7440 24689.5350 16027569 "21,635"
8 90996.8700 89157.5000 109117.9800 8323072 "90,997"
7 18598.0980 10273.4160 22401.5250 1402304 "18,598"
6 19162.9730 16748.4400 21036.6400 6600182 "19,163"
5 61803.4100 52163.8320 68469.2800 16485376 "61,803"
4 42020.1450 37474.4900 49045.7150 12531212 "42,020"
3 100695.2400 72948.4840 106052.5550 3046706 "100,695"
2 60047.7600 55900.8240 66636.2600 44225 "60,048"
1 49215.7900 41753.5740 50331.8700 10275941 "49,216"
END
$cpu << END
11 8.1500 7.1980 8.4100 10395294 "8.15"
10 14.5520 12.3750 15.2940 13840175 "14.6"
9 45.8210 43.7680 52.1690 16027569 "45.8"
8 9.5720 7.9740 9.8340 8323072 "9.57"
7 78.3740 65.5700 148.3640 1402304 "78.4"
6 74.4980 69.2240 88.7880 6600182 "74.5"
5 18.8130 17.3810 23.1260 16485376 "18.8"
4 29.4410 25.1060 32.6590 12531212 "29.4"
3 9.2680 8.9680 12.1890 3046706 "9.27"
2 18.5790 17.0570 19.8910 44225 "18.6"
1 25.4700 23.8570 30.0920 10275941 "25.5"
END
set multiplot title 'keep-alive, instant handler, 1,000 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 11, 'ours' 10, 'ours, portable engine' 9, 'our engine alone' 8, 'Hunchentoot *' 7, 'Hunchentoot, no limit *' 6, 'Woo, 1 per core' 5, 'Woo, 100 workers' 4, 'nginx' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:143101.1625]
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
set xrange [0:185.4550]
set format x '%g'
set xtics autofreq 50.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
