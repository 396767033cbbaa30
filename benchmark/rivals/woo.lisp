(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;; Woo runs handlers inside its event loops, and has no documented way to give
;;; an answer from a timer or another thread: its event loop is a special
;;; variable that other threads see as NIL, so a responder called there fails.
;;; What its users write, and what is measured here, is a handler that blocks;
;;; a timer on the libev loop below Woo's interface would measure libev.

(defclass woo (lisp-rival)
  ()
  (:default-initargs
   :system "woo" :server "woo"
   :note "A delayed handler blocks its whole event loop: Woo offers no timer or deferred answer.")
  (:documentation "Woo with some number of workers."))

(define-rival "woo-1" (woo)
  :label "Woo, 1 worker"
  :color "#ffb300"
  :parameters "worker-num 1"
  :arguments ":worker-num 1")

(define-rival "woo-cores" (woo)
  :label "Woo, 1 per core"
  :color "#fb8c00"
  :parameters "one worker per core"
  :arguments (format nil ":worker-num ~d" (cores)))

(define-rival "woo-8" (woo)
  :label "Woo, 8 workers"
  :color "#ef6c00"
  :parameters "worker-num 8"
  :arguments ":worker-num 8")
