(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/detached-tls :in conformance
  :description
  "Programs that take TLS connections away and talk on them in threads of their own, as libraries
for WebSockets do.  A message is an octet for its length, and that many octets.")

(defun read-message (stream)
  "The next message from STREAM, octets; NIL at its end."
  (let ((length (read-byte stream nil)))
    (when length
      (let ((message (make-array length :element-type '(unsigned-byte 8))))
        (and (= length (read-sequence message stream))
             message)))))

(defun write-message (message stream)
  (write-byte (length message) stream)
  (write-sequence message stream)
  (finish-output stream))

(defun echo-messages (stream)
  "Sends every message from STREAM back, says BYE at its end, and closes it."
  (unwind-protect
       (progn
         (loop for message = (read-message stream)
               while message
               do (write-message message stream))
         (write-message (octets "BYE") stream))
    (close stream)))

(defmacro serving-detached ((talker form &key (seconds 600)) &body body)
  "Evaluates BODY while a connection over TLS that asks for /talk is detached, and its *TALK-SOCKET*
and stream are what FORM is evaluated with, in a thread whose task is what the function TALKER
returns.  Reads may take SECONDS, unless the program says otherwise."
  (let ((task (gensym "TASK")))
    `(let ((,task nil))
       (with-routes (("/talk" (let ((stream hunchentoot::*hunchentoot-stream*)
                                    (socket *talk-socket*))
                                (declare (ignorable socket))
                                (hunchentoot:detach-socket hunchentoot:*acceptor*)
                                (setf (hunchentoot:return-code*) 101)
                                (let ((gate (make-gate)))
                                  (setf ,task (list gate (in-background ("the talk")
                                                           (await gate)
                                                           (symbol-macrolet ((<stream> stream)
                                                                             (<socket> socket))
                                                             ,form)))))
                                "")))
         (flet ((,talker ()
                  (eventually ("the program to have the connection") ,task)
                  (open-gate (first ,task))
                  (second ,task)))
           (over-tls
             (let ((*make-connection* '%make-connection))
               (with-acceptor (acceptor :mixin 'talkative :read-timeout ,seconds)
                 ,@body))))))))

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
  (serving-detached (talker (echo-messages <stream>))
    (with-connection (connection)
      (let ((stream (begin-talk connection)) (task (talker)))
        (dolist (message (list (octets "hello") (octets "") (test-octets 255)))
          (write-message message stream)
          (is (equalp message (read-message stream))))
        ;; Many at once, in one record.
        (loop repeat 100 do (write-byte 1 stream) (write-byte 7 stream))
        (finish-output stream)
        (is (loop repeat 100 always (equalp #(7) (read-message stream))))
        (close stream)
        (task-result task)))
    (eventually ("the connection to be given away") (zerop (figure :open)))
    (is (zerop (figure :failed)))))

(define-server-test (a-program-that-closes-its-tls-stream-ends-the-connection
                     :needs (:our-http :tls-client))
  (serving-detached (talker (progn (write-message (octets "only this") <stream>)
                                   (close <stream>)
                                   (open-stream-p <stream>)))
    (with-connection (connection)
      (let ((stream (begin-talk connection)))
        (is (null (task-result (talker))))
        (is (equalp (octets "only this") (read-message stream)))
        (is (null (read-byte stream nil)))))))
