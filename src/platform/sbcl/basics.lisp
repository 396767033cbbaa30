(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; SBCL on Unix.

(defmacro without-deadline (&body body)
  "Runs BODY, which no deadline of a program's (SB-SYS:WITH-DEADLINE) ends."
  `(sb-sys:with-deadline (:seconds nil :override t) ,@body))

(defmacro uninterruptibly (&body body)
  "Runs BODY; another thread's interrupt or BT:DESTROY-THREAD waits until it is done."
  ;; Deadlines strike who waits for a mutex, be it one of SBCL's own, also where interrupts do not.
  `(sb-sys:without-interrupts (without-deadline ,@body)))

(defmacro deferring-interrupts (&body body)
  "Runs BODY; another thread's interrupt or BT:DESTROY-THREAD waits until that is done, or until
an INTERRUPTIBLY in it.  A wait in the system is cut short, as by any signal."
  `(sb-sys:without-interrupts ,@body))

(defmacro interruptibly (&body body)
  "Runs BODY so that within DEFERRING-INTERRUPTS, too, the thread can be interrupted or destroyed,
before BODY begins if that was to happen already."
  ;; Not by ALLOW-WITH-INTERRUPTS around it all: every lock that is taken would be a place to die.
  `(let ((sb-sys:*allow-with-interrupts* t))
     (sb-sys:with-interrupts ,@body)))

(defun clear-stack ()
  "Clears what calls that have returned have left on the stack of the current thread, where the
collector of garbage would take it for objects in use."
  (sb-sys:scrub-control-stack))

(defmacro with-acquired ((variable acquire release) &body body)
  "Evaluates BODY with VARIABLE bound to the value of the form ACQUIRE, and then, however BODY was
left, the form RELEASE.  These two are evaluated whole: another thread's interrupt or
BT:DESTROY-THREAD waits meanwhile, so that nothing is acquired and not released.  BODY can be
interrupted where the caller can."
  `(sb-sys:without-interrupts
     (let ((,variable (without-deadline ,acquire)))
       (unwind-protect (sb-sys:with-local-interrupts ,@body)
         (without-deadline ,release)))))

(defmacro set-published (place value)
  "Sets PLACE, which other threads read without a lock, to VALUE, an object made for that: whoever
finds it there finds it whole.  What reads PLACE once and then what is in it needs nothing besides:
every processor that we know reads the object after the pointer to it."
  ;; On x86-64 stores are seen in their order, and this is a store and nothing else.
  (let ((fresh (gensym "VALUE")))
    `(let ((,fresh ,value))
       (sb-thread:barrier (:write))
       (setf ,place ,fresh))))

(defconstant +clock-monotonic+ #+linux 1 #+darwin 6 #-(or linux darwin) 4
  "The CLOCK_MONOTONIC of the system's <time.h>.")

(defun milliseconds ()
  "Milliseconds, a fixnum, of a clock that never steps and has no epoch."
  (multiple-value-bind (seconds nanoseconds) (sb-unix::clock-gettime +clock-monotonic+)
    (declare (type (unsigned-byte 40) seconds) (type (unsigned-byte 32) nanoseconds))
    (+ (* 1000 seconds) (floor nanoseconds 1000000))))

(defun microseconds ()
  "Microseconds, a fixnum, of the clock of MILLISECONDS."
  (multiple-value-bind (seconds nanoseconds) (sb-unix::clock-gettime +clock-monotonic+)
    (declare (type (unsigned-byte 40) seconds) (type (unsigned-byte 32) nanoseconds))
    (+ (* 1000000 seconds) (floor nanoseconds 1000))))

#-linux
(defun processor-count ()
  "How many processors the system has online, at least 1."
  (let ((sc-nprocessors-onln 58))
    (max 1 (sb-alien:alien-funcall
            (sb-alien:extern-alien "sysconf" (function sb-alien:long sb-alien:int))
            sc-nprocessors-onln))))

(defmacro with-lock-except-in-waits ((lock) &body body)
  "Evaluates BODY while the current thread holds LOCK and defers interrupts.  In BODY, (WAITING
FORM) evaluates FORM, a call of WAIT-ON, in which the thread can be interrupted where the caller
can."
  (let ((mutex (gensym "MUTEX")))
    `(let ((,mutex ,lock))
       (sb-sys:without-interrupts
         (macrolet ((waiting (form) `(sb-sys:allow-with-interrupts ,form)))
           (unwind-protect (progn (sb-thread:grab-mutex ,mutex)
                                  ,@body)
             ;; An interrupt that left WAIT-ON may have done so without it: then this does nothing.
             (sb-thread:release-mutex ,mutex)))))))

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real or NIL for no limit, for a notification of
CONDITION-VARIABLE, and takes LOCK again.  May return early: call it in a loop around what is waited
for.  Interrupts that the caller allows run where LOCK is not held."
  ;; SBCL defers interrupts itself, save in the system's waits for the notification and for LOCK.
  (bt:condition-wait condition-variable lock :timeout seconds))

(defun join-thread (thread seconds)
  "Waits up to SECONDS, a real or NIL for no limit, for the end of THREAD, however it ends.  True
when it has."
  (when (or (null seconds) (plusp seconds))
    (sb-thread:join-thread thread :default nil :timeout seconds))
  (not (bt:thread-alive-p thread)))

(defun %wake-listener (listener)
  ;; Every accept, now or later, fails with EINVAL on Linux; macOS refuses (ENOTCONN).
  (handler-case
      (progn (sb-bsd-sockets:socket-shutdown (usocket:socket listener) :direction :io) t)
    (sb-bsd-sockets:socket-error () nil)))

(defun %limit-waits (usocket seconds)
  (setf (sb-impl::fd-stream-timeout (socket-octet-stream usocket))
        (and seconds (coerce seconds 'single-float))))

(defun %shut-down (usocket direction)
  (sb-bsd-sockets:socket-shutdown (usocket:socket usocket) :direction direction)
  t)
