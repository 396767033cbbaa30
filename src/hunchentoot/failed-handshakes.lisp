(in-package #:hunchentoot-recycling-taskmaster)

;;;; TLS handshakes that failed.  The client or its settings cause them, so they are no errors of
;;;; the server: it counts them by kind, and logs them at a limited rate.

(defun make-failed-handshakes ()
  "An alist of the kinds of failed handshakes and their counters."
  (loop for kind in (handshake-failure-kinds)
        collect (cons kind (make-counter))))

(defun handshake-statistics (acceptor)
  "The statistics of failed handshakes with ACCEPTOR, a plist; see STATS."
  (counted-statistics acceptor 'taskmaster-failed-handshakes
                      :handshakes-failed :handshakes-failed-by))

(defmethod note-failed-handshake ((taskmaster recycling-taskmaster) condition)
  "Counts and logs that CONDITION has ended a handshake of TASKMASTER."
  (let ((kind (handshake-failure-kind condition)))
    (case kind
      ((nil)                            ; an error of the server: logged as Hunchentoot does
       (when hunchentoot:*log-lisp-errors-p*
         (complain (hunchentoot:taskmaster-acceptor taskmaster)
                   hunchentoot:*lisp-errors-log-level* "~A" condition)))
      (:expired)                        ; the sentinel ended it, and has counted it
      (t
       (counter-add (cdr (assoc kind (taskmaster-failed-handshakes taskmaster))) 1)
       (tell-of-failed-handshake taskmaster condition)))))
