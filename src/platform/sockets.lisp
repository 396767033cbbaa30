(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The socket operations of the engine.  They are generic functions, so that a test can use a
;;;; socket of its own.  The methods here are for the sockets of usocket.

;;; Listeners

(deftype inherited-designator ()
  "An inherited descriptor: its number; :SYSTEMD, for the first that a service manager has handed
over; or a list of :SYSTEMD and a name, a string, for the first of that name."
  '(or (unsigned-byte 31) (eql :systemd) (cons (eql :systemd) (cons string null))))

(defgeneric prepare-listener (listener)
  (:documentation "Limits the waits of ACCEPT-CONNECTION on LISTENER.  The engine calls it once,
before the first ACCEPT-CONNECTION.")
  (:method (listener)
    (declare (ignore listener))
    nil))

(defgeneric accept-connection (listener)
  (:documentation "Waits for the next connection on LISTENER.  Returns its non-blocking descriptor
if READINESS-SUPPORTED-P, else its socket; or NIL if the client has already left (ECONNABORTED) or
the wait was cut short.  The caller uses UNINTERRUPTIBLY, so that no connection is lost on its
way to the caller.  The wait then ends after a few seconds, or when another thread wants to
interrupt or destroy the current one.  Signals LISTENER-CLOSED once the listener was woken or
closed, DESCRIPTORS-EXHAUSTED if the system has no room for a connection, NETWORK-TROUBLE if the
network failed, and ACCEPT-FAILED for any other failure."))

(defgeneric pending-connection-p (listener)
  (:documentation "True if a connection waits on LISTENER to be accepted, or if the platform cannot
tell.  Does not block."))

(defgeneric wake-listener (listener waiting-count)
  (:documentation "Ends every ACCEPT-CONNECTION on LISTENER, in WAITING-COUNT threads, with
LISTENER-CLOSED or NIL.  If the platform has no call for that, connects to the listener
WAITING-COUNT times."))

(defgeneric admit-held (listener)
  (:documentation "Makes the system hold no connection to LISTENER until its first octets arrive.
True if it may hold some, which then can be accepted about a second later, at the latest.")
  (:method (listener)
    (declare (ignore listener))
    nil))

(defgeneric stop-arrivals (listener)
  (:documentation "Makes the system begin no further connection to LISTENER, if it can.  Connections
that the system has begun still arrive, and the caller accepts them.  NIL if other processes share
LISTENER, so that connections still begin.")
  (:method (listener)
    (declare (ignore listener))
    t))

(defgeneric close-listener (listener)
  (:documentation "Closes LISTENER, and so frees its port.  No thread may wait on it then."))

(defconstant +eio+ 5
  "The error number for an unknown failure.")

(defconstant +ebadf+ 9
  "The error number for the use of a closed descriptor.")

(defun access-denied-p (condition)
  "True if CONDITION, of the Lisp's sockets, says that the process lacks a privilege (EACCES)."
  (eql 13 (%error-number condition)))

;;; The failures of accept(2), and the caller's remedies.
;;;
;;;   kind         meaning                                     remedy
;;;   :none        no connection is there                      wait for the next connection
;;;   :gone        the client has already left                 accept again at once
;;;   :again       the network failed (see accept(2))          accept again after a moment
;;;   :exhausted   no descriptor or no memory is left          close connections, then as :again
;;;   :closed      the listener was shut down or closed        none
;;;   :other       any other failure (a firewall's refusal)    as for :again

(defparameter *accept-failures*
  #+linux
  '((:none 11)                          ; EAGAIN
    (:gone 4 103)                       ; EINTR, ECONNABORTED
    ;; ENONET, EPROTO, ENOPROTOOPT, EOPNOTSUPP, ENETDOWN, ENETUNREACH, EHOSTDOWN, EHOSTUNREACH
    (:again 64 71 92 95 100 101 112 113)
    (:exhausted 12 23 24 105)           ; ENOMEM, ENFILE, EMFILE, ENOBUFS
    (:closed 9 22 88))                  ; EBADF, EINVAL, ENOTSOCK
  #-linux                               ; the numbers of macOS and the BSDs
  '((:none 35)
    (:gone 4 53)
    (:again 42 45 50 51 64 65 100 102)
    (:exhausted 12 23 24 55)
    (:closed 9 22 38))
  "The error numbers of accept(2), by kind of failure.")

(defun accept-failure-kind (number)
  "The kind of failure for the error NUMBER of accept(2), an integer or NIL if unknown: :NONE,
:GONE, :AGAIN, :EXHAUSTED, :CLOSED or :OTHER."
  (or (first (find-if (lambda (entry) (member number (rest entry))) *accept-failures*))
      :other))

(defun make-accept-failure (kind cause)
  "A condition for CAUSE, a failure to accept of KIND, a value of ACCEPT-FAILURE-KIND."
  (make-condition (ecase kind
                    (:again 'network-trouble)
                    (:exhausted 'descriptors-exhausted)
                    (:closed 'listener-closed)
                    (:other 'accept-failed))
                  :cause cause))

(defun condition-kind (condition)
  "The kind of failure, as of ACCEPT-FAILURE-KIND, for a CONDITION that an accept has signalled."
  (let ((number (%error-number condition)))
    (if number
        (accept-failure-kind number)
        (typecase condition
          (usocket:connection-aborted-error :gone)
          (usocket:bad-file-descriptor-error :closed)
          (usocket:invalid-argument-error :closed)
          (usocket:no-buffers-error :exhausted)
          (t :other)))))

(defparameter *accept-seconds* 2
  "The maximum wait for a connection, in seconds, an integer.  Without it, an interrupt just before
the wait begins would have no effect until the next connection.")

(defmethod prepare-listener ((listener usocket:stream-server-usocket))
  (%prepare-listener listener *accept-seconds*))

(defmethod accept-connection ((listener usocket:stream-server-usocket))
  (handler-case (let ((socket (%accept listener)))
                  (when socket
                    (send-without-delay socket)
                    socket))
    (error (condition)
      (let ((kind (if (%closed-p listener) :closed (condition-kind condition))))
        (unless (member kind '(:none :gone))
          (error (make-accept-failure kind condition)))))))

(defmethod pending-connection-p ((listener usocket:stream-server-usocket))
  (%pending-connection-p listener))

(defmethod wake-listener ((listener usocket:stream-server-usocket) waiting-count)
  (unless (%wake-listener listener)
    (multiple-value-bind (address port) (usocket:get-local-name listener)
      (loop repeat waiting-count
            do (usocket:socket-close
                (usocket:socket-connect (if (every #'zerop address) "127.0.0.1" address)
                                        port))))))

(defmethod close-listener ((listener usocket:stream-server-usocket))
  (usocket:socket-close listener))

(defparameter *first-inherited-descriptor* 3
  "The first descriptor that a service manager hands over; see sd_listen_fds(3).")

;;; Connections

(defgeneric await-input (socket &key until)
  (:documentation "Waits until SOCKET has octets to read, or its peer has ended it; returns true
then.  Returns NIL after UNTIL, a moment of MILLISECONDS, or NIL for no limit.  If UNTIL has passed,
only checks.  Signals do not prolong the wait."))

(defgeneric limit-waits (socket seconds)
  (:documentation "Limits each read on the stream of SOCKET to SECONDS, a real or NIL for no
limit."))

(defgeneric shut-down (socket direction)
  (:documentation "Shuts SOCKET down in DIRECTION, :INPUT, :OUTPUT or :IO, but keeps its descriptor
open.  A thread that waits to read from it gets an end of file.  Never signals; NIL if the peer had
already left."))

(defgeneric socket-open-p (socket)
  (:documentation "True until SOCKET or its stream is closed."))

(defgeneric close-socket (socket)
  (:documentation "Closes SOCKET and its stream, and drops unflushed output.  Never signals; NIL if
SOCKET was closed already."))

(defmethod await-input ((socket usocket:stream-usocket) &key until)
  (%await-input socket until))

(defmethod limit-waits ((socket usocket:stream-usocket) seconds)
  (%limit-waits socket seconds))

(defmethod shut-down ((socket usocket:stream-usocket) direction)
  (handler-case (%shut-down socket direction)
    (error () nil)))

(defmethod socket-open-p ((socket usocket:stream-usocket))
  (open-stream-p (usocket:socket-stream socket)))

(defmethod close-socket ((socket usocket:stream-usocket))
  (handler-case (close (usocket:socket-stream socket) :abort t)
    (error () nil)))

(defgeneric send-without-delay (socket)
  (:documentation "Makes the system send small packets of SOCKET at once (TCP_NODELAY).  NIL if
SOCKET is not a TCP socket.")
  (:method (socket)
    (handler-case (progn (setf (usocket:socket-option socket :tcp-nodelay) t) t)
      (error () nil))))

(defun mapped-p (address)
  "True if ADDRESS is an IPv4 address mapped to IPv6 (RFC 4291, section 2.5.5.2)."
  (eql 12 (mismatch address #(0 0 0 0 0 0 0 0 0 0 #xFF #xFF))))

(defun address-string (address)
  "ADDRESS, octets, in its usual notation (RFC 5952, section 4.3).  An IPv4 address mapped to IPv6
becomes an IPv4 address, as programs know it."
  (cond ((mapped-p address) (usocket:host-to-hostname (subseq address 12)))
        ((= (length address) 16) (string-downcase (usocket:host-to-hostname address)))
        (t (usocket:host-to-hostname address))))

(defun name-values (address port)
  (values (address-string address) port))

(defgeneric peer-name (socket)
  (:documentation "The address, a string, and the port, an integer, of the peer of SOCKET; for a
Unix-domain socket, \"unix:\" and 0.  Signals PEER-GONE if the peer has left.")
  (:method (socket)
    (multiple-value-call #'name-values
      (handler-case (usocket:get-peer-name socket)
        ;; The call can fail for no other reason.
        (error () (error 'peer-gone))))))

(defgeneric local-name (socket)
  (:documentation "The address, a string, and the port, an integer, of our own end of SOCKET; for a
Unix-domain socket, \"unix:\" followed by its path, and 0.")
  (:method (socket)
    (multiple-value-call #'name-values (usocket:get-local-name socket))))

(defgeneric socket-octet-stream (socket)
  (:documentation "The stream that reads and writes the octets of SOCKET.  In the ready engine, this
stream does not support characters.")
  (:method (socket)
    (usocket:socket-stream socket)))

;;; These are READ-SEQUENCE and WRITE-SEQUENCE, except where those lose octets; see
;;; ecl/streams.lisp.

(defgeneric read-stream-octets (stream octets start end)
  (:documentation "Reads octets from STREAM, a stream of octets, into OCTETS, a vector, from START
to END, and waits for them.  Returns the number of octets, which is smaller only at the end of
STREAM.  Signals the errors of STREAM, also if a wait takes longer than LIMIT-WAITS allows.")
  (:method (stream octets start end)
    (- (read-sequence octets stream :start start :end end) start)))

(defgeneric write-stream-octets (stream octets start end)
  (:documentation "Sends OCTETS, a vector, from START to END on STREAM, a stream of octets, after
all octets that were written before, and waits for the peer.  Signals the errors of STREAM, also if
a wait takes longer than the socket allows.")
  (:method (stream octets start end)
    (write-sequence octets stream :start start :end end)
    (finish-output stream)))

(defgeneric stream-tls-handle (stream)
  (:documentation "The SSL object of OpenSSL, a CFFI pointer, of STREAM, a stream of CL+SSL; NIL for
other streams and for a closed one.")
  (:method (stream)
    (declare (ignore stream))
    nil))

;;; Sockets that record whether a program has asked for their stream

(defgeneric socket-asked-p (socket)
  (:documentation "True if a program has asked for the stream of SOCKET since the last call of
WATCH-SOCKET for it."))

(defclass watched-usocket (usocket:stream-usocket)
  ((asked-p
    :initform nil
    :accessor socket-asked-p
    :documentation "True if a program has asked for the stream since this slot was set to NIL."))
  (:documentation "A usocket that records when its stream is asked for, except by
SOCKET-OCTET-STREAM."))

(defmethod usocket:socket-stream :before ((socket watched-usocket))
  (setf (socket-asked-p socket) t))

(defmethod socket-octet-stream ((socket watched-usocket))
  (slot-value socket 'usocket::stream))

(defgeneric watch-socket (socket)
  (:documentation "Makes SOCKET a socket for which SOCKET-ASKED-P tells whether a program has asked
for its stream from now on.")
  (:method ((socket usocket:stream-usocket))
    (change-class socket 'watched-usocket))
  (:method ((socket watched-usocket))
    (setf (socket-asked-p socket) nil)))

;;; A socket that the engine reads and writes itself may also get a stream of the Lisp.

(defgeneric octet-stream-descriptor (octet-stream)
  (:documentation "The descriptor, an integer, of OCTET-STREAM; NIL if it is closed."))

(defgeneric accompany (octet-stream stream)
  (:documentation "Records that programs have STREAM, a stream of the Lisp, for the socket of
OCTET-STREAM."))

(defgeneric hand-octets-over (octet-stream)
  (:documentation "Moves the unread octets of OCTET-STREAM to the stream of the Lisp beside it,
which then reads them first.  Sends the octets that were written to OCTET-STREAM."))

(defparameter *discard-seconds* 1
  "The maximum time, in seconds, during which further octets of a peer are dropped before its
connection is closed.")

(defparameter *discard-octets* (* 4 1024 1024)
  "The maximum number of further octets of a peer that are dropped before its connection is
closed.")

(defparameter *discard-pause* 1/10
  "The time, in seconds, after which a peer that has sent nothing is expected to send no more.")

(defgeneric discard-available-input (socket most end)
  (:documentation "Drops octets that SOCKET has ready, at least one and at most MOST, until END, a
moment of MILLISECONDS.  Returns their number; NIL at the end of input.")
  (:method (socket most end)
    (loop with stream = (socket-octet-stream socket)
          for count from 1 to most
          unless (read-byte stream nil nil)
            return nil
          while (and (or (plusp (mod count 4096)) ; a look at the clock takes time
                         (plusp (milliseconds-left end)))
                     (listen stream))
          finally (return (min count most)))))

(defun discard-input (socket)
  "Reads and drops octets from the peer of SOCKET until the peer ends the connection, pauses, takes
too long, or has sent too many.  nginx calls this a lingering close."
  (loop with end = (end-after *discard-seconds*)
        with room = *discard-octets*
        for count = (and (await-input socket :until (min end (end-after *discard-pause*)))
                         (discard-available-input socket room end))
        while (and count
                   (plusp (decf room count))
                   (plusp (milliseconds-left end)))))

(defun close-after (socket function)
  "Shuts down the output of SOCKET, calls FUNCTION, and closes SOCKET even if one of these fails.
Never signals."
  ;; A stream around SOCKET may have closed it.  Its descriptor may then belong to another
  ;; connection.
  (when (socket-open-p socket)
    (unwind-protect (when (shut-down socket :output)
                      (handler-case (funcall function)
                        (error () nil)))
      (close-socket socket))))

(defun close-gently (socket &optional more-p)
  "Closes SOCKET after its last reply was sent.  If the socket has unread input, or if MORE-P says
that more may come, first waits a moment for the peer to read the end.  A socket that is closed with
unread input, or that gets input later, resets the connection, and the peer may lose the reply (RFC
9112, section 9.6).  *DISCARD-PAUSE*, *DISCARD-SECONDS* and *DISCARD-OCTETS* limit the wait,
whatever the peer does.  Never signals."
  (close-after socket (lambda ()
                        (when (or more-p (await-input socket :until (milliseconds)))
                          (discard-input socket)))))

(defun close-unread (socket)
  "Closes SOCKET, on which a reply was sent before any input was read, without a wait.  Drops the
octets received so far, since unread input would reset the connection; see CLOSE-GENTLY.  Never
signals."
  (close-after socket (lambda ()
                        (when (await-input socket :until (milliseconds))
                          (discard-available-input socket *discard-octets*
                                                   (milliseconds))))))
