(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Where usocket's sockets are those of sb-bsd-sockets: SBCL and ECL.

(defun %error-number (condition)
  (typecase condition
    (sb-bsd-sockets:socket-error (sb-bsd-sockets::socket-error-errno condition))))

(defun %prepare-listener (listener seconds)
  ;; A wait with a limit of its own is not begun anew after a signal, see signal(7).
  #+linux (limit-receiving (usocket:socket listener) seconds)
  #-linux (progn listener seconds))

(defun wait-and-accept (listener)
  "The next connection of LISTENER, a socket of the Lisp's own; or NIL."
  #+linux (sb-bsd-sockets:socket-accept listener)
  ;; Here a signal may cut nothing short, so a connection can be lost with the thread.
  #-linux (interruptibly (sb-bsd-sockets:socket-accept listener)))

(defun %accept (listener)
  (let ((socket (wait-and-accept (usocket:socket listener))))
    (when socket
      #+linux (limit-receiving socket 0) ; it has the listener's limit
      (accepted-socket socket))))

(defun stream-usocket (socket)
  "A usocket for SOCKET, one of the Lisp's own, with a stream of octets."
  (usocket::make-stream-socket
   :socket socket
   :stream (sb-bsd-sockets:socket-make-stream
            socket :input t :output t :buffering :full :element-type 'octet)))
