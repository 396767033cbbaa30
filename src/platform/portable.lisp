(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What is the same on every Lisp, and what the files of some Lisps lack.

;;; Conditions

(define-condition accept-failed (recycling-error)
  ((cause :initarg :cause :reader accept-failure-cause))
  (:report (lambda (condition stream)
             (format stream "No connection could be accepted: ~A"
                     (accept-failure-cause condition))))
  (:documentation "The listener returned no connection."))

(define-condition listen-failed (recycling-error)
  ((place :initarg :place :reader listen-failure-place)
   (reason :initarg :reason :reader listen-failure-reason))
  (:report (lambda (condition stream)
             (format stream "Cannot listen on ~A: ~A."
                     (listen-failure-place condition) (listen-failure-reason condition))))
  (:documentation "A server cannot listen on the place, a port, path or descriptor, that its
arguments name.  The report says why.  For a port it is a USOCKET:SOCKET-ERROR, too,
and where that is taken, a USOCKET:ADDRESS-IN-USE-ERROR."))

(define-condition peer-gone (recycling-error)
  ()
  (:report "The peer has left, so its address is unknown.")
  (:documentation "The address of the peer of a connection is no longer available."))

(defgeneric tls-failure-words (condition)
  (:documentation "The TLS library's description, a string, of CONDITION, which has ended a TLS
handshake; :GONE if the peer has left; NIL if CONDITION is not about TLS.")
  (:method ((condition t)) nil))

;;; What SBCL alone has

(defmacro define-none (&rest names)
  "Defines functions with NAMES that return NIL, since the platform has no such thing, or does not
tell, or nobody calls them there."
  `(progn ,@(loop for name in names
                  collect `(defun ,name (&rest arguments)
                             (declare (ignore arguments))
                             nil))))

#-sbcl
(progn
  (define-none clear-stack call-at-exit heap-octets heap-used collection-seconds collect-garbage
               functions-can-be-wrapped-p wrap-function finalize-classes)

  (defmacro with-lock-briefly ((lock) &body body)
    "Evaluates BODY, which must be short and wait for nothing, while the current thread holds LOCK.
As far as UNINTERRUPTIBLY works in this Lisp, no interrupt ends BODY half done."
    `(uninterruptibly
       (bt:with-lock-held (,lock)
         ,@body)))

  (defmacro set-published (place value)
    "Sets PLACE, which other threads read without a lock, to VALUE, a new object."
    `(setf ,place ,value))

  (defvar *compare-lock* (bt:make-lock "compare and set"))

  (defmacro compare-and-set (place old new)
    "Sets PLACE to NEW if it is EQ to OLD; returns true if it was.  Atomic."
    (let ((after (gensym "NEW")))
      `(let ((,after ,new))             ; which may compare and set as well
         (with-lock-briefly (*compare-lock*)
           (when (eq ,place ,old)
             (setf ,place ,after)
             t)))))

  (defstruct (counter (:include opaque))
    "A number that many threads add to."
    (count 0))

  (defun counter-add-up-to (counter delta most)
    (with-lock-briefly (*compare-lock*)
      (when (<= (+ (counter-count counter) delta) most)
        (incf (counter-count counter) delta))))

  (defun counter-add (counter delta)
    (counter-add-up-to counter delta most-positive-fixnum))

  (defun call-for-backtrace (function length caller)
    "The backtrace, a string, that FUNCTION returns; LENGTH and CALLER have no effect here."
    (declare (ignore length caller))
    (funcall function))

  (defun frames-of-thread (thread seconds)
    ":UNKNOWN: where THREAD is cannot be seen, however many SECONDS there are."
    (declare (ignore thread seconds))
    :unknown)

  (defun join-thread (thread seconds)
    "Waits up to SECONDS, a real or NIL for no limit, for the end of THREAD, normal or not.  True if
it has ended."
    ;; ECL and ABCL cannot join a thread with a timeout, so this function polls.
    (wait-until (lambda () (not (bt:thread-alive-p thread)))
                (bt:make-condition-variable) (bt:make-lock "join") seconds 1/100)))

;;; What ABCL does in its own way

#-abcl
(defun destroy-thread (thread)
  "Makes THREAD unwind and end."
  (bt:destroy-thread thread))

#-abcl
(defun wait-timed-out-p (condition)
  "True if CONDITION, signalled by a read or write of a socket's stream, means that the wait has
timed out."
  (typep condition '(or usocket:timeout-error #+sbcl sb-sys:io-timeout)))

;;; Waits
;;;
;;; A wait with a limit computes its end once, as a moment of MILLISECONDS.  A signal may cut a
;;; system call short.  If each retry began with the whole limit, the wait might never end.

(defun as-milliseconds (seconds)
  "SECONDS, a real, in milliseconds, an integer; NIL for NIL, which is never."
  (and seconds (ceiling (* 1000 seconds))))

(defun milliseconds ()
  "The time in milliseconds, a fixnum, of a monotonic clock without an epoch."
  (values (floor (the (unsigned-byte 61) (microseconds)) 1000)))

(defun end-after (seconds)
  "The moment of MILLISECONDS that is SECONDS, a real, from now; NIL for NIL, which is never."
  (and seconds (+ (milliseconds) (as-milliseconds seconds))))

(defun milliseconds-left (end)
  "The number of milliseconds, an integer, until END, a moment of MILLISECONDS; 0 if END has passed;
NIL for NIL, which is never."
  (and end (max 0 (- end (milliseconds)))))

(defun wait-until (predicate condition-variable lock seconds period)
  "Waits up to SECONDS, a real or NIL for no limit, until PREDICATE is true; returns its last value.
Calls PREDICATE, a function without arguments, with LOCK held: at first, when CONDITION-VARIABLE is
notified, and every PERIOD, a number of seconds, a real, or NIL for never.  A period is needed if
several threads wait and a notification wakes only one."
  (let ((end (end-after seconds)))
    (bt:with-lock-held (lock)
      (loop for value = (funcall predicate)
            for left = (milliseconds-left end)
            until (or value (eql left 0))
            do (wait-on condition-variable lock
                        (cond ((null left) period)
                              (period (min period (/ left 1000)))
                              (t (/ left 1000))))
            finally (return value)))))

(defmacro unwind-protect-whole (form &body cleanup)
  "UNWIND-PROTECT that runs all of CLEANUP also where the thread was destroyed."
  `(unwind-protect ,form
     #+abcl (survive-destruction)
     ,@cleanup))

;;; The end of the process
;;;
;;; No thread is made once the process exits.  SBCL's EXIT takes the lock that a thread needs to
;;; make another one, unwinds all other threads, and waits for their ends, for a minute by default.
;;; A thread that tries to make another one meanwhile waits for that lock, where no interrupt can
;;; reach it, so the exit would take that whole minute.  Therefore an exit hook, which runs before
;;; EXIT takes the lock, waits for threads that are making one, and prevents it from then on.

(defvar *thread-making-lock* (bt:make-lock "thread making")
  "Held by a thread that makes another one.")

(defvar *exiting-p* nil
  "True once the process exits.")

(defun process-exits-p ()
  "True once the process has begun an orderly exit, after which no thread is made."
  *exiting-p*)

(defun call-making-thread (function)
  "Calls FUNCTION, a function without arguments that makes a thread, and returns its values.  Once
the process exits, signals an error instead."
  (bt:with-lock-held (*thread-making-lock*)
    (when *exiting-p*
      (error "The process exits, so no thread is made."))
    (funcall function)))

(defun end-thread-making ()
  "Prevents all threads from making another one.  An exit hook."
  (bt:with-lock-held (*thread-making-lock*)
    (setf *exiting-p* t)))

(call-at-exit 'end-thread-making)

;;; Listeners

(deftype inherited-designator ()
  "An inherited descriptor: its number; :SYSTEMD, for the first that a service manager has handed
over; or a list of :SYSTEMD and a name, a string, for the first of that name."
  '(or (unsigned-byte 31) (eql :systemd) (cons (eql :systemd) (cons string null))))

(defconstant +eio+ 5
  "The error number for an unknown failure.")

(defconstant +ebadf+ 9
  "The error number for the use of a closed descriptor.")

(defconstant +no-descriptor+ (1- (ash 1 31))
  "A number that no descriptor has: system calls for it fail.")

(defun error-number (condition)
  "The error number of CONDITION, of the Lisp's sockets; NIL where that is unknown."
  #+abcl (progn condition nil)
  #-abcl (and (typep condition 'sb-bsd-sockets:socket-error)
              (sb-bsd-sockets::socket-error-errno condition)))

(defun access-denied-p (condition)
  "True if CONDITION, of the Lisp's sockets, says that the process lacks a privilege (EACCES)."
  (eql 13 (error-number condition)))

;;; The failures of accept(2), and the caller's remedies.
;;;
;;;   kind         meaning                                     remedy
;;;   :none        no connection is there, or it failed        wait for the next connection
;;;   :exhausted   no descriptor or no memory is left          close connections, then as :other
;;;   :other       any other failure (a firewall's refusal)    accept again after a moment

(defun accept-error-kind (number)
  "The kind of failure for the error NUMBER of accept(2) on Linux, an integer or NIL if unknown:
:NONE, :EXHAUSTED or :OTHER.  Elsewhere most numbers are the same."
  (case number
    ;; EINTR, EAGAIN, ENONET, EPROTO, ENOPROTOOPT, EOPNOTSUPP, ENETDOWN, ENETUNREACH, ECONNABORTED,
    ;; EHOSTDOWN, EHOSTUNREACH
    ((4 11 64 71 92 95 100 101 103 112 113) :none)
    ((12 23 24 105) :exhausted)         ; ENOMEM, ENFILE, EMFILE, ENOBUFS
    (t :other)))

(declaim (notinline keep))
(defun keep (object)
  "Returns OBJECT, which is referenced until this call."
  object)

;;; Addresses

(defun address-string (address)
  "ADDRESS, octets, in its usual notation (RFC 5952, section 4.3).  An IPv4 address mapped to IPv6
(RFC 4291, section 2.5.5.2) becomes an IPv4 address, as programs know it."
  (cond ((eql 12 (mismatch address #(0 0 0 0 0 0 0 0 0 0 #xFF #xFF)))
         (usocket:host-to-hostname (subseq address 12)))
        ((= (length address) 16) (string-downcase (usocket:host-to-hostname address)))
        (t (usocket:host-to-hostname address))))

;;; Connections.  A socket is a descriptor or a usocket, see linux/sockets.lisp and usockets.lisp.

(defgeneric limit-waits (socket seconds)
  (:documentation "Limits each read on the stream of SOCKET to SECONDS, a real or NIL for no
limit."))

#-ecl
(defun read-stream-octets (stream octets start end)
  "Reads octets from STREAM, a stream of octets, into OCTETS, a vector, from START to END, and waits
for them.  Returns the number of octets, which is smaller only at the end of STREAM.  Signals the
errors of STREAM, also if a wait takes longer than LIMIT-WAITS allows."
  (- (read-sequence octets stream :start start :end end) start))

#-ecl
(defun write-stream-octets (stream octets start end)
  "Sends OCTETS, a vector, from START to END on STREAM, a stream of octets, after all octets that
were written before, and waits for the peer.  Signals the errors of STREAM, also if a wait takes
longer than the socket allows."
  (write-sequence octets stream :start start :end end)
  (finish-output stream))

(defparameter *discard-pause* 1/10
  "The time, in seconds, after which a peer that has sent nothing is expected to send no more.")

(defun close-gently (socket &optional more-p (seconds 1))
  "Closes SOCKET after its last reply was sent.  If the socket has unread input, or if MORE-P says
that more may come, first waits up to SECONDS for the peer to read the end, and drops what it sends
meanwhile; nginx calls this a lingering close.  A socket that is closed with unread input, or that
gets input later, resets the connection, and the peer may lose the reply (RFC 9112, section 9.6).
*DISCARD-PAUSE* limits the wait, too.  Never signals."
  ;; A stream around SOCKET may have closed it.  Its descriptor may then belong to another
  ;; connection.
  (when (socket-open-p socket)
    (unwind-protect
         (handler-case
             (when (and (shut-down socket :output)
                        (or more-p (await-input socket :until (milliseconds))))
               (loop with end = (end-after seconds)
                     while (and (await-input socket :until (min end (end-after *discard-pause*)))
                                (discard-available-input socket)
                                (plusp (milliseconds-left end)))))
           (error () nil))
      (close-socket socket))))

;;; Sockets that record whether a program has asked for their stream

(defclass watched-usocket (usocket:stream-usocket)
  ((asked-p
    :initform nil
    :accessor socket-asked-p
    :documentation "True if a program has asked for the stream since this slot was set to NIL."))
  (:documentation "A usocket that records when its stream is asked for, except by
SOCKET-OCTET-STREAM."))

(defmethod usocket:socket-stream :before ((socket watched-usocket))
  (setf (socket-asked-p socket) t))

(defun watch-socket (socket)
  "Makes SOCKET a socket for which SOCKET-ASKED-P tells whether a program has asked for its stream
from now on."
  (unless (typep socket 'watched-usocket)
    (change-class socket 'watched-usocket))
  (setf (socket-asked-p socket) nil))

;;; TLS, where the engine has no sessions of OpenSSL

#-(and sbcl linux 64-bit little-endian (not hunchentoot-no-ssl))
(define-none make-tls-session tls-session-pointer call-with-tls-handle shake-hands receive-tls
             send-tls tls-awaits tls-session-drained-p tls-session-protocol end-tls-session)

#+hunchentoot-no-ssl
(define-none stream-tls-handle)
