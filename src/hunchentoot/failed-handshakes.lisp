(in-package #:hunchentoot-recycling-taskmaster)

;;;; TLS handshakes that failed.  That is the client's doing, or its settings', and no error of the
;;;; server: they are counted by kind, and told seldom.

(defun make-failed-handshakes ()
  "Counters of handshakes that failed by kind, an alist."
  (loop for kind in (handshake-failure-kinds)
        collect (cons kind (make-counter))))

(defun handshake-statistics (acceptor)
  "What STATS tells of handshakes with ACCEPTOR that failed, a plist."
  (counted-statistics acceptor 'taskmaster-failed-handshakes :handshakes-failed :handshakes-failed-by))

(defmethod note-failed-handshake ((taskmaster recycling-taskmaster) condition)
  "Counts, and tells, that CONDITION has ended a handshake of TASKMASTER."
  (let ((kind (handshake-failure-kind condition)))
    (case kind
      ((nil)                            ; no client's doing: in the message log, as Hunchentoot does
       (when hunchentoot:*log-lisp-errors-p*
         (complain (hunchentoot:taskmaster-acceptor taskmaster)
                   hunchentoot:*lisp-errors-log-level* "~A" condition)))
      (:expired)                        ; by the sentinel, which has counted it
      (t
       (counter-add (cdr (assoc kind (taskmaster-failed-handshakes taskmaster))) 1)
       (tell-of-failed-handshake taskmaster condition)))))
