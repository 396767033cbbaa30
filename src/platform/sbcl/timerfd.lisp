(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Descriptors that become ready at a given time: timerfd_create(2), for SBCL on Linux.

(defun make-timer-descriptor ()
  "A new descriptor, an integer, that becomes readable at the moment that ARM-TIMER-DESCRIPTOR sets;
or minus an error number."
  (system-call "timerfd_create" sb-alien:int
               (sb-alien:int +clock-monotonic+)
               (sb-alien:int (logior +sock-nonblock+ +sock-cloexec+))))

(defun arm-timer-descriptor (descriptor moment)
  "Makes DESCRIPTOR, of MAKE-TIMER-DESCRIPTOR, readable from MOMENT on, an integer above 0, in
MICROSECONDS; or from now on if MOMENT has passed.  Each time is a new event for a poller, even if
no thread reads DESCRIPTOR.  Returns 0 or minus an error number."
  (declare (type (unsigned-byte 62) moment))
  (multiple-value-bind (seconds microseconds) (floor moment 1000000)
    ;; The struct itimerspec: the period, which is 0, and the moment.
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
