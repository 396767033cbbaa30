(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; A wait with a limit computes its end once, as a moment of MILLISECONDS.  A signal may cut a
;;;; system call short.  If each retry began with the whole limit, the wait might never end.

(defun as-milliseconds (seconds)
  "SECONDS, a real, in milliseconds, an integer; NIL for NIL, which is never."
  (and seconds (ceiling (* 1000 seconds))))

(defun end-after (seconds)
  "The moment of MILLISECONDS that is SECONDS, a real, from now; NIL for NIL, which is never."
  (and seconds (+ (milliseconds) (as-milliseconds seconds))))

(defun milliseconds-left (end)
  "The number of milliseconds, an integer, until END, a moment of MILLISECONDS; 0 if END has passed;
NIL for NIL, which is never."
  (and end (max 0 (- end (milliseconds)))))

(defun seconds-to-next-look (left period)
  "The number of seconds until the next check.  LEFT milliseconds remain, or NIL for no limit.
PERIOD is as for WAIT-UNTIL."
  (let ((period (if (functionp period) (funcall period) period)))
    (cond ((null left) period)
          (period (min period (/ left 1000)))
          (t (/ left 1000)))))

;;; An interrupt may last long, for example if it enters the debugger.  If its thread held a lock
;;; meanwhile, every other thread that needs the lock would stop.  So all waits for a condition
;;; variable use these two functions, which run interrupts without the lock.

(defun wait-until (predicate condition-variable lock seconds period)
  "Waits up to SECONDS, a real or NIL for no limit, until PREDICATE is true; returns its last value.
Calls PREDICATE, a function without arguments, with LOCK held and interrupts deferred: at first,
when CONDITION-VARIABLE is notified, and every PERIOD.  PERIOD is a number of seconds, a real, or
NIL for never; or a function that returns either, called with LOCK held before each wait.  A period
is needed if several threads wait and a notification wakes only one.  Interrupts run if the caller
allows them, but never while the current thread holds LOCK."
  (let ((end (end-after seconds)))
    (with-lock-except-in-waits (lock)
      (loop for value = (funcall predicate)
            for left = (milliseconds-left end)
            until (or value (eql left 0))
            do (waiting (wait-on condition-variable lock (seconds-to-next-look left period)))
            finally (return value)))))

(defun wait-once (predicate condition-variable lock period)
  "Waits like WAIT-UNTIL, with LOCK held, until PREDICATE is true, but only once: until
CONDITION-VARIABLE is notified or PERIOD is over.  The wait may end early, so the caller needs a
loop that checks everything that may have changed."
  (let ((waited-p nil))
    (wait-until (lambda () (or (funcall predicate) (shiftf waited-p t)))
                condition-variable lock nil period)))

#-sbcl
(defun join-thread (thread seconds)
  "Waits up to SECONDS, a real or NIL for no limit, for the end of THREAD, normal or not.  True if
it has ended."
  ;; ECL and ABCL cannot join a thread with a timeout, so this function polls.
  (wait-until (lambda () (not (bt:thread-alive-p thread)))
              (bt:make-condition-variable) (bt:make-lock "join") seconds 1/100))
