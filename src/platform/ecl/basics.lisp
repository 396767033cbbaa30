(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; ECL on Unix.

(defmacro uninterruptibly (&body body)
  "Runs BODY; another thread's interrupt or BT:DESTROY-THREAD waits until it is done."
  `(mp:without-interrupts ,@body))

(defmacro deferring-interrupts (&body body)
  "Runs BODY; another thread's interrupt or BT:DESTROY-THREAD waits until that is done, or until an
INTERRUPTIBLY in it.  A wait in the system is cut short, as by any signal.  ECL keeps that in part
only: it ends a thread that is to be destroyed also where BODY leaves a handler."
  `(mp:without-interrupts ,@body))

(defmacro interruptibly (&body body)
  "Runs BODY so that within DEFERRING-INTERRUPTS, too, the thread can be interrupted or destroyed,
before BODY begins if that was to happen already."
  ;; Not by ALLOW-WITH-INTERRUPTS around it all: every lock that is taken would be a place to die.
  `(let ((si:*allow-with-interrupts* t))
     (mp:with-interrupts ,@body)))

(defmacro with-acquired ((variable acquire release) &body body)
  "Evaluates BODY with VARIABLE bound to the value of the form ACQUIRE, and then, however BODY was
left, the form RELEASE.  These two are evaluated whole: another thread's interrupt or
BT:DESTROY-THREAD waits meanwhile, so that nothing is acquired and not released.  BODY can be
interrupted where the caller can."
  `(mp:without-interrupts
     (let ((,variable ,acquire))
       (unwind-protect (mp:with-local-interrupts ,@body)
         ,release))))

(defmacro set-published (place value)
  "Sets PLACE, which other threads read without a lock, to VALUE, an object made for that."
  `(setf ,place ,value))

(ffi:clines "#include <time.h>" "#include <unistd.h>" "#include <sys/socket.h>"
            "#include <errno.h>" "#include <poll.h>"
            "static long long hrt_microseconds(void) {
               struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
               return 1000000LL * t.tv_sec + t.tv_nsec / 1000; }"
            "static int hrt_poll(int descriptor, int output, int milliseconds) {
               struct pollfd p = { descriptor, output ? POLLOUT : POLLIN, 0 };
               int count = poll(&p, 1, milliseconds);
               return count < 0 ? -errno : count; }")

(defun microseconds ()
  "Microseconds, a fixnum, of the clock of MILLISECONDS."
  (ffi:c-inline () () :long-long "hrt_microseconds()" :one-liner t))

(defun clear-stack ()
  "Does nothing: nobody can ask for that here."
  nil)

(defun milliseconds ()
  "Milliseconds, a fixnum, of a clock that never steps and has no epoch."
  (values (floor (microseconds) 1000)))

(defun processor-count ()
  "How many processors the system has online, at least 1."
  (max 1 (ffi:c-inline () () :long "sysconf(_SC_NPROCESSORS_ONLN)" :one-liner t)))

(defmacro with-lock-except-in-waits ((lock) &body body)
  "Evaluates BODY while the current thread holds LOCK and defers interrupts.  In BODY, (WAITING
FORM) evaluates FORM, a call of WAIT-ON, in which the thread can be interrupted where the caller
can."
  (let ((mutex (gensym "MUTEX")))
    `(let ((,mutex ,lock))
       (mp:without-interrupts
         (macrolet ((waiting (form) `(mp:allow-with-interrupts ,form)))
           (mp:get-lock ,mutex)
           (unwind-protect (progn ,@body)
             (mp:giveup-lock ,mutex)))))))

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real or NIL for no limit, for a notification of
CONDITION-VARIABLE, and takes LOCK again.  May return early: call it in a loop around what is waited
for.  Interrupts that the caller allows run where LOCK is not held."
  ;; ECL has no timed wait, and Bordeaux Threads would make a thread for each, to interrupt
  ;; it.  So this looks again every few milliseconds.
  (declare (ignore condition-variable))
  (mp:giveup-lock lock)
  (unwind-protect
       (mp:with-interrupts
         (ffi:c-inline ((min 5000 (ceiling (* 1000000 (or seconds 1))))) (:int) :void "usleep(#0)"
                       :one-liner t))
    (mp:get-lock lock)))

(defun %descriptor (usocket)
  (sb-bsd-sockets:socket-file-descriptor (usocket:socket usocket)))

(defun %wake-listener (listener)
  ;; Every accept, now or later, fails with EINVAL on Linux; macOS refuses (ENOTCONN).
  (%shut-down listener :io))

(defconstant +eintr+ 4)

(defun poll-descriptor (descriptor direction until)
  "Waits until DESCRIPTOR is ready for DIRECTION, :INPUT or :OUTPUT, or failed: then true.  NIL
after UNTIL, a moment of MILLISECONDS, or NIL for no limit."
  ;; In pieces, so that a wait is over before long also when a thread's interrupt came just
  ;; before poll(2).
  (loop for left = (milliseconds-left until)
        for count = (ffi:c-inline (descriptor (ecase direction (:input 0) (:output 1)) (min (or left 1000) 1000))
                                  (:int :int :int) :int
                                  "hrt_poll(#0, #1, #2)" :one-liner t)
        do (cond ((plusp count) (return t))
                 ((eql left 0) (return nil))
                 ((and (minusp count) (/= count (- +eintr+)))
                  (error "poll failed: error number ~D." (- count))))))

(defun %await-input (usocket until)
  ;; Not usocket's: a signal ends its wait early.
  (poll-descriptor (%descriptor usocket) :input until))

(defun limit-receiving (socket seconds)
  "Lets no read and no accept on SOCKET wait for more than SECONDS, or for ever where that is 0."
  (setf (sb-bsd-sockets:sockopt-receive-timeout socket) seconds))

(defun %limit-waits (usocket seconds)
  (let ((socket (usocket:socket usocket)))
    (setf (sb-bsd-sockets:sockopt-receive-timeout socket) (or seconds 0)
          (sb-bsd-sockets:sockopt-send-timeout socket) (or seconds 0))))

(defun %shut-down (usocket direction)
  (zerop (ffi:c-inline ((%descriptor usocket)
                        (ecase direction (:input 0) (:output 1) (:io 2)))
                       (:int :int) :int "shutdown(#0, #1)" :one-liner t)))
