(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; For SBCL and ECL, where usocket uses the sockets of sb-bsd-sockets.

(defun %error-number (condition)
  (typecase condition
    (sb-bsd-sockets:socket-error (sb-bsd-sockets::socket-error-errno condition))))

(defun %prepare-listener (listener seconds)
  ;; The system does not restart a wait with a timeout after a signal; see signal(7).
  #+linux (limit-receiving (usocket:socket listener) seconds)
  #-linux (progn listener seconds))

(defun wait-and-accept (listener)
  "The next connection of LISTENER, a socket of the Lisp; or NIL."
  #+linux (sb-bsd-sockets:socket-accept listener)
  ;; Signals do not end this wait, so it must be interruptible, and can lose a connection.
  #-linux (interruptibly (sb-bsd-sockets:socket-accept listener)))

(defun %accept (listener)
  (let ((socket (wait-and-accept (usocket:socket listener))))
    (when socket
      #+linux (limit-receiving socket 0) ; it inherits the listener's timeout
      (accepted-socket socket))))

(defun receive-before-stream (usocket octets count)
  "Receives at most COUNT octets from USOCKET, whose stream was not read yet, into OCTETS, and waits
for the first.  The stream does not read them later.  Returns their number; 0 at the end of input,
and if the socket has failed."
  (handler-case (progn
                  (%await-input usocket nil)
                  (or (nth-value 1 (sb-bsd-sockets:socket-receive (usocket:socket usocket)
                                                                  octets count))
                      0))
    (error () 0)))

(defun stream-usocket (socket)
  "A usocket for SOCKET, a socket of the Lisp, with a stream of octets."
  (usocket::make-stream-socket
   :socket socket
   :stream (sb-bsd-sockets:socket-make-stream
            socket :input t :output t :buffering :full :element-type 'octet)))
