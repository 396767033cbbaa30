(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Any other Lisp, with the operations that usocket has everywhere.

(defun clear-stack ()
  "Has no effect: this Lisp cannot clear its stack."
  nil)

(defun milliseconds ()
  "The time in milliseconds, an integer, of the Lisp's real-time clock."
  (values (floor (* 1000 (get-internal-real-time)) internal-time-units-per-second)))

(defun universal-milliseconds ()
  "The universal time in milliseconds, an integer."
  (* 1000 (get-universal-time)))

(defun microseconds ()
  "The time in microseconds, an integer, of the Lisp's real-time clock."
  (values (floor (* 1000000 (get-internal-real-time)) internal-time-units-per-second)))

(defun processor-count ()
  "The assumed number of processors: 2, since this Lisp cannot tell."
  2)

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real or NIL for no limit, for a notification of
CONDITION-VARIABLE, and takes LOCK again.  The wait may end early, so the caller checks its
condition in a loop."
  (bt:condition-wait condition-variable lock :timeout seconds))

(defun %wake-listener (listener)
  (declare (ignore listener))
  nil)

(defun %await-input (usocket until)
  (loop for left = (milliseconds-left until)
        for ready = (usocket:wait-for-input usocket :timeout (and left (/ left 1000)) :ready-only t)
        do (cond (ready (return t))
                 ((eql left 0) (return nil)))))

(defun %limit-waits (usocket seconds)
  (setf (usocket:socket-option usocket :receive-timeout) seconds))

(defun %shut-down (usocket direction)
  (unless (eq direction :output) (usocket:socket-shutdown usocket :input))
  (unless (eq direction :input) (usocket:socket-shutdown usocket :output))
  t)
