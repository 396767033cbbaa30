(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; ECL on Unix.

(defmacro uninterruptibly (&body body)
  "Runs BODY; another thread's interrupt or BT:DESTROY-THREAD waits until it is done."
  `(mp:without-interrupts ,@body))

(ffi:clines "#include <time.h>" "#include <unistd.h>" "#include <sys/socket.h>"
            "static long long hrt_microseconds(void) {
               struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
               return 1000000LL * t.tv_sec + t.tv_nsec / 1000; }")

(defun microseconds ()
  "Microseconds, a fixnum, of the clock of MILLISECONDS."
  (ffi:c-inline () () :long-long "hrt_microseconds()" :one-liner t))

(defun milliseconds ()
  "Milliseconds, a fixnum, of a clock that never steps and has no epoch."
  (values (floor (microseconds) 1000)))

(defun processor-count ()
  "How many processors the system has online, at least 1."
  (max 1 (ffi:c-inline () () :long "sysconf(_SC_NPROCESSORS_ONLN)" :one-liner t)))

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real, for a notification of CONDITION-VARIABLE, and
takes LOCK again.  May return early: call it in a loop around what is waited for."
  ;; ECL has no timed wait, and Bordeaux Threads would make a thread for each, to interrupt
  ;; it.  So this looks again every few milliseconds.
  (declare (ignore condition-variable))
  (mp:giveup-lock lock)
  (unwind-protect
       (ffi:c-inline ((min 5000 (ceiling (* 1000000 seconds)))) (:int) :void "usleep(#0)"
                     :one-liner t)
    (mp:get-lock lock)))

(defun %descriptor (usocket)
  (sb-bsd-sockets:socket-file-descriptor (usocket:socket usocket)))

(defun %wake-listener (listener)
  ;; Every accept, now or later, fails with EINVAL on Linux; macOS refuses (ENOTCONN).
  (%shut-down listener :io))

(defun %await-input (usocket seconds)
  (and (usocket:wait-for-input usocket :timeout seconds :ready-only t) t))

(defun %limit-waits (usocket seconds)
  (let ((socket (usocket:socket usocket)))
    (setf (sb-bsd-sockets:sockopt-receive-timeout socket) (or seconds 0)
          (sb-bsd-sockets:sockopt-send-timeout socket) (or seconds 0))))

(defun %shut-down (usocket direction)
  (zerop (ffi:c-inline ((%descriptor usocket)
                        (ecase direction (:input 0) (:output 1) (:io 2)))
                       (:int :int) :int "shutdown(#0, #1)" :one-liner t)))
