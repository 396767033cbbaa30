;; The version of every system of this repository, which the .asd files read.
"0.1.0"
