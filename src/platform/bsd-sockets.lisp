(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Where usocket's sockets are those of sb-bsd-sockets: SBCL and ECL.

(defun %error-number (condition)
  (typecase condition
    (sb-bsd-sockets:socket-error (sb-bsd-sockets::socket-error-errno condition))))

(defun %accept (listener)
  (let ((socket (sb-bsd-sockets:socket-accept (usocket:socket listener))))
    (when socket
      (usocket::make-stream-socket
       :socket socket
       :stream (sb-bsd-sockets:socket-make-stream
                socket :input t :output t :buffering :full :element-type 'octet)))))
