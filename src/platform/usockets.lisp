(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Connections as usockets, where the ready engine cannot be made: on ECL and ABCL, and on SBCL
;;;; elsewhere than on 64-bit Linux.  Each has a thread that waits.  linux/sockets.lisp has the same
;;;; functions.

#-ecl
(progn
  (defun prepare-listener (listener)
    "Does nothing: waits for a connection of LISTENER need no limit here."
    (declare (ignore listener)))

  (defun accept-usocket (listener)
    ;; The stream reports the element type in this form, so this is the form that Hunchentoot uses.
    (interruptibly (usocket:socket-accept listener :element-type '(unsigned-byte 8))))

  (defun receive-before-stream (usocket octets count)
    "Receives at most COUNT octets from USOCKET, whose stream was not read yet, into OCTETS, and
waits for the first.  Returns their number; 0 at the end of input, and if the socket has failed."
    ;; A read of several would wait for all of them.
    (handler-case (read-stream-octets (usocket:socket-stream usocket) octets 0 (min count 1))
      (error () 0))))

#+sbcl
(progn
  (define-none wake-usocket)

  (defun pending-connection-p (listener)
    (await-usocket listener (milliseconds)))

  (defun await-usocket (usocket until)
    (loop for left = (milliseconds-left until)
          for ready = (usocket:wait-for-input usocket :timeout (and left (/ left 1000))
                                                      :ready-only t)
          do (cond (ready (return t))
                   ((eql left 0) (return nil)))))

  (defun limit-usocket (usocket seconds)
    (setf (usocket:socket-option usocket :receive-timeout) seconds))

  (defun shut-usocket (usocket direction)
    (usocket:socket-shutdown usocket direction)
    t))

;;; Listeners

(defun accept-connection (listener)
  "Waits for the next connection on LISTENER, and returns its socket; or NIL if the client has
already left (ECONNABORTED) or the wait was cut short.  The caller uses UNINTERRUPTIBLY, so that no
connection is lost on its way to the caller.  Signals ACCEPT-FAILED."
  (handler-case (let ((socket (accept-usocket listener)))
                  (when socket
                    (ignore-errors (setf (usocket:socket-option socket :tcp-nodelay) t))
                    socket))
    (error (condition)
      (unless (eq :none (accept-error-kind (error-number condition)))
        (error 'accept-failed :cause condition)))))

(defun wake-listener (listener waiting-count)
  "Ends every ACCEPT-CONNECTION on LISTENER, in WAITING-COUNT threads, with ACCEPT-FAILED or NIL.
If the platform has no call for that, connects to the listener WAITING-COUNT times."
  (unless (wake-usocket listener)
    (multiple-value-bind (address port) (usocket:get-local-name listener)
      (loop repeat waiting-count
            do (usocket:socket-close
                (usocket:socket-connect (if (every #'zerop address) "127.0.0.1" address)
                                        port))))))

(defun stop-arrivals (listener)
  "True: connections to LISTENER may still begin, but no other process gets them."
  (declare (ignore listener))
  t)

(defun close-listener (listener)
  "Closes LISTENER, and so frees its port.  No thread may wait on it then."
  (usocket:socket-close listener))

;;; Connections

(defun await-input (socket &key until)
  "Waits until SOCKET has octets to read, or its peer has ended it; returns true then.  Returns NIL
after UNTIL, a moment of MILLISECONDS, or NIL for no limit.  If UNTIL has passed, only checks.
Signals do not prolong the wait."
  (await-usocket socket until))

(defmethod limit-waits ((socket usocket:stream-usocket) seconds)
  (limit-usocket socket seconds))

(defun shut-down (socket direction)
  "Shuts SOCKET down in DIRECTION, :INPUT, :OUTPUT or :IO, but keeps its descriptor open.  A thread
that waits to read from it gets an end of file.  Never signals; NIL if the peer had already left."
  (handler-case (shut-usocket socket direction)
    (error () nil)))

(defun socket-octet-stream (socket)
  "The stream that reads and writes the octets of SOCKET."
  (slot-value socket 'usocket::stream))

(defun socket-open-p (socket)
  "True until SOCKET or its stream is closed."
  (open-stream-p (socket-octet-stream socket)))

(defun close-socket (socket)
  "Closes SOCKET and its stream, and drops unflushed output.  Never signals; NIL if SOCKET was
closed already."
  (handler-case (close (socket-octet-stream socket) :abort t)
    (error () nil)))

(defun discard-available-input (socket)
  "Drops octets that SOCKET has ready, at least one.  NIL at the end of input."
  (loop with stream = (socket-octet-stream socket)
        repeat 4096
        always (read-byte stream nil nil)
        while (listen stream)))

(defun peer-name (socket)
  "The address, a string, and the port, an integer, of the peer of SOCKET.  Signals PEER-GONE if the
peer has left."
  (multiple-value-bind (address port)
      (handler-case (usocket:get-peer-name socket)
        (error () (error 'peer-gone)))  ; the call can fail for no other reason
    (values (address-string address) port)))

(defun local-name (socket)
  "The address, a string, and the port, an integer, of our own end of SOCKET."
  (multiple-value-bind (address port) (usocket:get-local-name socket)
    (values (address-string address) port)))

;;; What the engine for descriptors and others would need: much of it is compiled, and not used.

(deftype descriptor () 'fixnum)
(deftype token () 'integer)

(defconstant +most-dropped+ 1)

(define-none readiness-supported-p would-block-p private-folder open-temporary-file prepare-process
             take-variable take-number defer-accepts admit-held
             error-text socket-descriptor descriptor-peer-name token-hangup-p
             plain-token receive-octets first-octet drop-octets send-octets accept-descriptor
             close-descriptor shut-descriptor await-descriptor set-blocking
             unsent-octets lisp-stream-descriptor lisp-stream-milliseconds
             (setf lisp-stream-milliseconds) lend-stream put-read-ahead process-number
             send-notification inherited-descriptor open-path-listener open-inherited-listener
             open-shared-port-listener native-name open-file file-facts read-file-octets
             write-file-octets send-file make-poller close-poller watch rearm
             wake-one await-ready make-timer-descriptor arm-timer-descriptor thread-identity
             thread-state thread-run-time processor-stall processor-idle-time
             online-processors processor-count schedule-as-batch let-timers-be-late nap)

(defclass descriptor-usocket (watched-usocket) ())
