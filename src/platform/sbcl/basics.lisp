(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; SBCL on Unix.

(defmacro without-deadline (&body body)
  "Runs BODY without the deadlines of programs (SB-SYS:WITH-DEADLINE)."
  `(sb-sys:with-deadline (:seconds nil :override t) ,@body))

(defmacro uninterruptibly (&body body)
  "Runs BODY.  Another thread's interrupt or BT:DESTROY-THREAD waits until BODY has ended, or until
an INTERRUPTIBLY in it.  An interrupt cuts a wait in the system short, as any signal does."
  ;; A deadline can end a wait for a mutex, even SBCL's own, while interrupts are disabled.
  `(sb-sys:without-interrupts (without-deadline ,@body)))

(defmacro interruptibly (&body body)
  "Runs BODY so that the thread can be interrupted or destroyed even within UNINTERRUPTIBLY.
An interrupt that already waits runs before BODY."
  ;; With ALLOW-WITH-INTERRUPTS around all of UNINTERRUPTIBLY, the thread could be destroyed
  ;; wherever it takes a lock.
  `(let ((sb-sys:*allow-with-interrupts* t))
     (sb-sys:with-interrupts ,@body)))

(defun clear-stack ()
  "Clears the unused part of the current thread's stack.  The garbage collector would keep objects
to which old frames there still point."
  (sb-sys:scrub-control-stack))

(defmacro set-published (place value)
  "Sets PLACE, which other threads read without a lock, to VALUE, a new object.  A thread that finds
VALUE in PLACE also sees its contents.  A reader that reads PLACE once needs no barrier: every
supported processor reads an object after the pointer to it."
  ;; On x86-64, other threads see stores in order, so that the barrier costs nothing.
  (let ((fresh (gensym "VALUE")))
    `(let ((,fresh ,value))
       (sb-thread:barrier (:write))
       (setf ,place ,fresh))))

(defconstant +clock-monotonic+ #+linux 1 #+darwin 6 #-(or linux darwin) 4
  "The CLOCK_MONOTONIC of the system's <time.h>.")

(defun milliseconds ()
  "The time in milliseconds, a fixnum, of a monotonic clock without an epoch."
  (multiple-value-bind (seconds nanoseconds) (sb-unix::clock-gettime +clock-monotonic+)
    (declare (type (unsigned-byte 40) seconds) (type (unsigned-byte 32) nanoseconds))
    (+ (* 1000 seconds) (floor nanoseconds 1000000))))

(defun universal-milliseconds ()
  "The universal time in milliseconds, an integer."
  (multiple-value-bind (seconds microseconds) (sb-ext:get-time-of-day)
    (+ (* 1000 (+ seconds 2208988800))  ; until 1970
       (floor microseconds 1000))))

(defun microseconds ()
  "The time in microseconds, a fixnum, of the clock of MILLISECONDS."
  (multiple-value-bind (seconds nanoseconds) (sb-unix::clock-gettime +clock-monotonic+)
    (declare (type (unsigned-byte 40) seconds) (type (unsigned-byte 32) nanoseconds))
    (+ (* 1000000 seconds) (floor nanoseconds 1000))))

(defun online-processors ()
  "The number of processors of the whole system, an integer of at least 1."
  (let ((sc-nprocessors-onln #+linux 84 #-linux 58))
    (max 1 (sb-alien:alien-funcall
            (sb-alien:extern-alien "sysconf" (function sb-alien:long sb-alien:int))
            sc-nprocessors-onln))))

#-linux
(defun processor-count ()
  "The number of processors that are online, an integer of at least 1."
  (online-processors))

(defmacro with-lock-except-in-waits ((lock) &body body)
  "Evaluates BODY while the current thread holds LOCK and defers interrupts.  In BODY, (WAITING
FORM) evaluates FORM, a call of WAIT-ON, in which the thread can be interrupted if the caller can."
  (let ((mutex (gensym "MUTEX")))
    `(let ((,mutex ,lock))
       (sb-sys:without-interrupts
         (macrolet ((waiting (form) `(sb-sys:allow-with-interrupts ,form)))
           (unwind-protect (progn (sb-thread:grab-mutex ,mutex)
                                  ,@body)
             ;; After a non-local exit from WAIT-ON, the thread may not hold the mutex.  Then this
             ;; call has no effect.
             (sb-thread:release-mutex ,mutex)))))))

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real or NIL for no limit, for a notification of
CONDITION-VARIABLE, and takes LOCK again.  The wait may end early, so the caller checks its
condition in a loop.  Interrupts that the caller allows run while LOCK is free."
  ;; SBCL itself defers interrupts except in the system's waits for the notification and for LOCK.
  (bt:condition-wait condition-variable lock :timeout seconds))

(defun join-thread (thread seconds)
  "Waits up to SECONDS, a real or NIL for no limit, for the end of THREAD, normal or not.  True if
it has ended."
  (when (or (null seconds) (plusp seconds))
    (sb-thread:join-thread thread :default nil :timeout seconds))
  (not (bt:thread-alive-p thread)))

(defun %wake-listener (listener)
  ;; On Linux, every accept then fails with EINVAL, now and later.  macOS refuses the call
  ;; (ENOTCONN).
  (handler-case
      (progn (sb-bsd-sockets:socket-shutdown (usocket:socket listener) :direction :io) t)
    (sb-bsd-sockets:socket-error () nil)))

(defun %limit-waits (usocket seconds)
  (setf (sb-impl::fd-stream-timeout (socket-octet-stream usocket))
        (and seconds (coerce seconds 'single-float))))

(defun %shut-down (usocket direction)
  (sb-bsd-sockets:socket-shutdown (usocket:socket usocket) :direction direction)
  t)
