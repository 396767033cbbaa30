set encoding utf8
set terminal svg size 860,292 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/tls-full-0ms-50-speed.svg'
set border 3 lc '#9e9e9e'
set tics nomirror textcolor '#424242'
set bmargin at screen 0.1849
set tmargin at screen 0.7877
set yrange [0.4:5.6]
set grid xtics lc '#e0e0e0' lt 1
unset key
$rate << END
5 2052.8310 1221.1420 2164.8370 13840175 "2,053"
4 1599.4780 1015.4390 1684.9710 16027569 "1,599"
3 792.9260 525.1460 912.8190 1402304 "793"
2 2018.1370 1336.7240 2140.2200 3046706 "2,018"
1 1684.7020 1068.5690 1865.8550 44225 "1,685"
END
$cpu << END
5 387.9520 368.8430 455.2850 13840175 "388"
4 580.7060 542.0620 614.6340 16027569 "581"
3 1699.7520 1466.8860 1756.8850 1402304 "1,700"
2 368.5380 348.8370 378.7600 3046706 "369"
1 485.9030 444.0880 521.9400 44225 "486"
END
set multiplot title 'TLS, whole handshake for each request, instant handler, 50 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('ours' 5, 'ours, portable engine' 4, 'Hunchentoot' 3, 'nginx' 2, 'Go net/http' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:2706.0462]
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
set xrange [0:2196.1062]
set format x '%.0s %c'
set xtics autofreq 500.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
