(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Octets through OpenSSL without waiting, for SBCL on Linux.  CL+SSL has loaded the library, and made
;;;; the connection, on a non-blocking descriptor.
;;;;
;;;; Invariant: no thread is interrupted while it is in OpenSSL.  Who is destroyed there, or leaves it because
;;;; of a time limit, leaves locks of OpenSSL and of malloc taken, for which every thread waits in the end.

(defconstant +ssl-ctrl-mode+ 33)
(defconstant +ssl-modes+ (logior 1      ; SSL_MODE_ENABLE_PARTIAL_WRITE
                                 2      ; SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
                                 16)    ; SSL_MODE_RELEASE_BUFFERS
  "How OpenSSL is to behave, see SSL_CTX_set_mode(3): it writes a record at a time, takes what it did not
write from another address the next time, since the garbage collector moves octets, and keeps no empty
buffers.")

(cffi:defcfun ("SSL_ctrl" %ssl-control) :long
  (handle :pointer) (command :int) (number :long) (pointer :pointer))

(cffi:defcfun ("SSL_want" %ssl-want) :int (handle :pointer))

(defconstant +ssl-writing+ 2)

(defun tls-awaits (stream)
  "What STREAM, see PREPARE-TLS, which was read in vain, waits for: :INPUT; or :OUTPUT, where OpenSSL has
something of its own to send first, such as new keys."
  (let ((handle (cl+ssl::ssl-stream-handle stream)))
    (if (and handle (= +ssl-writing+ (uninterruptibly (%ssl-want handle))))
        :output
        :input)))

(defun prepare-tls (stream)
  "Makes STREAM, CL+SSL's, one for RECEIVE-TLS and SEND-TLS; returns STREAM."
  (%ssl-control (cl+ssl::ssl-stream-handle stream) +ssl-ctrl-mode+ +ssl-modes+ (cffi:null-pointer))
  stream)

(defun tls-on-descriptor-p (stream descriptor)
  "True when STREAM, CL+SSL's, reads and writes DESCRIPTOR."
  (eql descriptor (cl+ssl::ssl-get-fd (cl+ssl::ssl-stream-handle stream))))

(defun tls-failure (handle result)
  "What RESULT, of a call for HANDLE that has failed, means: what RECEIVE-OCTETS returns."
  (case (cl+ssl::ssl-get-error handle result)
    ((#.cl+ssl::+ssl-error-want-read+ #.cl+ssl::+ssl-error-want-write+) (- +eagain+))
    (#.cl+ssl::+ssl-error-zero-return+ 0)
    (t (- +eio+))))

(defmacro without-broken-pipes (&body body)
  "Evaluates BODY; if that writes where nobody reads any more, the thread gets no SIGPIPE: OpenSSL has no flag
against that as send(2) has.  See SEND-FILE."
  `(flet ((body () ,@body))
     (declare (dynamic-extent #'body))
     (if (broken-pipes-ignored-p)
         (body)
         (call-without-broken-pipes #'body))))

(defun call-without-broken-pipes (function)
  (sb-alien:with-alien ((broken-pipe (array sb-alien:unsigned-long 16)) ; sigset_t
                        (blocked (array sb-alien:unsigned-long 16))
                        (no-time (array sb-alien:long 2)))
    (macrolet ((call (name &rest arguments)
                 `(system-call ,name sb-alien:int
                               ,@(loop for argument in arguments
                                       collect (if (integerp argument)
                                                   `(sb-alien:int ,argument)
                                                   `(sb-sys:system-area-pointer ,argument)))))
               (address (variable)
                 `(sb-alien:alien-sap (sb-alien:addr ,variable)))
               (nowhere () `(sb-sys:int-sap 0)))
      (dotimes (index 16)
        (setf (sb-alien:deref broken-pipe index) 0))
      (setf (sb-alien:deref broken-pipe 0) (ash 1 (1- sb-unix:sigpipe))
            (sb-alien:deref no-time 0) 0
            (sb-alien:deref no-time 1) 0)
      (call "pthread_sigmask" 0 (address broken-pipe) (address blocked)) ; SIG_BLOCK
      (unwind-protect (funcall function)
        (call "sigtimedwait" (address broken-pipe) (nowhere) (address no-time))
        (call "pthread_sigmask" 2 (address blocked) (nowhere)))))) ; SIG_SETMASK

(defun transfer-tls (function stream octets start end)
  (assert (<= start end (length octets))) ; OpenSSL checks nothing
  (let ((handle (cl+ssl::ssl-stream-handle stream)))
    (if handle
        (uninterruptibly
          (let ((result (sb-sys:with-pinned-objects (octets)
                          ;; What failed on this thread before would be taken for a failure of this
                          ;; call, see SSL_get_error(3).
                          (%clear-errors)
                          (without-broken-pipes
                            (funcall function handle
                                     (cffi:make-pointer (+ (sb-sys:sap-int
                                                            (sb-sys:vector-sap octets))
                                                           start))
                                     (- end start))))))
            (if (plusp result) result (tls-failure handle result))))
        (- +ebadf+))))

(defun receive-tls (stream octets start end)
  "Reads what STREAM, see PREPARE-TLS, has, at most END - START octets, to OCTETS from START.  Returns what
RECEIVE-OCTETS does."
  (declare (type octets octets) (type index start end))
  (transfer-tls #'cl+ssl::ssl-read stream octets start end))

(defun send-tls (stream octets start end)
  "Writes OCTETS from START to END to STREAM, see PREPARE-TLS, as many as it takes now.  Returns what
SEND-OCTETS does.  What it did not take is to be given again before all else."
  (declare (type octets octets) (type index start end))
  (transfer-tls #'cl+ssl::ssl-write stream octets start end))

;;; The handshake, and the end, are CL+SSL's.

(defvar *handshaking-p* nil
  "True in a thread that makes a TLS connection for a server.")

(defun shake-hands (make-stream &rest arguments)
  "Calls MAKE-STREAM, of CL+SSL, with ARGUMENTS; the thread can be interrupted only where it waits."
  (let ((*handshaking-p* t))
    (deferring-interrupts
      (without-broken-pipes
        (apply make-stream arguments)))))

(defun wait-for-peer (wait &rest arguments)
  "Calls WAIT, of CL+SSL, with ARGUMENTS; in a handshake, the thread can be interrupted meanwhile."
  (if *handshaking-p*
      (interruptibly
        (apply wait arguments))
      (apply wait arguments)))

(defun shut-tls-down (shut-down handle)
  "Calls SHUT-DOWN, of CL+SSL, with HANDLE, whose peer may be gone."
  (without-broken-pipes
    (funcall shut-down handle)))

(wrap-function 'cl+ssl:make-ssl-server-stream 'shake-hands)
(wrap-function 'cl+ssl::input-wait 'wait-for-peer)
(wrap-function 'cl+ssl::output-wait 'wait-for-peer)
(wrap-function 'cl+ssl::ssl-shutdown 'shut-tls-down)
