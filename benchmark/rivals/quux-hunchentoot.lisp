(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "quux-hunchentoot" (lisp-rival)
  :label "quux-hunchentoot"
  :color "#6a1b9a"
  :parameters "easy-acceptor with thread-pooling-taskmaster as it comes"
  :system "quux-hunchentoot"
  :server "hunchentoot"
  :arguments "'hunchentoot:easy-acceptor
    :taskmaster (make-instance 'quux-hunchentoot:thread-pooling-taskmaster)")
