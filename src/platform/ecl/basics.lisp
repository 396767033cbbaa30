(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; ECL on Unix.

(defmacro uninterruptibly (&body body)
  "Runs BODY.  Another thread's interrupt or BT:DESTROY-THREAD waits until BODY has ended, or until
an INTERRUPTIBLY in it.  An interrupt cuts a wait in the system short, as any signal does.  On ECL,
a thread that is destroyed may also end where BODY leaves a handler."
  `(mp:without-interrupts ,@body))

(defmacro interruptibly (&body body)
  "Runs BODY so that the thread can be interrupted or destroyed even within UNINTERRUPTIBLY.
An interrupt that already waits runs before BODY."
  ;; With ALLOW-WITH-INTERRUPTS around all of UNINTERRUPTIBLY, the thread could be destroyed
  ;; wherever it takes a lock.
  `(let ((si:*allow-with-interrupts* t))
     (mp:with-interrupts ,@body)))

(defmacro set-published (place value)
  "Sets PLACE, which other threads read without a lock, to VALUE, a new object."
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
  "The time in microseconds, a fixnum, of the clock of MILLISECONDS."
  (ffi:c-inline () () :long-long "hrt_microseconds()" :one-liner t))

(defun universal-milliseconds ()
  "The universal time in milliseconds, an integer."
  (+ (* 1000 2208988800)                ; until 1970
     (ffi:c-inline () () :long-long "{
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
        @(return) = 1000LL * t.tv_sec + t.tv_nsec / 1000000; }")))

(defun clear-stack ()
  "Has no effect: this Lisp cannot clear its stack."
  nil)

(defun milliseconds ()
  "The time in milliseconds, a fixnum, of a monotonic clock without an epoch."
  (values (floor (microseconds) 1000)))

(defun processor-count ()
  "The number of processors that are online, an integer of at least 1."
  (max 1 (ffi:c-inline () () :long "sysconf(_SC_NPROCESSORS_ONLN)" :one-liner t)))

(defmacro with-lock-except-in-waits ((lock) &body body)
  "Evaluates BODY while the current thread holds LOCK and defers interrupts.  In BODY, (WAITING
FORM) evaluates FORM, a call of WAIT-ON, in which the thread can be interrupted if the caller can."
  (let ((mutex (gensym "MUTEX")))
    `(let ((,mutex ,lock))
       (mp:without-interrupts
         (macrolet ((waiting (form) `(mp:allow-with-interrupts ,form)))
           (mp:get-lock ,mutex)
           (unwind-protect (progn ,@body)
             (mp:giveup-lock ,mutex)))))))

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real or NIL for no limit, for a notification of
CONDITION-VARIABLE, and takes LOCK again.  The wait may end early, so the caller checks its
condition in a loop.  Interrupts that the caller allows run while LOCK is free."
  ;; ECL has no timed wait, and Bordeaux Threads would make a thread for each wait, to interrupt it.
  ;; So this function returns after a few milliseconds, and its caller polls.
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
  ;; On Linux, every accept then fails with EINVAL, now and later.  macOS refuses the call
  ;; (ENOTCONN).
  (%shut-down listener :io))

(defconstant +eintr+ 4)

(defun poll-descriptor (descriptor direction until)
  "Waits until DESCRIPTOR is ready for DIRECTION, :INPUT or :OUTPUT, or has failed; returns true
then.  Returns NIL after UNTIL, a moment of MILLISECONDS, or NIL for no limit."
  ;; Each call of poll(2) waits a second at most, in case an interrupt came just before it.
  (loop for left = (milliseconds-left until)
        for count = (ffi:c-inline (descriptor (ecase direction (:input 0) (:output 1))
                                              (min (or left 1000) 1000))
                                  (:int :int :int) :int
                                  "hrt_poll(#0, #1, #2)" :one-liner t)
        do (cond ((plusp count) (return t))
                 ((eql left 0) (return nil))
                 ((and (minusp count) (/= count (- +eintr+)))
                  (error "poll failed: error number ~D." (- count))))))

(defun %await-input (usocket until)
  ;; A signal would end the wait of usocket early.
  (poll-descriptor (%descriptor usocket) :input until))

(defun limit-receiving (socket seconds)
  "Limits each read and accept on SOCKET to SECONDS; 0 is for no limit."
  (setf (sb-bsd-sockets:sockopt-receive-timeout socket) seconds))

(defun %limit-waits (usocket seconds)
  (let ((socket (usocket:socket usocket)))
    (setf (sb-bsd-sockets:sockopt-receive-timeout socket) (or seconds 0)
          (sb-bsd-sockets:sockopt-send-timeout socket) (or seconds 0))))

(defun %shut-down (usocket direction)
  (zerop (ffi:c-inline ((%descriptor usocket)
                        (ecase direction (:input 0) (:output 1) (:io 2)))
                       (:int :int) :int "shutdown(#0, #1)" :one-liner t)))
