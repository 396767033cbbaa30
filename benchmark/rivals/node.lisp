(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defclass node (program-rival)
  ()
  (:default-initargs
   :services '(:plain :later)
   :finder (lambda () (find-program "node"))
   :version (lambda () (program-version "node" "--version"))
   :caveats (list :short-wait
                  (format nil "its timers go in steps of a millisecond, so a wait of 1 ms may take ~
                               2: its clients wait for that, which is not what a request costs")))
  (:documentation "Node with some number of processes."))

(defun node-arguments (processes)
  "What follows the program: a function, as ARGUMENTS of a program rival are, for PROCESSES."
  (lambda (port delay-ms directory)
    (declare (ignore directory))
    (list (server-file "server.js") port delay-ms *slow-ms* (served-files) (backlog) processes)))

(define-rival "node-1" (node)
  :label "Node, 1 process"
  :color "#c5e1a5"
  :sets '()
  :parameters "the http module in one process; idle connections kept; a delay by setTimeout"
  :arguments (node-arguments 1))

(define-rival "node-cores" (node)
  :label "Node, 1 per core"
  :color "#9ccc65"
  :parameters (format nil "the http module in a cluster of one process per core; idle connections ~
                           kept; a delay by setTimeout")
  :arguments (node-arguments (cores)))
