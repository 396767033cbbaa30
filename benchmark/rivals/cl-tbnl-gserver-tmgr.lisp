(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "cl-tbnl-gserver-tmgr" (lisp-rival)
  :label "gserver-tmgr, 8"
  :color "#ba68c8"
  :parameters "easy-acceptor with gserver-tmgr of 8 threads, as its README has it"
  :system "cl-tbnl-gserver-tmgr"
  :server "hunchentoot"
  :arguments "'hunchentoot:easy-acceptor
    :taskmaster (make-instance 'cl-tbnl-gserver-tmgr.tmgr:gserver-tmgr :max-thread-count 8)")
