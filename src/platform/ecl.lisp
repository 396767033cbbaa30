(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What the Lisps do differently, for ECL on Unix.

(ffi:clines "#include <time.h>" "#include <unistd.h>" "#include <errno.h>" "#include <poll.h>"
            "#include <sys/ioctl.h>" "#include <sys/socket.h>"
            "#ifndef MSG_NOSIGNAL
             #define MSG_NOSIGNAL 0
             #endif"
            "static long long hrt_microseconds(void) {
               struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
               return 1000000LL * t.tv_sec + t.tv_nsec / 1000; }"
            "static int hrt_poll(int descriptor, int milliseconds) {
               struct pollfd p = { descriptor, POLLIN, 0 };
               int count = poll(&p, 1, milliseconds);
               return count < 0 ? -errno : count; }"
            "static int hrt_available(int descriptor) {
               int count;
               return ioctl(descriptor, FIONREAD, &count) < 0 ? 0 : count; }"
            "static long hrt_send(int descriptor, unsigned char *octets, long count) {
               long sent = send(descriptor, octets, count, MSG_NOSIGNAL);
               return sent < 0 ? -(long)errno : sent; }")

;;; Interrupts and locks

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

;;; The clock

(defun microseconds ()
  "The time in microseconds, a fixnum, of the clock of MILLISECONDS."
  (ffi:c-inline () () :long-long "hrt_microseconds()" :one-liner t))

