(in-package #:hunchentoot-recycling-taskmaster.engine)

(defstruct (connection (:constructor make-connection (socket &aux (opened (milliseconds)))))
  "One client.  Its worker alone reads and writes the slots, save DEADLINE, which the
sentinel reads: a connection belongs to at most one worker at a time."
  (socket nil :read-only t)
  (opened 0 :type integer :read-only t) ; in MILLISECONDS
  (served 0 :type fixnum)               ; requests answered
  (data nil)                            ; the storey above keeps what it wants here
  ;; When the sentinel is to end the connection, in MILLISECONDS, or NIL; and what for.
  (deadline nil :type (or null integer))
  (deadline-kind nil :type symbol))

(defun call-with-deadline (connection kind seconds thunk)
  "Calls THUNK; if it takes longer than SECONDS, a real or NIL for no limit, the sentinel ends
CONNECTION, so that whoever reads or writes it gets an end of file or an error.  KIND, a
keyword, says what was waited for."
  (when seconds
    (setf (connection-deadline-kind connection) kind
          (connection-deadline connection) (+ (milliseconds) (ceiling (* 1000 seconds)))))
  (unwind-protect (funcall thunk)
    (setf (connection-deadline connection) nil)))

(defun overdue-p (connection now)
  (let ((deadline (connection-deadline connection)))
    (and deadline (< deadline now))))
