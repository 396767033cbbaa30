set encoding utf8
set terminal svg size 860,292 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-file1m-0ms-50-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1849
set tmargin at screen 0.7877
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
5 1129.5280 1072.3010 1258.3360 13840175 "1,130"
4 1207.1590 1084.4080 1238.6120 16027569 "1,207"
3 453.2820 451.3660 479.1420 1402304 "453"
2 1214.3240 1053.1850 1352.4880 3046706 "1,214"
1 1214.6710 1102.5630 1358.4620 44225 "1,215"
END
$cpu << END
5 904.4150 864.9290 1067.3160 13840175 "904"
4 907.6110 875.2030 1033.5450 16027569 "908"
3 2274.2110 2215.3210 2340.1950 1402304 "2,274"
2 894.1180 793.6510 1035.4610 3046706 "894"
1 813.3010 724.9540 983.9710 44225 "813"
END
set multiplot title 'TLS, keep-alive, file of 1 MiB, 50 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:1698.0775]
set format x '%.0s %c'
set xtics autofreq 500.0000
plot $rate using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $rate using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $rate using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset ytics
unset label
set lmargin at screen 0.615
set rmargin at screen 0.980
set title "{/:Bold CPU per request}  (lower is better)"
set xlabel 'us' textcolor '#424242'
set xrange [0:2925.2438]
set format x '%.0s %c'
set xtics autofreq 500.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
