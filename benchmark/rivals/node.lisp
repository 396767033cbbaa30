(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "node" (program-rival)
  :label "Node http"
  :color "#9ccc65"
  :parameters "the http module in one process; idle connections kept; a delay by setTimeout"
  :finder (lambda () (find-program "node"))
  :arguments (lambda (port delay-ms directory)
               (declare (ignore directory))
               (list (server-file "server.js") port delay-ms *slow-ms* (served-files)))
  :version (lambda () (program-version "node" "--version")))
