set encoding utf8
set terminal svg size 860,292 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-keep-0ms-100-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1849
set tmargin at screen 0.7877
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
5 53918.4730 38256.6880 62377.6200 13840175 "53,918"
4 33574.0630 30143.7170 37838.8630 16027569 "33,574"
3 15927.5550 10185.3980 17647.2500 1402304 "15,928"
2 54764.5820 50539.9380 89006.0500 3046706 "54,765"
1 43615.2070 25185.8460 57032.4060 44225 "43,615"
END
$cpu << END
5 19.0980 16.8690 21.6110 13840175 "19.1"
4 35.2330 32.9700 37.9770 16027569 "35.2"
3 83.3120 78.3450 97.1570 1402304 "83.3"
2 12.6910 10.7870 14.5950 3046706 "12.7"
1 23.6740 18.4600 29.5700 44225 "23.7"
END
set multiplot title 'TLS, keep-alive, instant handler, 100 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:111257.5625]
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
set xrange [0:121.4462]
set format x '%g'
set xtics autofreq 50.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
