(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/detached-tls :in conformance
  :description
  "Programs that take TLS connections away and talk on them in threads of their own, as libraries
for WebSockets do, with messages as in libraries.lisp.")

(defmacro serving-detached ((task stream form) &body body)
  "Evaluates BODY while a connection over TLS that asks for /talk is detached, and FORM is evaluated
with its STREAM in another thread, whose task the function TASK returns."
  `(let ((begun nil))
     (with-routes (("/talk" (let ((,stream hunchentoot::*hunchentoot-stream*)
                                  (acceptor hunchentoot:*acceptor*))
                              (hunchentoot:detach-socket acceptor)
                              (setf (hunchentoot:return-code*) 101
                                    begun (in-background ("the talk")
                                            (await (departed acceptor))
                                            ,form))
                              "")))
       (flet ((,task () (eventually ("the program to have the connection") begun)))
         (over-tls
           (let ((*make-connection* '%make-connection))
             (with-acceptor (acceptor :mixin 'departing :read-timeout 600)
               ,@body)))))))

(defun begin-talk (connection)
  "A stream of TLS on CONNECTION, over which /talk was granted."
  (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection) :verify nil)))
    (write-sequence (request-octets "/talk") stream)
    (finish-output stream)
    (loop with end = (octets :crlf :crlf)
          for octets = '() then (append (last octets 3) (list (read-byte stream)))
          until (equalp end (coerce octets 'octet-vector)))
    stream))

(define-server-test (a-program-talks-over-tls-in-a-thread-of-its-own :needs (:our-http :tls-client))
  (serving-detached (task stream (unwind-protect (ignore-errors (echo stream))
                                   (close stream)))
    (with-connection (connection)
      (let ((stream (begin-talk connection)))
        (dolist (text (list "hello" "" (make-string 255 :initial-element #\x)))
          (say-message stream text)
          (is (string= text (receive-message stream))))
        ;; Many at once, in one record.
        (write-sequence (octets (loop repeat 100 collect (message "a"))) stream)
        (finish-output stream)
        (is (loop repeat 100 always (string= "a" (receive-message stream))))
        (close stream)
        (task-result (task))))
    (eventually ("the connection to be given away") (zerop (figure :open)))
    (is (zerop (figure :failed)))))

(define-server-test (a-program-that-closes-its-tls-stream-ends-the-connection
                     :needs (:our-http :tls-client))
  (serving-detached (task stream (progn (say-message stream "only this")
                                        (close stream)
                                        (open-stream-p stream)))
    (with-connection (connection)
      (let ((stream (begin-talk connection)))
        (is (null (task-result (task))))
        (is (string= "only this" (receive-message stream)))
        (is (null (read-byte stream nil)))))))
