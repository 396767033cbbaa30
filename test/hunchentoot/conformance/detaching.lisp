(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/detaching :in conformance
  :description "Connections that a handler takes over, as WebSocket libraries do.")

;;; These tests use what libraries use though Hunchentoot does not export it.

(defun read-text (connection count)
  "The next COUNT octets from CONNECTION as a string."
  (decode (read-octets connection count)))

(defclass departing ()
  ((departed :initform (make-gate "process-connection to return") :reader departed))
  (:documentation "A mixin for an acceptor that tells when it is done with a connection,
so that nobody uses the stream together with it."))

(defmethod hunchentoot:process-connection :around ((acceptor departing) socket)
  (declare (ignore socket))
  (unwind-protect (call-next-method)
    (open-gate (departed acceptor))))

(defmacro with-detached ((connection stream &rest keys) form &body body)
  "Evaluates BODY with STREAM bound to the server's end of CONNECTION, which a handler
that evaluates FORM has taken over in a request made of KEYS, and closes it afterwards."
  `(let ((,stream nil))
     (serving (:mixin 'departing) (("/" ,form
                                        (setf ,stream hunchentoot::*hunchentoot-stream*)
                                        "taken over"))
       (with-connection (,connection)
         (is (string= "taken over" (exchange-text ,connection "/" ,@keys)))
         (await (departed *server*))
         (unwind-protect (progn ,@body)
           (close ,stream))))))

(define-server-test a-detached-connection-belongs-to-the-handler-even-after-a-stop
  (with-detached (connection stream :headers '(("Connection" . "close")))
      (hunchentoot:detach-socket hunchentoot:*acceptor*)
    (is (not (readable-p connection)))
    (send connection "abc")
    (let ((octets (octets "...")))
      (is (= 3 (read-sequence octets stream)))
      (is (string= "abc" (decode octets))))
    (stop-if-started *server*)
    (write-parts stream "said later")
    (is (string= "said later" (read-text connection 10)))
    (close stream)
    (is (closed-by-server-p connection))))

(define-server-test a-connection-can-be-kept-by-the-variable-alone
  (with-detached (connection stream :version "HTTP/1.0")
      (setf hunchentoot::*close-hunchentoot-stream* nil)
    (is (not (readable-p connection)))
    (write-parts stream "still here")
    (is (string= "still here" (read-text connection 10)))))
