set encoding utf8
set terminal svg size 860,506 font 'DejaVu Sans,13' background '#ffffff'
set output '/work/wt/bench/benchmark/results/2026-11-23-1322/charts/mixed-0ms-200-speed.svg'
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
10 119646.8400 85421.6900 125200.6800 10395294 "119,647"
9 74994.8900 62450.1100 87279.3400 13840175 "74,995"
8 38199.6880 31829.9450 46272.1560 16027569 "38,200"
7 92943.4800 89987.8050 118405.5000 8323072 "92,943"
6 23285.5310 15853.2280 25902.4040 1402304 "23,286"
5 21435.4920 13819.3680 22192.1020 6600182 "21,435"
4 88.3960 88.1120 132.8750 16485376 "88.4"
3 44851.9730 40068.4260 49370.3300 12531212 "44,852"
2 56556.3670 49182.7400 65737.5500 44225 "56,556"
1 37892.8800 32656.4860 42942.6200 10275941 "37,893"
END
$cpu << END
10 6.6940 6.3580 7.7340 10395294 "6.69"
9 13.2470 12.1520 16.5050 13840175 "13.2"
8 29.2510 24.3940 34.2680 16027569 "29.3"
7 10.5770 7.5740 10.7880 8323072 "10.6"
6 58.7300 52.9600 66.6510 1402304 "58.7"
5 66.2000 61.6370 94.4060 6600182 "66.2"
4 111.1110 74.0740 166.6670 16485376 "111"
3 26.1140 21.8270 28.7560 12531212 "26.1"
2 19.3430 16.5190 20.7240 44225 "19.3"
1 34.6990 29.3890 39.0790 10275941 "34.7"
END
set multiplot title 'keep-alive, instant handler beside one of 100 ms for one in ten, 200 connections' font ',14' offset 0,0.3
set ytics scale 0 textcolor '#212121' ('limit (C)' 10, 'ours' 9, 'ours, portable engine' 8, 'our engine alone' 7, 'Hunchentoot *' 6, 'Hunchentoot, no limit *' 5, 'Woo, 1 per core * †' 4, 'Woo, 100 workers †' 3, 'Go net/http' 2, 'Node, 1 per core' 1)
set lmargin at screen 0.220
set rmargin at screen 0.585
set title "{/:Bold Throughput}  (higher is better)"
set xlabel 'requests/s' textcolor '#424242'
set xrange [0:156500.8500]
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
set xrange [0:208.3338]
set format x '%g'
set xtics autofreq 50.0000
plot $cpu using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror fs solid noborder lc rgb variable, \
  $cpu using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \
  $cpu using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced
unset multiplot
