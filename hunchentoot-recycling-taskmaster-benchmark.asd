;;;; The benchmark, which benchmark/README.md explains.

(defsystem "hunchentoot-recycling-taskmaster-benchmark"
  :description "Measures hunchentoot-recycling-taskmaster and other HTTP servers side by side."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  ;; The servers run in processes of their own, those in Lisp on SBCL, as this does.
  :depends-on ("usocket")
  :pathname "benchmark/"
  :serial t
  :components
  ((:file "package")
   (:file "child")                      ; child processes, and what /proc says of them
   (:file "programs")                   ; programs that are found or built
   (:file "postgres")                   ; a PostgreSQL of our own
   (:file "server")                     ; what a server is, and one that runs
   (:file "servers")                    ; the list
   (:file "workload")                   ; what a workload is, and the list
   (:file "load")                       ; one round: wrk or load.c, and its figures
   (:file "run")                        ; rounds of all, in turns, into a result
   (:file "report")                     ; from a result to report.md and the README's rows
   (:file "chart")
   (:file "profile")
   (:file "main"))                      ; what the make targets call
  :in-order-to ((test-op (test-op "hunchentoot-recycling-taskmaster-benchmark/test"))))

(defsystem "hunchentoot-recycling-taskmaster-benchmark/work"
  :description "The libraries that the measured servers in Lisp use: nothing of its own."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  :depends-on ("postmodern" "cl-who" "yason"))

(defsystem "hunchentoot-recycling-taskmaster-benchmark/test"
  :description "Tests of the benchmark itself."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  :depends-on ("hunchentoot-recycling-taskmaster-benchmark" "fiveam")
  :pathname "benchmark/"
  :components ((:file "test")
               (:module "httparena" :depends-on ("test") :components ((:file "test"))))
  :perform (test-op (operation system)
             (declare (ignore operation system))
             (unless (symbol-call '#:recycling-benchmark-test '#:run-all)
               (error "Some tests of the benchmark failed."))))
