(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The threads of an engine: the trouble of making them, which is logged once while it lasts, the
;;;; threads of its service, and those that are to be joined.

(defun may-launch-p (engine)
  "False for a moment after a thread could not be made, and once the process exits."
  (let ((after (threads-launch-after (engine-threads engine))))
    (and (or (zerop after) (<= after (milliseconds)))
         (not (process-exits-p)))))

(defun note-thread-trouble (engine condition)
  "Logs that CONDITION kept ENGINE from making a thread, unless that was logged and lasts.  No
thread is made before a tick has passed."
  (let ((threads (engine-threads engine)))
    (unless (with-engine (engine)
              (incf (tally-failed (engine-tally engine)))
              (setf (threads-last-error threads) condition
                    (threads-launch-after threads) (+ (milliseconds) (as-milliseconds *tick*)))
              (shiftf (threads-trouble-p threads) t))
      (log-message engine :error "A thread could not be made, and is tried again: ~A" condition))))

(defun thread-trouble-p (engine)
  "True while the last thread of ENGINE that was missing could not be made."
  (threads-trouble-p (engine-threads engine)))

(defun forget-thread-trouble (engine)
  (when (thread-trouble-p engine)
    (let ((threads (engine-threads engine)))
      (with-engine (engine)
        (setf (threads-trouble-p threads) nil
              (threads-launch-after threads) 0)))))

(defparameter *trouble-seconds* 5
  "The trouble of making threads is over if none failed for this number of seconds, even if none
was needed since.")

(defun outlive-thread-trouble (engine)
  "Forgets that a thread could not be made, if no other one was missing for long."
  (when (and (thread-trouble-p engine)
             (< (+ (threads-launch-after (engine-threads engine))
                   (as-milliseconds *trouble-seconds*))
                (milliseconds)))
    (forget-thread-trouble engine)))

(defun thread-made-p (engine function)
  "Calls FUNCTION, which makes a thread for ENGINE.  NIL if it could not: that is counted, and
logged unless it was before."
  (handler-case (call-making-thread function)
    ((or error storage-condition) (condition)
      (note-thread-trouble engine condition)
      nil)
    (:no-error (&rest values)
      (declare (ignore values))
      (forget-thread-trouble engine)
      t)))

(defun call-in-thread (engine name function)
  "Has a new thread called NAME, a string, call FUNCTION, without arguments, for the service of
ENGINE.  True when the thread was made.  NIL when it could not be made, which is counted, and logged
unless it was before; for a moment from then on, without an attempt; and once the process exits."
  (when (may-launch-p engine)
    (thread-made-p engine (lambda () (bt:make-thread function :name name)))))

(defun join-exited-threads (engine &optional (seconds 0))
  "Joins the threads of the workers of ENGINE that have ended, and waits up to SECONDS, a real or
NIL for no limit, for all of them.  A thread that goes on, in code that the program has put
around its life, is left for the next time."
  (let ((left (countdown seconds))
        (threads (engine-threads engine)))
    (dolist (thread (with-engine (engine) (shiftf (threads-exited threads) '())))
      (unless (or (eq thread (bt:current-thread))
                  (join-thread thread (funcall left)))
        (with-engine (engine)
          (push thread (threads-exited threads)))))))
