set encoding utf8
set terminal svg size 860,292 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-file16k-0ms-50-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1849
set tmargin at screen 0.7877
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
5 24614.7360 24181.6740 24806.6580 13840175 "24,615"
4 18750.7400 16934.4120 19664.8240 16027569 "18,751"
3 1085.1940 1075.1710 1090.3130 1402304 "1,085"
2 36136.9730 33515.6050 36617.6880 3046706 "36,137"
1 23770.0200 22358.7660 23862.5430 44225 "23,770"
END
$cpu << END
5 48.0550 47.7000 48.8720 13840175 "48.1"
4 66.5870 64.3940 72.4420 16027569 "66.6"
3 274.2230 256.7630 348.1890 1402304 "274"
2 29.4190 29.2630 31.5360 3046706 "29.4"
1 46.9130 46.0650 50.7340 44225 "46.9"
END
set multiplot title 'TLS, keep-alive, file of 16 KiB, 50 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:45772.1100]
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
set xrange [0:435.2363]
set format x '%g'
set xtics autofreq 100.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
