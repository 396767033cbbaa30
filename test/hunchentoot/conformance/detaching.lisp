(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/detaching :in conformance
  :description "Connections that a handler takes over, as WebSocket libraries do.")

;;; These tests use what libraries use though Hunchentoot does not export it.

(defun say (stream string)
  "Writes STRING to STREAM, of octets, and sends it off."
  (write-sequence (encode string) stream)
  (finish-output stream))

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

(define-server-test a-detached-connection-belongs-to-the-handler
  (with-detached (connection stream :headers '(("Connection" . "close")))
      (hunchentoot:detach-socket hunchentoot:*acceptor*)
    (is (not (readable-p connection)))
    (say stream "said later")
    (is (string= "said later" (read-text connection 10)))
    (close stream)
    (is (closed-by-server-p connection))))

(define-server-test a-detached-connection-can-be-read-by-the-handler
  (with-detached (connection stream :headers '(("Connection" . "close")))
      (hunchentoot:detach-socket hunchentoot:*acceptor*)
    (send connection "abc")
    (let ((octets (octets "...")))
      (is (= 3 (read-sequence octets stream)))
      (is (string= "abc" (decode octets))))))

(define-server-test a-connection-can-be-kept-by-the-variable-alone
  (with-detached (connection stream :version "HTTP/1.0")
      (setf hunchentoot::*close-hunchentoot-stream* nil)
    (is (not (readable-p connection)))
    (say stream "still here")
    (is (string= "still here" (read-text connection 10)))))

(define-server-test stopping-leaves-a-detached-connection-alone
  (with-detached (connection stream :headers '(("Connection" . "close")))
      (hunchentoot:detach-socket hunchentoot:*acceptor*)
    (stop-if-started *server*)
    (say stream "alive")
    (is (string= "alive" (read-text connection 5)))))

;;; A conversation after the response, in the thread of the request

(defclass echoing-request (hunchentoot:request) ()
  (:documentation "A request that answers 101 and then echoes what the client says."))

(defmethod hunchentoot:process-request :after ((request echoing-request))
  (when (string= "/echo" (hunchentoot:script-name request))
    (let ((stream (hunchentoot::content-stream request)))
      (loop for octet = (read-byte stream nil nil)
            while octet
            do (write-byte octet stream)
               (finish-output stream)))))

(defmacro serving-echo (&body body)
  "Evaluates BODY while /echo switches to a protocol that echoes every octet."
  `(serving (:request-class 'echoing-request)
       (("/echo" (setf (hunchentoot:return-code*) 101
                       (hunchentoot:header-out :connection) "Upgrade"
                       (hunchentoot:header-out :upgrade) "echo"
                       (hunchentoot:content-length*) 0)
                 (hunchentoot:send-headers)
                 (finish-output hunchentoot::*hunchentoot-stream*))
        ("/plain" "plain"))
     ,@body))

(define-server-test a-request-may-go-on-talking-on-its-blocking-stream
  (serving-echo
    (with-connection (connection)
      (let ((response (exchange connection "/echo")))
        (is (= 101 (response-status response)))
        (is (string= "echo" (response-header response "upgrade"))))
      (dolist (word '("first" "second"))
        (send connection word)
        (is (string= word (read-text connection (length word)))))
      (end-sending connection)
      (is (closed-by-server-p connection)))))

(define-server-test others-are-served-during-such-a-conversation
  (serving-echo
    (with-connection (connection)
      (exchange connection "/echo")
      (is (string= "plain" (ask-text "/plain")))
      (send connection "x")
      (is (string= "x" (read-text connection 1))))))
