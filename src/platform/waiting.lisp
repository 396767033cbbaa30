(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Every wait that has a limit has an end, a moment of MILLISECONDS that is computed once:
;;;; signals cut waits short, and a wait that begins anew with its whole limit may never end.

(defun as-milliseconds (seconds)
  "SECONDS, a real or NIL for never, as an integer, or NIL."
  (and seconds (ceiling (* 1000 seconds))))

(defun end-after (seconds)
  "The moment of MILLISECONDS that is SECONDS, a real, from now; NIL for NIL, which is never."
  (and seconds (+ (milliseconds) (as-milliseconds seconds))))

(defun milliseconds-left (end)
  "For how many milliseconds END, a moment of MILLISECONDS, is still to come, 0 when it has passed;
NIL for NIL, which is never."
  (and end (max 0 (- end (milliseconds)))))

(defun seconds-to-next-look (left period)
  "How long to wait at a time, where LEFT milliseconds are left, or NIL for no limit, and PERIOD as
for WAIT-UNTIL."
  (let ((period (if (functionp period) (funcall period) period)))
    (cond ((null left) period)
          (period (min period (/ left 1000)))
          (t (/ left 1000)))))

;;; An interrupt may last, as one that brings up a debugger does; if its thread held a lock
;;; meanwhile, every other thread that needs that lock would stand still.  So nobody waits for a
;;; condition variable but by these two.

(defun wait-until (predicate condition-variable lock seconds period)
  "Waits up to SECONDS, a real or NIL for ever, until PREDICATE, called under LOCK and with
interrupts deferred, is true; returns its last value.  Looks when CONDITION-VARIABLE is notified,
and every PERIOD, a real number of seconds, where several threads wait and only one is notified; or
NIL; or a function that returns either, called under LOCK before each wait.  Interrupts run as the
caller allows it, and not while the current thread holds LOCK."
  (let ((end (end-after seconds)))
    (with-lock-except-in-waits (lock)
      (loop for value = (funcall predicate)
            for left = (milliseconds-left end)
            until (or value (eql left 0))
            do (waiting (wait-on condition-variable lock (seconds-to-next-look left period)))
            finally (return value)))))

(defun wait-once (predicate condition-variable lock period)
  "Waits as WAIT-UNTIL does, under LOCK, until PREDICATE is true, but once: until CONDITION-VARIABLE
is notified, for PERIOD at most, and for less now and then.  Call it in a loop that looks at all
that may have changed."
  (let ((waited-p nil))
    (wait-until (lambda () (or (funcall predicate) (shiftf waited-p t)))
                condition-variable lock nil period)))

#-sbcl
(defun join-thread (thread seconds)
  "Waits up to SECONDS, a real or NIL for no limit, for the end of THREAD, however it ends.  True
when it has."
  ;; No other Lisp of ours joins a thread within a time, so this looks again and again.
  (wait-until (lambda () (not (bt:thread-alive-p thread)))
              (bt:make-condition-variable) (bt:make-lock "join") seconds 1/100))

(declaim (inline interrupt-pending-p))
(defun interrupt-pending-p ()
  "True when another thread's interrupt waits until the current thread, which defers it, can be
interrupted; NIL where the Lisp does not tell."
  #+sbcl sb-sys:*interrupt-pending*
  #-sbcl nil)
