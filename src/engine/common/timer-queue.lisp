(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Timers: functions that a thread of an engine calls once, at a moment.
;;;;
;;;;   a timer is   its place    its function   because
;;;;   pending      0 or above   is there       its moment is to come, or no thread took it yet
;;;;   taken        -1           gone           the thread that took it calls it
;;;;   cancelled    -1           gone           a program no longer wants it
;;;;   dropped      -1           gone           its engine stops, or had stopped before
;;;;
;;;; Each changes once, under the lock of the timers, from pending to one of the others.
;;;;
;;;; They are a binary heap, and not a wheel of slots.  The alarm rings once, for the first
;;;; deadline, which is at hand here; a wheel would have to search for it, or tick although nothing
;;;; is due.  A new deadline is later than most others, so it stays near the bottom.  To take the
;;;; first one moves as many entries as the heap has levels, 17 for 100,000.  No timer moves because
;;;; of its distance in time, as from wheel to wheel, and a cancelled one is not kept.
;;;;
;;;;   engine    the alarm is                       its event comes to    functions are called by
;;;;   ready     a timer descriptor in the poller   a worker that waits   that worker, and others
;;;;                                                                      where one blocks
;;;;   blocking  a rest of the sentinel             the sentinel          a worker that it makes
;;;;                                                                      for it, in turn
;;;;
;;;;   Invariant: while a timer is pending, the alarm is set to a moment no later than the quantum
;;;;   after its deadline, or a thread that got the alarm or was called for it has yet to look.

(defconstant +never+ (1- (ash 1 61))
  "A moment after all others.")

(defconstant +most-microseconds+ (ash 1 60)
  "A longer delay never ends.")

(deftype moment ()
  "A moment of MICROSECONDS."
  '(unsigned-byte 62))

(defparameter *alarm-microseconds* 250
  "The alarm is set to multiples of this, so that it rings once for all timers that are due in
between: an alarm interrupts a processor, which in a virtual machine costs as much as a small
request.  They are late by that much at most.")

(defstruct (timers (:include opaque) (:constructor make-timers ()) (:copier nil))
  "The timers of an engine.  Those that are pending are the first COUNT of ENTRIES."
  (lock (bt:make-lock "timers") :read-only t)
  (entries (make-array 64 :initial-element nil) :type simple-vector)
  (count 0 :type fixnum)
  (closed-p nil)                        ; new timers are dropped
  (alarm +never+ :type moment)          ; when it rings, or has rung last
  ;; Makes the alarm ring at a moment; a function of that, called under the lock, and never once the
  ;; timers are closed.  NIL before the start.
  (set-clock nil :type (or null function))
  ;; Statistics, since the start:
  (made 0 :type fixnum)
  (run 0 :type fixnum)
  (failed 0 :type fixnum))

(defstruct (timer (:include opaque) (:constructor make-timer (timers deadline function))
                  (:copier nil))
  "A function to be called once, at a moment.  SCHEDULE returns it."
  (timers nil :type timers :read-only t)
  (deadline 0 :type moment :read-only t)
  (function nil)
  (place -1 :type fixnum)
  (number 0 :type fixnum))              ; of two that are due at once the lower one is first

(defmacro with-timers ((timers) &body body)
  "Runs BODY, which is short and waits for nothing, under the lock of TIMERS, whole."
  `(with-lock-briefly ((timers-lock ,timers))
     ,@body))

;;; The heap, under the lock

(declaim (inline due-before-p put-timer))
(defun due-before-p (timer other)
  "True when TIMER comes before OTHER."
  (or (< (timer-deadline timer) (timer-deadline other))
      (and (= (timer-deadline timer) (timer-deadline other))
           (< (timer-number timer) (timer-number other)))))

(defun put-timer (timers place timer)
  (setf (svref (timers-entries timers) place) timer
        (timer-place timer) place))

(defun rise (timers place timer)
  "Puts TIMER at the free PLACE, or above that as long as it comes before the timer there."
  (declare (type fixnum place))
  (loop while (plusp place)
        do (let* ((parent (ash (1- place) -1))
                  (other (svref (timers-entries timers) parent)))
             (unless (due-before-p timer other)
               (return))
             (put-timer timers place other)
             (setf place parent)))
  (put-timer timers place timer))

(defun remove-timer (timers place)
  "Takes the timer at PLACE out of TIMERS, and returns its function, which the timer no longer
holds."
  (declare (type fixnum place))
  (let* ((last (decf (timers-count timers)))
         (entries (timers-entries timers))
         (moved (svref entries last))
         (removed (svref entries place)))
    (setf (svref entries last) nil
          (timer-place removed) -1)
    (unless (= place last)
      ;; The last one belongs near the bottom.  So it is cheaper to move others up until a place
      ;; there is free, and to let it rise from that, perhaps above PLACE.
      (loop for left of-type fixnum = (1+ (* 2 place))
            for right of-type fixnum = (1+ left)
            while (< left last)
            do (let ((child (if (and (< right last)
                                     (due-before-p (svref entries right) (svref entries left)))
                                right
                                left)))
                 (put-timer timers place (svref entries child))
                 (setf place child)))
      (rise timers place moved))
    (shiftf (timer-function removed) nil)))

(defun grow-heap (timers)
  "Makes room for twice as many in TIMERS.  Call it without the lock and with interrupts enabled;
otherwise a lack of memory would end the process."
  (let* ((size (* 2 (length (timers-entries timers))))
         (entries (make-array size :initial-element nil)))
    (with-timers (timers)
      (when (< (length (timers-entries timers)) size) ; another thread may have made it
        (setf (timers-entries timers) (replace entries (timers-entries timers)))))))

;;; The alarm, under the lock too

(defun alarm-moment (deadline)
  "When the alarm rings for DEADLINE."
  (declare (type moment deadline))
  (let ((quantum *alarm-microseconds*))
    (declare (type (integer 1 1000000) quantum))
    (* quantum (ceiling deadline quantum))))

(defun set-alarm (timers)
  "Sets the alarm of TIMERS for the first of them."
  (let ((moment (if (zerop (timers-count timers))
                    +never+
                    (alarm-moment (timer-deadline (svref (timers-entries timers) 0))))))
    (setf (timers-alarm timers) moment)
    (when (and (timers-set-clock timers) (< moment +never+))
      (funcall (timers-set-clock timers) moment))))

;;; From any thread

(defun add-timer (timers timer)
  "Makes TIMER one of TIMERS; drops it if TIMERS are closed."
  (loop until (with-timers (timers)
                (cond ((timers-closed-p timers)
                       (setf (timer-function timer) nil)
                       t)
                      ((< (timers-count timers) (length (timers-entries timers)))
                       (setf (timer-number timer) (incf (timers-made timers)))
                       (rise timers (1- (incf (timers-count timers))) timer)
                       (when (< (alarm-moment (timer-deadline timer)) (timers-alarm timers))
                         (set-alarm timers))
                       t)))
        do (grow-heap timers)))

(defun take-due-timer (timers now)
  "The function of the first of TIMERS if it is due at NOW, for the caller to call; else NIL.  The
second value is true if another one is due as well, which another thread has to take; otherwise the
alarm is set for the next."
  (declare (type moment now))
  (with-timers (timers)
    (flet ((due-p ()
             (and (plusp (timers-count timers))
                  (<= (timer-deadline (svref (timers-entries timers) 0)) now))))
      (values (when (due-p)
                (incf (timers-run timers))
                (remove-timer timers 0))
              (cond ((due-p) t)
                    ((<= (timers-alarm timers) now)
                     (set-alarm timers)
                     nil))))))

(defun delay-microseconds (seconds)
  "SECONDS, a real, in microseconds, an integer; 0 for those below."
  (cond ((<= seconds 0) 0)
        ((>= (/ +most-microseconds+ 1000000) seconds)
         (values (ceiling (* 1000000 (rational seconds)))))
        (t +most-microseconds+)))       ; infinity, for one

(defun schedule (engine seconds function)
  "Has FUNCTION, a function without arguments or the name of one, called once, in a thread of
ENGINE, after SECONDS, a real.  The call comes no earlier, and about a quarter of a millisecond
later, so that timers that are due at about the same time share an alarm.  Returns a TIMER.  In the
ready engine a worker calls FUNCTION, so it may block; in the blocking engine one worker at a time
calls all that are due.  Errors in FUNCTION are logged and counted.  When ENGINE stops, pending
timers are dropped, and so are later ones.  Any thread may call this."
  (let* ((timers (engine-timers engine))
         (timer (make-timer timers (+ (microseconds) (delay-microseconds seconds)) function)))
    (add-timer timers timer)
    timer))

(defun cancel (timer)
  "Cancels TIMER: its function is never called, and no longer held.  True if TIMER was pending;
NIL if its function has begun already, or if it was cancelled or dropped before.  Any thread may
call this."
  (let ((timers (timer-timers timer)))
    (with-timers (timers)
      (unless (minusp (timer-place timer))
        (remove-timer timers (timer-place timer))
        t))))

(defun close-timers (timers)
  "Drops TIMERS, and those that are scheduled from now on.  Does nothing the second time."
  (with-timers (timers)
    (setf (timers-closed-p timers) t)
    ;; Longer than a lock is held otherwise, once in the life of an engine that ends.
    (loop until (zerop (timers-count timers))
          do (remove-timer timers (1- (timers-count timers))))))

(defun run-timer (engine function)
  "Calls FUNCTION, of a timer of ENGINE.  An error is logged."
  (let ((timers (engine-timers engine))
        (done-p nil))
    (unwind-protect (handler-case (progn (interruptibly (funcall function))
                                         (setf done-p t))
                      (serious-condition (condition)
                        (log-message engine :error "The function of a timer failed: ~A"
                                     condition)))
      (unless done-p
        (with-timers (timers)
          (incf (timers-failed timers)))))))

(defun timer-statistics (timers)
  "A plist: how many of TIMERS are pending; how many, since the start, had their function called, of
which some failed."
  (with-timers (timers)
    (list :pending (timers-count timers)
          :run (timers-run timers)
          :failed (timers-failed timers))))
