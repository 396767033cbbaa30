(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "limit" (program-rival)
  :label "limit (C)"
  :family :limit
  :color "#9e9e9e"
  :sets '(:quick :standard)
  :parameters (format nil "one edge-triggered epoll loop per core under SCHED_BATCH, ~
                           TCP_DEFER_ACCEPT, the first read at the accept; a fixed answer, files by ~
                           sendfile; a delay by one timer per loop")
  :note "No server to use, but the most that this machine, its kernel and the load tool give."
  :finder (lambda () (c-program "limit" "limit.c" "answers.c"))
  :arguments (lambda (port delay-ms directory)
               (declare (ignore directory))
               (list port (backlog) (cores) delay-ms *slow-ms* (served-files)))
  :version (lambda () (format nil "built by ~a" (program-version "cc" "--version"))))