(defun universal-milliseconds ()
  "The universal time in milliseconds, an integer."
  (+ (* 1000 2208988800)                ; until 1970
     (ffi:c-inline () () :long-long "{
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
        @(return) = 1000LL * t.tv_sec + t.tv_nsec / 1000000; }")))

;;; Signals

(defun call-on-signal (name function)
  "Has FUNCTION, a function without arguments, called for each signal NAME that the process gets
from now on: :HANGUP, :INTERRUPT or :TERMINATE.  The call may happen at any moment that allows
interrupts, in any thread, so FUNCTION should only leave a note."
  (ext:set-signal-handler (ecase name
                            (:hangup ext:+sighup+)
                            (:interrupt ext:+sigint+)
                            (:terminate ext:+sigterm+))
                          (lambda (&rest arguments)
                            (declare (ignore arguments))
                            (funcall function))))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  SECONDS is ignored, since ECL waits for no thread.  Call
it in the main thread."
  (declare (ignore seconds))
  (finish-output *standard-output*)
  (finish-output *error-output*)
  (ext:exit code))

;;; Sockets, see usockets.lisp

(defconstant +eintr+ 4)

(defun usocket-descriptor (usocket)
  (sb-bsd-sockets:socket-file-descriptor (usocket:socket usocket)))

(defun await-usocket (usocket until)
  ;; Each call of poll(2) waits a second at most, in case an interrupt came just before it.
  (loop for left = (milliseconds-left until)
        for count = (ffi:c-inline ((usocket-descriptor usocket) (min (or left 1000) 1000))
                                  (:int :int) :int "hrt_poll(#0, #1)" :one-liner t)
        do (cond ((plusp count) (return t))
                 ((eql left 0) (return nil))
                 ((and (minusp count) (/= count (- +eintr+)))
                  (error "poll failed: error number ~D." (- count))))))

(defun limit-usocket (usocket seconds)
  (let ((socket (usocket:socket usocket)))
    (setf (sb-bsd-sockets:sockopt-receive-timeout socket) (or seconds 0)
          (sb-bsd-sockets:sockopt-send-timeout socket) (or seconds 0))))

(defun shut-usocket (usocket direction)
  (zerop (ffi:c-inline ((usocket-descriptor usocket)
                        (ecase direction (:input 0) (:output 1) (:io 2)))
                       (:int :int) :int "shutdown(#0, #1)" :one-liner t)))

(defun prepare-listener (listener)
  "Limits each wait of ACCEPT-CONNECTION on LISTENER to two seconds.  Without that, an interrupt
just before the wait begins would have no effect until the next connection.  Called once."
  ;; The system does not restart a wait with a timeout after a signal; see signal(7).
  (setf (sb-bsd-sockets:sockopt-receive-timeout (usocket:socket listener)) 2))

(defun accept-usocket (listener)
  "The next connection of LISTENER; or NIL after an interrupt."
  (let ((socket (sb-bsd-sockets:socket-accept (usocket:socket listener))))
    (when socket
      (setf (sb-bsd-sockets:sockopt-receive-timeout socket) 0) ; that of the listener
      (usocket::make-stream-socket
       :socket socket
       :stream (sb-bsd-sockets:socket-make-stream
                socket :input t :output t :buffering :full :element-type 'octet)))))

(defun pending-connection-p (listener)
  "True if a connection waits on LISTENER to be accepted, or if the platform cannot tell.  Does not
block."
  (await-usocket listener (milliseconds)))

(defun wake-usocket (listener)
  ;; On Linux, every accept then fails with EINVAL, now and later.  macOS refuses the call
  ;; (ENOTCONN).
  (shut-usocket listener :io))

(defun receive-before-stream (usocket octets count)
  "Receives at most COUNT octets from USOCKET, whose stream was not read yet, into OCTETS, and waits
for the first.  The stream does not read them later.  Returns their number; 0 at the end of input,
and if the socket has failed."
  (handler-case (progn
                  (await-usocket usocket nil)
                  (or (nth-value 1 (sb-bsd-sockets:socket-receive (usocket:socket usocket)
                                                                  octets count))
                      0))
    (error () 0)))

;;; The streams of sockets, which are FILEs of C
;;;
;;; If the socket has a time limit (SO_RCVTIMEO, SO_SNDTIMEO), any signal ends a wait in the
;;; system, see signal(7), and the garbage collector stops threads by signals.  ECL (21.2.1) then
;;; repeats the whole transfer, so that octets are lost or sent twice.  So no function here waits
;;; within a transfer of several octets: it reads one octet, or octets that have already arrived;
;;; and it writes to the socket itself.
;;;
;;; A program that reads or writes such a stream itself still meets this defect of ECL, as it does
;;; with Hunchentoot alone.

(defun stream-descriptor (stream octets)
  "The descriptor of STREAM, one half of a socket's stream, if it is a stream of the Lisp and C can
read OCTETS; else NIL."
  (and (typep stream 'file-stream)
       (typep octets 'octets)
       (ext:file-stream-fd stream)))

(defparameter *most-read-singly* 4096
  "The maximum number of octets that are read one by one before the next look at the socket: the
size of a FILE's buffer.")

(defun read-stream-octets (stream octets start end)
  "Reads octets from STREAM, a stream of octets, into OCTETS, a vector, from START to END, and waits
for them.  Returns the number of octets, which is smaller only at the end of STREAM.  Signals the
errors of STREAM, also if a wait takes longer than LIMIT-WAITS allows."
  (let ((descriptor (and (typep stream 'two-way-stream)
                         (stream-descriptor (two-way-stream-input-stream stream) octets)))
        (position start))
    (unless descriptor
      (setf position (read-sequence octets stream :start start :end end)))
    (loop while (and descriptor (< position end))
          do (let ((here (min (ffi:c-inline (descriptor) (:int) :int "hrt_available(#0)"
                                            :one-liner t)
                              (- end position))))
               (if (plusp here)
                   (setf position (read-sequence octets stream :start position
                                                               :end (+ position here)))
                   (loop repeat *most-read-singly*
                         while (and descriptor (< position end))
                         do (let ((octet (read-byte stream nil)))
                              (cond (octet
                                     (setf (aref octets position) octet)
                                     (incf position))
                                    (t (setf descriptor nil))))))))
    (- position start)))

(defun write-stream-octets (stream octets start end)
  "Sends OCTETS, a vector, from START to END on STREAM, a stream of octets, after all octets that
were written before, and waits for the peer.  Signals the errors of STREAM, also if a wait takes
longer than the socket allows."
  (let ((descriptor (and (typep stream 'two-way-stream)
                         (stream-descriptor (two-way-stream-output-stream stream) octets))))
    (unless descriptor
      (write-sequence octets stream :start start :end end))
    (finish-output stream)              ; a program may have written before
    (loop while (and descriptor (< start end))
          do (let ((count (ffi:c-inline (descriptor octets start (- end start))
                                        (:int :object :long :long) :long
                                        "hrt_send(#0, (#1)->vector.self.b8 + #2, #3)"
                                        :one-liner t)))
               (cond ((>= count 0) (incf start count))
                     ((/= count (- +eintr+)) ; EAGAIN if the socket's limit of time is over
                      (error "send failed: error number ~D." (- count))))))))
