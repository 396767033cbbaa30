(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; A descriptor that becomes ready at a moment, timerfd_create(2), for SBCL on Linux.

(defun make-timer-descriptor ()
  "A new descriptor, an integer, that becomes readable at the moment that ARM-TIMER-DESCRIPTOR gives
it, and never before the first; or minus an error number."
  (system-call "timerfd_create" sb-alien:int
               (sb-alien:int +clock-monotonic+)
               (sb-alien:int (logior +sock-nonblock+ +sock-cloexec+))))

(defun arm-timer-descriptor (descriptor moment)
  "Lets DESCRIPTOR, of MAKE-TIMER-DESCRIPTOR, become readable at MOMENT, an integer above 0, in
MICROSECONDS, or now if that has passed, and not before.  To a poller that is an event each time,
though nobody reads it.  Returns 0 or minus an error number."
  (declare (type (unsigned-byte 62) moment))
  (multiple-value-bind (seconds microseconds) (floor moment 1000000)
    ;; The struct itimerspec: the period, and the moment.
    (sb-alien:with-alien ((times (array sb-alien:long 4)))
      (setf (sb-alien:deref times 0) 0
            (sb-alien:deref times 1) 0
            (sb-alien:deref times 2) seconds
            (sb-alien:deref times 3) (* 1000 microseconds))
      (system-call "timerfd_settime" sb-alien:int
                   (sb-alien:int descriptor)
                   (sb-alien:int 1)     ; TFD_TIMER_ABSTIME
                   ((* (array sb-alien:long 4)) (sb-alien:addr times))
                   (sb-sys:system-area-pointer (sb-sys:int-sap 0))))))
