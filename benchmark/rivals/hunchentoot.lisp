(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "hunchentoot" (lisp-rival)
  :label "Hunchentoot"
  :color "#1565c0"
  :sets '(:quick :standard)
  :parameters (format nil "easy-acceptor, over TLS easy-ssl-acceptor, with its default taskmaster: ~
                           at most 100 threads, 20 more wait")
  :system "hunchentoot"
  :server "hunchentoot"
  :tls "'hunchentoot:easy-ssl-acceptor"
  :arguments "'hunchentoot:easy-acceptor")

(define-rival "hunchentoot-unlimited" (lisp-rival)
  :label "Hunchentoot, no limit"
  :color "#64b5f6"
  :parameters "easy-acceptor, one thread per connection without a limit of their number"
  :system "hunchentoot"
  :server "hunchentoot"
  :arguments "'hunchentoot:easy-acceptor
    :taskmaster (make-instance 'hunchentoot:one-thread-per-connection-taskmaster
                               :max-thread-count nil :max-accept-count nil)")
