(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Sockets as the engine sees them.  Generic, so that a test can put a socket of
;;;; its own in their place; the methods here are for usocket's.

;;; Listeners

(defgeneric prepare-listener (listener)
  (:documentation "Called once before the first ACCEPT-CONNECTION on LISTENER, to make its waits
short enough.")
  (:method (listener)
    (declare (ignore listener))
    nil))

(defgeneric accept-connection (listener)
  (:documentation "Waits for the next connection on LISTENER and returns its socket or, where octets
can be read off descriptors without waiting, see READINESS-SUPPORTED-P, its non-blocking descriptor;
or NIL when the one that came was gone again (ECONNABORTED) or the wait was cut short.  Called
within DEFERRING-INTERRUPTS, so that no connection is lost on its way to the caller: the wait is
then cut short where another thread wants to interrupt or destroy this one, or after a few seconds.
Signals LISTENER-CLOSED once the listener was woken or closed, DESCRIPTORS-EXHAUSTED when the system
has no room for a connection, NETWORK-TROUBLE when the network failed under it, and ACCEPT-FAILED
for anything else."))

(defgeneric pending-connection-p (listener)
  (:documentation "True when a connection waits on LISTENER to be accepted, or when the
platform cannot tell.  Does not block."))

(defgeneric wake-listener (listener waiting-count)
  (:documentation "Makes every accept on LISTENER, of which WAITING-COUNT are under way,
end with LISTENER-CLOSED or NIL.  Where the platform has no call for that, connects to
the listener WAITING-COUNT times."))

(defgeneric stop-arrivals (listener)
  (:documentation "Has the system begin no further connection to LISTENER, where it can; those that
it has begun come, and are to be accepted.  NIL where what comes is not for us alone.")
  (:method (listener)
    (declare (ignore listener))
    t))

(defgeneric close-listener (listener)
  (:documentation "Closes LISTENER and so frees its port.  Nobody may be waiting on it."))

(defconstant +eio+ 5
  "The error number of a failure of which no more is known.")

(defconstant +ebadf+ 9
  "The error number of who uses a descriptor that is closed.")

;;; What it means that accepting failed.
;;;
;;;   kind         means                                        what helps
;;;   :none        nothing is there                             to wait for the next connection
;;;   :gone        the connection that came is gone again       to accept again at once
;;;   :again       the network failed under it (accept(2))      to accept again after a moment
;;;   :exhausted   no descriptor, or no memory, is left         the same, and to let others go
;;;   :closed      the listener was shut down or closed         nothing
;;;   :other       anything else, as a firewall's refusal       as for :AGAIN

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
  "Error numbers by what they mean when they come from accept(2).")

(defun accept-failure-kind (number)
  "What the error NUMBER, an integer or NIL when unknown, of accept(2) means: :NONE, :GONE, :AGAIN,
:EXHAUSTED, :CLOSED or :OTHER."
  (or (first (find-if (lambda (entry) (member number (rest entry))) *accept-failures*))
      :other))

(defun make-accept-failure (kind cause)
  "The condition that tells of CAUSE, which is of KIND, a value of ACCEPT-FAILURE-KIND."
  (make-condition (ecase kind
                    (:again 'network-trouble)
                    (:exhausted 'descriptors-exhausted)
                    (:closed 'listener-closed)
                    (:other 'accept-failed))
                  :cause cause))

(defun condition-kind (condition)
  "The kind of failure of a CONDITION that accepting signalled."
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
  "After how many seconds, an integer, a wait for a connection is cut short: an interrupt that comes
just before the wait begins cuts nothing short.")

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
  (:documentation "Waits until SOCKET has bytes to read or was ended by its peer: then true.  NIL
after UNTIL, a moment of MILLISECONDS, or NIL for no limit; when that has passed, only looks.
Signals do not move the end of the wait."))

(defgeneric limit-waits (socket seconds)
  (:documentation "Lets no single read on the stream of SOCKET take longer than SECONDS, a
real or NIL for no limit."))

(defgeneric shut-down (socket direction)
  (:documentation "Ends SOCKET in DIRECTION, :INPUT, :OUTPUT or :IO, without giving up its
descriptor: whoever waits in it reads an end of file.  Never signals; NIL when the peer
was gone already."))

(defgeneric socket-open-p (socket)
  (:documentation "True while nobody has closed SOCKET or its stream."))

(defgeneric close-socket (socket)
  (:documentation "Closes SOCKET and its stream, dropping what was not flushed.  Never
signals; NIL when it was closed already."))

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
  (:documentation "Sends small packets of SOCKET at once (TCP_NODELAY); NIL where SOCKET is no TCP
socket.")
  (:method (socket)
    (handler-case (progn (setf (usocket:socket-option socket :tcp-nodelay) t) t)
      (error () nil))))

(defun mapped-p (address)
  "True when ADDRESS is an IPv4 address in an IPv6 one (RFC 4291, section 2.5.5.2)."
  (and (= (length address) 16)
       (= 10 (or (position 0 address :test-not #'eql) 16))
       (= #xFF (aref address 10) (aref address 11))))

(defun address-string (address)
  "ADDRESS, octets, as people write it (RFC 5952, section 4.3).  An IPv4 peer of a socket for
IPv6 gets its IPv4 address, by which programs know it."
  (cond ((mapped-p address) (usocket:host-to-hostname (subseq address 12)))
        ((= (length address) 16) (string-downcase (usocket:host-to-hostname address)))
        (t (usocket:host-to-hostname address))))

(defun name-values (address port)
  (values (address-string address) port))

(defgeneric peer-name (socket)
  (:documentation "The address, a string, and the port of the peer of SOCKET; of a Unix-domain
socket \"unix:\" and 0.  Signals PEER-GONE when it is too late to ask.")
  (:method (socket)
    (multiple-value-call #'name-values
      (handler-case (usocket:get-peer-name socket)
        ;; The only thing that can be wrong with the question.
        (error () (error 'peer-gone))))))

(defgeneric local-name (socket)
  (:documentation "The address, a string, and the port of our own end of SOCKET; of a
Unix-domain socket \"unix:\" before its path, and 0.")
  (:method (socket)
    (multiple-value-call #'name-values (usocket:get-local-name socket))))

(defgeneric socket-octet-stream (socket)
  (:documentation "The stream that reads and writes the octets of SOCKET.  In the ready engine it
takes no characters.")
  (:method (socket)
    (usocket:socket-stream socket)))

;;; As READ-SEQUENCE and WRITE-SEQUENCE do it, but where these lose octets; see streams-ecl.lisp.

(defgeneric read-stream-octets (stream octets start end)
  (:documentation "Reads OCTETS, a vector, from START to END from STREAM, a stream of octets,
waiting for them.  Returns how many octets: fewer only at its end.  Signals what STREAM does, in
particular when a wait took longer than LIMIT-WAITS has allowed.")
  (:method (stream octets start end)
    (- (read-sequence octets stream :start start :end end) start)))

(defgeneric write-stream-octets (stream octets start end)
  (:documentation "Sends OCTETS, a vector, from START to END to STREAM, a stream of octets, after
what was written to it before, waiting for its peer.  What it returns does not matter.  Signals what
STREAM does, in particular when a wait took longer than the socket allows.")
  (:method (stream octets start end)
    (write-sequence octets stream :start start :end end)
    (finish-output stream)))

(defgeneric stream-tls-handle (stream)
  (:documentation "The SSL object of OpenSSL, a CFFI pointer, by which STREAM, CL+SSL's, encrypts;
NIL for other streams, and for one that is closed.")
  (:method (stream)
    (declare (ignore stream))
    nil))

;;; Sockets that tell whether a program wants to read or write them

(defgeneric socket-asked-p (socket)
  (:documentation "True when a program has asked for the stream of SOCKET, which is watched, since
WATCH-SOCKET was called last."))

(defclass watched-usocket (usocket:stream-usocket)
  ((asked-p
    :initform nil
    :accessor socket-asked-p
    :documentation "True when somebody has asked for the stream since this was set to NIL."))
  (:documentation "A usocket that notes when somebody asks for its stream, save by
SOCKET-OCTET-STREAM."))

(defmethod usocket:socket-stream :before ((socket watched-usocket))
  (setf (socket-asked-p socket) t))

(defmethod socket-octet-stream ((socket watched-usocket))
  (slot-value socket 'usocket::stream))

(defgeneric watch-socket (socket)
  (:documentation "Makes SOCKET one that tells by SOCKET-ASKED-P whether somebody has asked for its
stream from now on.")
  (:method ((socket usocket:stream-usocket))
    (change-class socket 'watched-usocket))
  (:method ((socket watched-usocket))
    (setf (socket-asked-p socket) nil)))

;;; A socket that we read and write ourselves may get a stream of the Lisp's own beside ours.

(defgeneric octet-stream-descriptor (octet-stream)
  (:documentation "The descriptor of OCTET-STREAM; NIL when it is closed."))

(defgeneric accompany (octet-stream stream)
  (:documentation "Notes that programs have STREAM, one of the Lisp's own, for the socket of
OCTET-STREAM."))

(defgeneric hand-octets-over (octet-stream)
  (:documentation "Makes what OCTET-STREAM has received and not handed out what the Lisp's own
stream beside it hands out next, and sends what was written."))

(defparameter *discard-seconds* 1
  "For how long in all, in seconds, what a peer still sends is dropped before its connection is
closed.")

(defparameter *discard-octets* (* 4 1024 1024)
  "How many octets that a peer still sends are dropped before its connection is closed.")

(defparameter *discard-pause* 1/10
  "After how many seconds without an octet nothing more is expected of a peer.")

(defgeneric discard-available-input (socket most end)
  (:documentation "Drops what SOCKET has ready, an octet at least and MOST at most, until END, a
moment of MILLISECONDS.  Returns how many octets; NIL at the end of its input.")
  (:method (socket most end)
    (loop with stream = (socket-octet-stream socket)
          for count from 1 to most
          unless (read-byte stream nil nil)
            return nil
          while (and (or (plusp (mod count 4096)) ; seldom, for the clock's sake
                         (plusp (milliseconds-left end)))
                     (listen stream))
          finally (return (min count most)))))

(defun discard-input (socket)
  "Reads and drops what the peer of SOCKET sends until it ends, or pauses, or takes too long, or
has sent too much: nginx calls this a lingering close."
  (loop with end = (end-after *discard-seconds*)
        with room = *discard-octets*
        for count = (and (await-input socket :until (min end (end-after *discard-pause*)))
                         (discard-available-input socket room end))
        while (and count
                   (plusp (decf room count))
                   (plusp (milliseconds-left end)))))

(defun close-after (socket function)
  "Ends our half of SOCKET, calls FUNCTION, and closes SOCKET, whatever failed.  Never signals."
  ;; A stream around it may have closed it: its descriptor is another connection's by now.
  (when (socket-open-p socket)
    (with-acquired (socket socket (close-socket socket))
      (when (shut-down socket :output)
        (handler-case (funcall function)
          (error () nil))))))

(defun close-gently (socket &optional more-p)
  "Closes SOCKET, whose last answer was sent.  When its peer sent more than was read, or MORE-P
tells that it may, waits a moment for it to see our end: a socket closed with unread input, or
before more comes, resets its peer, who may then lose the answer that is on its way (RFC 9112,
section 9.6).  That moment has limits, whatever the peer does; see *DISCARD-PAUSE*,
*DISCARD-SECONDS* and *DISCARD-OCTETS*.  Never signals."
  (close-after socket (lambda ()
                        (when (or more-p (await-input socket :until (milliseconds)))
                          (discard-input socket)))))

(defun close-unread (socket)
  "Closes SOCKET, to whose peer something was said though nothing was read, without waiting: what
has come is dropped, or the peer would be reset; see CLOSE-GENTLY.  Never signals."
  (close-after socket (lambda ()
                        (when (await-input socket :until (milliseconds))
                          (discard-available-input socket *discard-octets*
                                                   (milliseconds))))))
