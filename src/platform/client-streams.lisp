(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Streams of a client library, with sockets that the library has opened: a client of a database,
;;;; say.

#+sbcl
(defgeneric client-descriptor (stream)
  (:documentation "The descriptor, an integer, below STREAM, which must be open.")
  (:method ((stream sb-sys:fd-stream))
    (sb-sys:fd-stream-fd stream))
  #-hunchentoot-no-ssl
  (:method ((stream cl+ssl::ssl-stream))
    (cl+ssl::ssl-get-fd (cl+ssl::ssl-stream-handle stream))))

(defun await-stream-input (stream seconds)
  "Waits up to SECONDS, a real, until STREAM, an open stream of octets on a socket, has octets to
read, or its peer has ended it; returns true then, else NIL.  With TLS, what has come may be no
octet of the peer's."
  #+sbcl
  (or (listen stream)
      (await-descriptor (client-descriptor stream) :input :until (end-after seconds)))
  #-sbcl
  (wait-until (lambda () (listen stream))
              (bt:make-condition-variable) (bt:make-lock "client stream") seconds 1/20))

(defun call-within (seconds function &optional (give-up (constantly nil)))
  "Calls FUNCTION, a function without arguments, and returns its values.  On SBCL, if it still waits
for a socket or a lock once SECONDS, a real, are over, calls GIVE-UP, a function without arguments,
and signals an error.  GIVE-UP prevents cleanup forms in FUNCTION from waiting again."
  #+sbcl
  (handler-case (handler-bind ((sb-sys:deadline-timeout (lambda (condition)
                                                          (declare (ignore condition))
                                                          (funcall give-up))))
                  (sb-sys:with-deadline (:seconds seconds)
                    (funcall function)))
    (sb-sys:deadline-timeout ()         ; which is no error
      (error "There was no answer within ~A second~:P." seconds)))
  #-sbcl
  (progn seconds give-up
         (funcall function)))

(defun open-path-stream (path)
  "A stream of octets that is connected to the Unix-domain socket PATH, a string.  Signals an error
if nobody listens there.  SBCL only."
  #+sbcl
  (let ((socket (make-instance 'sb-bsd-sockets:local-socket :type :stream)) (stream nil))
    (unwind-protect
         (progn (sb-bsd-sockets:socket-connect socket path)
                (setf stream (sb-bsd-sockets:socket-make-stream
                              socket :input t :output t :buffering :full
                                     :element-type '(unsigned-byte 8))))
      (unless stream
        (sb-bsd-sockets:socket-close socket :abort t))))
  #-sbcl
  (error "This Lisp cannot connect to ~A." path))
