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

(defun woo-caveats (workers)
  "What the figures of Woo with WORKERS do not mean."
  (list :wait (format nil "Woo calls handlers in its event loops and offers no deferred answer, so ~
                           while one waits, its worker serves nobody else: ~d worker~:p give at ~
                           most ~:*~d answer~:p in the time of one wait, whatever a request costs"
                      workers)))

(defun woo-parameters (workers)
  "How Woo with WORKERS is set up."
  (format nil "worker-num ~d; a listen queue of 128, the longest that Woo takes" workers))

(define-rival "woo-1" (woo)
  :label "Woo, 1 worker"
  :color "#ffd54f"
  :sets '()
  :parameters (woo-parameters 1)
  :caveats (woo-caveats 1)
  :arguments ":worker-num 1")

(define-rival "woo-cores" (woo)
  :label "Woo, 1 per core"
  :color "#fb8c00"
  :parameters (woo-parameters (cores))
  :caveats (woo-caveats (cores))
  :arguments (format nil ":worker-num ~d" (cores)))

(define-rival "woo-8" (woo)
  :label "Woo, 8 workers"
  :color "#ef6c00"
  :standard-workloads *clack-workloads*
  :parameters (woo-parameters 8)
  :caveats (woo-caveats 8)
  :arguments ":worker-num 8")

;; As many as the others have threads at most.
(define-rival "woo-100" (woo)
  :label "Woo, 100 workers"
  :color "#bf360c"
  :parameters (woo-parameters 100)
  :caveats (woo-caveats 100)
  :arguments ":worker-num 100")
