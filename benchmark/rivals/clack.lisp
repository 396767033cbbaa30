(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;; Applications of Clack's, served by its handlers; Woo, which serves nothing else, has a file of its own.

(defparameter *clack-workloads*
  '("keep-0ms-100" "close-0ms-100" "browser-0ms-100" "keep-1ms-100" "keep-1ms-400")
  "The names of the workloads under which handlers of Clack's are measured in the standard run.")

(defclass clack-handler (lisp-rival)
  ()
  (:default-initargs :server "clack" :standard-workloads *clack-workloads*)
  (:documentation "A handler of Clack's, called as CLACK:CLACKUP calls it."))

(define-rival "ours-clack" (clack-handler)
  :label "ours, Clack"
  :family :ours
  :color "#ad1457"
  :parameters "clack.handler.recycling:run as it comes, without Clack and Hunchentoot; at most 100 threads"
  :system "clack.handler.recycling"
  :arguments "'clack.handler.recycling:run")

(define-rival "ours-clack-delayed" (clack-handler)
  :label "ours, Clack, delayed"
  :family :ours
  :color "#d81b60"
  :parameters "the same with delayed responses, at once, or after a delay by run-after, without a thread"
  :system "clack.handler.recycling"
  :arguments "'clack.handler.recycling:run :answer (answer-by 'clack.handler.recycling:run-after)")

(define-rival "clack-hunchentoot" (clack-handler)
  :label "Clack's Hunchentoot"
  :color "#5c6bc0"
  :parameters (format nil "Clack's handler for Hunchentoot, its default taskmaster: at most 100 threads, ~
                           20 more wait; a listen queue of 50, which it lets nobody change")
  :system "clack-handler-hunchentoot"
  :arguments "'clack.handler.hunchentoot:run")
