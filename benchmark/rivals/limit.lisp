(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "limit" (program-rival)
  :label "limit (C)"
  :family :limit
  :color "#9e9e9e"
  :quick-p t
  :parameters "one epoll loop per core, a fixed answer; a delay by one timer per loop"
  :note "No server to use, but the most that this machine, its kernel and the load tool give."
  :lacks '(:files "its fixed answer is all that it has"
           :uploads "it answers before a body has come")
  :finder (lambda () (c-program "limit" "limit.c"))
  :arguments (lambda (port delay-ms directory)
               (declare (ignore directory))
               (list port (cores) delay-ms *slow-ms*))
  :version (lambda () (format nil "built by ~a" (program-version "cc" "--version"))))
