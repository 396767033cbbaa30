(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Timers that wait for their moment.
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
;;;; first one moves as many entries as the heap has levels, 17 for 100,000, in two vectors.  No
;;;; timer moves because of its distance in time, as from wheel to wheel, and a cancelled one is not
;;;; kept.
;;;;
;;;; The alarm has a moment of its own; the thread or the descriptor gets it outside the lock.
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
between.  They are late by that much at most.")

(defstruct (timers (:include opaque) (:constructor make-timers ()) (:copier nil))
  "The timers of an engine.  Those that are pending stand in DEADLINES and ENTRIES, at the same
places."
  (lock (bt:make-lock "timers") :read-only t)
  (deadlines (make-array 64 :element-type 'moment :initial-element 0)
   :type (simple-array moment (*)))
  (entries (make-array 64 :initial-element nil) :type simple-vector)
  (count 0 :type fixnum)
  (closed-p nil)                        ; new timers are dropped
  (alarm +never+ :type moment)          ; when it rings, or has rung last
  ;; A thread is about to set the alarm to that moment, :ONCE, or :AGAIN, because it was changed
  ;; since.
  (setting nil :type (member nil :once :again))
  ;; Notified with the alarm; see timer-thread.lisp.
  (changed (bt:make-condition-variable) :read-only t)
  ;; The thread that calls the functions in the blocking engine, or what is to become of it, under
  ;; the lock of the engine; see timer-thread.lisp.
  (thread nil)
  ;; Statistics, since the start:
  (made 0 :type fixnum)
  (run 0 :type fixnum)
  (failed 0 :type fixnum)
  (cancelled 0 :type fixnum)
  (dropped 0 :type fixnum))

(defstruct (timer (:include opaque) (:constructor make-timer (timers function)) (:copier nil))
  "A function to be called once, at a moment.  SCHEDULE returns it."
  (timers nil :type timers :read-only t)
  (function nil)
  (place -1 :type fixnum)
  (number 0 :type fixnum))              ; of two that are due at once the lower one is first

(defmacro with-timers ((timers) &body body)
  "Runs BODY, which is short and waits for nothing, under the lock of TIMERS, whole."
  `(with-lock-briefly ((timers-lock ,timers))
     ,@body))

;;; The heap.  All of it under the lock.

(declaim (inline due-before-p))
(defun due-before-p (deadline timer other-deadline other)
  "True when TIMER, due at DEADLINE, comes before OTHER, due at OTHER-DEADLINE."
  (declare (type moment deadline other-deadline))
  (or (< deadline other-deadline)
      (and (= deadline other-deadline)
           (< (timer-number timer) (timer-number other)))))

(declaim (inline put-timer))
(defun put-timer (timers place deadline timer)
  (setf (aref (timers-deadlines timers) place) deadline
        (svref (timers-entries timers) place) timer
        (timer-place timer) place))

(defun rise (timers place deadline timer)
  "Puts TIMER, due at DEADLINE, at the free PLACE, or above that as long as it comes before the
timer there."
  (declare (type fixnum place))
  (loop while (plusp place)
        do (let* ((parent (ash (1- place) -1))
                  (other (svref (timers-entries timers) parent))
                  (other-deadline (aref (timers-deadlines timers) parent)))
             (unless (due-before-p deadline timer other-deadline other)
               (return))
             (put-timer timers place other-deadline other)
             (setf place parent)))
  (put-timer timers place deadline timer))

(defun first-child (timers place)
  "Of the two places below PLACE, the one whose timer comes first; NIL if there is none."
  (declare (type fixnum place))
  (let* ((left (1+ (* 2 place)))
         (right (1+ left))
         (deadlines (timers-deadlines timers))
         (entries (timers-entries timers)))
    (cond ((>= left (timers-count timers)) nil)
          ((and (< right (timers-count timers))
                (due-before-p (aref deadlines right) (svref entries right)
                              (aref deadlines left) (svref entries left)))
           right)
          (t left))))

(defun free-bottom (timers place)
  "Moves timers up from below PLACE, which is free.  Returns the place at the bottom that is free
then."
  (loop for child = (first-child timers place)
        while child
        do (put-timer timers place (aref (timers-deadlines timers) child)
                      (svref (timers-entries timers) child))
           (setf place child)
        finally (return place)))

(defun remove-timer (timers place)
  "Takes the timer at PLACE out of TIMERS, and returns its function, which the timer no longer
holds."
  (let* ((last (decf (timers-count timers)))
         (deadline (aref (timers-deadlines timers) last))
         (moved (svref (timers-entries timers) last))
         (removed (svref (timers-entries timers) place)))
    (setf (svref (timers-entries timers) last) nil
          (timer-place removed) -1)
    (unless (= place last)
      ;; The last one belongs near the bottom, so it is cheaper to let it rise from there, even
      ;; above PLACE.
      (rise timers (free-bottom timers place) deadline moved))
    (shiftf (timer-function removed) nil)))

(defun full-heap-p (timers)
  (= (timers-count timers) (length (timers-entries timers))))

(defun grow-heap (timers)
  "Makes room for twice as many in TIMERS.  Call it without the lock and with interrupts enabled;
otherwise a lack of memory would end the process."
  (let* ((size (* 2 (length (timers-entries timers))))
         (deadlines (make-array size :element-type 'moment :initial-element 0))
         (entries (make-array size :initial-element nil)))
    (with-timers (timers)
      (when (< (length (timers-entries timers)) size) ; another thread may have made it
        (setf (timers-deadlines timers) (replace deadlines (timers-deadlines timers))
              (timers-entries timers) (replace entries (timers-entries timers)))))))

(defun enter-timer (timers timer deadline)
  (setf (timer-number timer) (incf (timers-made timers)))
  (rise timers (1- (incf (timers-count timers))) deadline timer))

;;; The alarm, under the lock, too.  A caller that is to set it does so outside; see SET-ALARM.

(defun alarm-moment (deadline)
  "When the alarm rings for DEADLINE."
  (declare (type moment deadline))
  (let ((quantum *alarm-microseconds*))
    (declare (type (integer 1 1000000) quantum))
    (* quantum (ceiling deadline quantum))))

(defun claim-alarm (timers moment)
  "Moves the alarm of TIMERS to MOMENT if it would ring later.  True if the caller is to set it."
  (declare (type moment moment))
  (when (< moment (timers-alarm timers))
    (setf (timers-alarm timers) moment)
    (eq :once (setf (timers-setting timers)
                    (if (timers-setting timers) :again :once)))))

(defun end-setting (timers)
  "True if the caller, which has set the alarm of TIMERS, need not do so again."
  (with-timers (timers)
    (null (setf (timers-setting timers)
                ;; Comparing moments is not enough: the alarm may have rung meanwhile, and may be
                ;; needed for the same moment again.
                (if (eq :again (timers-setting timers)) :once nil)))))

(defun claim-next-alarm (timers now)
  "Moves the alarm of TIMERS, if it has rung by NOW, to the first of them.  True if the caller is
to set it."
  (declare (type moment now))
  (when (<= (timers-alarm timers) now)
    (setf (timers-alarm timers) +never+))
  (and (plusp (timers-count timers))
       (claim-alarm timers (alarm-moment (aref (timers-deadlines timers) 0)))))

;;; The operations of the engine

(defun add-timer (timers timer deadline)
  "Makes TIMER one of TIMERS, due at DEADLINE; drops it if TIMERS are closed.  Returns :FULL if
there is no room, and nothing was done; :SET if the caller is to set the alarm; else NIL."
  (with-timers (timers)
    (cond ((timers-closed-p timers)
           (setf (timer-function timer) nil)
           (incf (timers-dropped timers))
           nil)
          ((full-heap-p timers)
           :full)
          (t
           (enter-timer timers timer deadline)
           (when (and (zerop (timer-place timer))
                      (claim-alarm timers (alarm-moment deadline)))
             :set)))))

(defun take-due-timer (timers now)
  "The function of the first of TIMERS if it is due at NOW, for the caller to call; else NIL.
The second value is :DUE if another one is due as well, which another thread has to take; :SET if
the caller is to set the alarm; else NIL."
  (declare (type moment now))
  (with-timers (timers)
    (flet ((due-p ()
             (and (plusp (timers-count timers))
                  (<= (aref (timers-deadlines timers) 0) now))))
      (values (when (due-p)
                (incf (timers-run timers))
                (remove-timer timers 0))
              (cond ((due-p) :due)
                    ((claim-next-alarm timers now) :set))))))

(defun cancel-timer-of (timers timer)
  "Takes TIMER out of TIMERS.  True if it was pending."
  (with-timers (timers)
    (unless (minusp (timer-place timer))
      (remove-timer timers (timer-place timer))
      (incf (timers-cancelled timers))
      t)))

(defun close-timers (timers)
  "Drops TIMERS, and those that are scheduled from now on.  Does nothing the second time."
  (with-timers (timers)
    (setf (timers-closed-p timers) t)
    (incf (timers-dropped timers) (timers-count timers))
    ;; Longer than a lock is held otherwise, once in the life of an engine that ends.
    (loop until (zerop (timers-count timers))
          do (remove-timer timers (1- (timers-count timers))))
    (bt:condition-notify (timers-changed timers))))

(defun count-failed-timer (timers)
  (with-timers (timers)
    (incf (timers-failed timers))))

;;; Statistics

(defun no-timer-statistics ()
  "The TIMER-STATISTICS of an engine that had no timer."
  (list :pending 0 :run 0 :failed 0 :cancelled 0 :dropped 0))

(defun timer-statistics (timers)
  "A plist: how many of TIMERS are pending; how many, since the start, had their function called, of
which some failed; were cancelled; were dropped."
  (with-timers (timers)
    (list :pending (timers-count timers)
          :run (timers-run timers)
          :failed (timers-failed timers)
          :cancelled (timers-cancelled timers)
          :dropped (timers-dropped timers))))
