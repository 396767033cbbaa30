;;;; Table of contents of the ruler: how it talks to the machine, what it
;;;; compares, how it measures, what it says.  benchmark/README.md explains.

(defsystem "hunchentoot-recycling-taskmaster-benchmark"
  :description "Every rival in one run: load, tables, charts and a report in words."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version "0.1.0"
  :license "BSD-2-Clause"
  ;; The servers run in processes of their own, so neither ours nor any rival
  ;; is loaded here.  The ruler itself runs on SBCL, as they do.
  :depends-on ("usocket"
               (:require "sb-sprof"))   ; for make profile
  :pathname "benchmark/"
  :serial t
  :components
  ((:file "package")
   (:file "conditions")
   (:file "text")                       ; words, numbers with units, tables of tabs
   (:file "process")                    ; child processes and what /proc says of them
   (:file "programs")                   ; finding and building programs
   (:file "tls")                        ; a certificate, and clients that all offer the same
   (:file "rival")                      ; what a server under test is
   (:module "rivals"
    :serial t
    :components ((:file "limit")
                 (:file "ours")
                 (:file "engine")
                 (:file "hunchentoot")
                 (:file "quux-hunchentoot")
                 (:file "cl-tbnl-gserver-tmgr")
                 (:file "clack")
                 (:file "woo")
                 (:file "wookie")
                 (:file "nginx")
                 (:file "go")
                 (:file "node")
                 (:file "ws")
                 (:file "publisher")))
   (:file "workload")                   ; the matrix
   (:file "settings")                   ; what was asked for on the command line
   (:file "measure")                    ; the figures, their names and units
   (:file "load")                       ; wrk, fair, idle
   (:file "lasting")                    ; late answers, events, WebSockets
   (:file "server")                     ; a rival that runs
   (:file "record")                     ; a result: files in a directory
   (:file "machine")                    ; what it was measured on
   (:file "progress")
   (:file "run")                        ; the interleaved rounds
   (:file "plan")                       ; whose turn it is, and how long all takes
   (:file "summary")                    ; medians and ratios
   (:file "words")                      ; who won, by how much
   (:file "coverage")                   ; what was measured, and what not
   (:file "graph")                      ; charts of one workload, by gnuplot
   (:file "scaling")                    ; charts over the number of connections
   (:file "report")
   (:file "readme")
   (:file "compare")
   (:file "flame")                      ; flame graphs
   (:file "profile")
   (:file "main"))
  :in-order-to ((test-op (load-op "hunchentoot-recycling-taskmaster-benchmark")))
  :perform (test-op (operation system)
             (declare (ignore operation system))
             (symbol-call '#:hunchentoot-recycling-taskmaster-benchmark '#:bench)))

(defsystem "hunchentoot-recycling-taskmaster-benchmark/test"
  :description "Tests of the ruler itself, on figures made up for them."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version "0.1.0"
  :license "BSD-2-Clause"
  :depends-on ("hunchentoot-recycling-taskmaster-benchmark" "fiveam")
  :pathname "benchmark/test/"
  :serial t
  :components ((:file "package")
               (:file "figures")                ; reading, writing, selecting
               (:file "results")                ; from samples to cells and ratios
               (:file "words")                  ; who won, who lost
               (:file "files")                  ; tables, reports, README, flame graphs
               (:file "processes")              ; children, and a whole small run
               (:file "tls")                    ; certificates, and connections that are resumed or not
               (:file "lasting"))               ; what our programs for late answers and more notice
  :perform (test-op (operation system)
             (declare (ignore operation system))
             (unless (symbol-call '#:hunchentoot-recycling-taskmaster-benchmark/test '#:run-all)
               (error "Some tests of the benchmark failed."))))
