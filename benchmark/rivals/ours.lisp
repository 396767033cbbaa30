(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;; One entry for each mode that a user may choose.  The first is the default,
;;; the one the report calls ours; a new mode is a new entry.

(defclass ours (lisp-rival)
  ()
  (:default-initargs :family :ours :system "hunchentoot-recycling-taskmaster"
                     :server "hunchentoot")
  (:documentation "A mode of the library in this checkout."))

(define-rival "ours" (ours)
  :label "ours"
  :color "#d32f2f"
  :sets '(:quick :standard)
  :parameters (format nil "parallel-easy-acceptor, over TLS parallel-easy-ssl-acceptor, as they come, ~
                           at most 100 threads")
  :tls "'hunchentoot-recycling-taskmaster:parallel-easy-ssl-acceptor"
  :arguments "'hunchentoot-recycling-taskmaster:parallel-easy-acceptor")

(define-rival "ours-portable" (ours)
  :label "ours, portable engine"
  :color "#f48fb1"
  :parameters "the same with :parking nil, the engine for every platform, at most 100 threads"
  :tls "'hunchentoot-recycling-taskmaster:parallel-easy-ssl-acceptor :parking nil"
  :arguments "'hunchentoot-recycling-taskmaster:parallel-easy-acceptor :parking nil")

(define-rival "ours-no-batch" (ours)
  :label "ours, no batch"
  :color "#e57373"
  :sets '()
  :parameters ":batch-scheduling nil, threads under the system's usual scheduling; at most 100 threads"
  :arguments "'hunchentoot-recycling-taskmaster:parallel-easy-acceptor
    :taskmaster (make-instance 'hunchentoot-recycling-taskmaster:recycling-taskmaster
                               :batch-scheduling nil)")

;;; Replies that come later: from servers/deferred.lisp

(defclass deferring (ours)
  ()
  (:default-initargs :server "deferred" :sets '())
  (:documentation "The library with a handler that defers its reply."))

(define-rival "ours-deferred" (deferring)
  :label "ours, deferred"
  :color "#ff7043"
  :services '(:plain :later :events :messages)
  :parameters (format nil "parallel-easy-acceptor; replies are deferred, and completed at once by the ~
                           same worker; a delay by run-after, without a thread"))

(define-rival "ours-pool" (deferring)
  :label "ours, by a pool"
  :color "#ffab91"
  :parameters (format nil "the same, but what has no delay is completed by one of two other threads")
  :lacks '(:wait "a delay is no affair of the pool"
           :files "files are no affair of the pool"
           :uploads "uploads are no affair of the pool")
  :arguments ":pool t")

(defclass deferring-processes (deferring)
  ((count :initarg :count :reader process-count
          :documentation "How many processes there are."))
  (:documentation "Several processes that share the port."))

(defmethod command ((rival deferring-processes) port delay-ms directory certificate)
  (declare (ignore port delay-ms directory certificate))
  `("sh" "-c" ,(format nil "~{~a ~}wait" (make-list (process-count rival)
                                                    :initial-element "\"$@\" &"))
         "sh" ,@(call-next-method)))

(define-rival "ours-deferred-3" (deferring-processes)
  :label "ours, deferred, 3 processes"
  :color "#d84315"
  :count 3
  :services '(:later :many)
  :parameters "three processes with one port, which the system spreads connections over"
  :arguments ":reuse-port t")
