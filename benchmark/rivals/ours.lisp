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
