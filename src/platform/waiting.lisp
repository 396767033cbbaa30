(in-package #:hunchentoot-recycling-taskmaster.platform)

(defun as-milliseconds (seconds)
  "SECONDS, a real or NIL for never, as an integer, or NIL."
  (and seconds (ceiling (* 1000 seconds))))

(defun wait-until (predicate condition-variable lock seconds period)
  "Waits up to SECONDS, a real or NIL for ever, until PREDICATE, called under LOCK, is true; returns
its last value.  Looks when CONDITION-VARIABLE is notified, and every PERIOD, a real number of
seconds: several may wait, and only one is notified."
  (let ((end (and seconds (+ (milliseconds) (as-milliseconds seconds)))))
    (bt:with-lock-held (lock)
      (loop for value = (funcall predicate)
            for left = (and end (- end (milliseconds)))
            until (or value (and left (<= left 0)))
            do (wait-on condition-variable lock (if left (min period (/ left 1000)) period))
            finally (return value)))))
