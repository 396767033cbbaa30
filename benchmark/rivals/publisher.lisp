(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "publisher" (program-rival)
  :label "limit of events (C)"
  :family :limit
  :color "#9e9e9e"
  :sets '()
  :services '(:events)
  :parameters "one epoll loop that writes the same octets to all subscribers, under SCHED_BATCH"
  :note "No server to use, but the most that this machine and its kernel give."
  :finder (lambda () (c-program "publisher" "publisher.c" "client.c"))
  :arguments (lambda (port delay-ms directory)
               (declare (ignore delay-ms directory))
               ;; Without a number of clients it does not end.
               (list port 0 0 1000))
  :version (lambda () (format nil "built by ~a" (program-version "cc" "--version"))))
