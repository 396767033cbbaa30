set encoding utf8
set terminal svg size 860,292 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-resumed-0ms-50-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1849
set tmargin at screen 0.7877
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
5 3205.7290 3049.7680 3344.0020 13840175 "3,206"
4 2512.9510 2504.6000 2673.5480 16027569 "2,513"
3 1017.0970 917.5220 1053.5450 1402304 "1,017"
2 3532.2920 3345.0440 3776.7970 3046706 "3,532"
1 3060.6990 2864.7660 3216.1280 44225 "3,061"
END
$cpu << END
5 325.6970 314.3620 347.3130 13840175 "326"
4 431.0520 409.3460 434.6960 16027569 "431"
3 1488.3270 1432.6380 1683.0070 1402304 "1,488"
2 272.8090 258.7800 276.9930 3046706 "273"
1 331.2660 308.4670 365.6630 44225 "331"
END
set multiplot title 'TLS, resumed connection for each request, instant handler, 50 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:4720.9963]
set format x '%.0s %c'
set xtics autofreq 1000.0000
plot $rate using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $rate using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $rate using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset ytics
unset label
set lmargin at screen 0.615
set rmargin at screen 0.980
set title "{/:Bold CPU per request}  (lower is better)"
set xlabel 'us' textcolor '#424242'
set xrange [0:2103.7587]
set format x '%.0s %c'
set xtics autofreq 500.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
