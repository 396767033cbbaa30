(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/connection-methods :in conformance
  :description "Methods of PROCESS-CONNECTION that do more than to wrap it.")

;;; One that reads before Hunchentoot does

(defclass behind-a-proxy () ()
  (:documentation "A mixin for an acceptor whose connections begin with a line of the PROXY
protocol."))

(defvar *proxy-lines* (make-recorder)
  "What the proxies have said; every test makes it new.")

(defun read-proxy-line (socket)
  "Reads a line of octets from SOCKET, no more."
  (let ((stream (usocket:socket-stream socket)))
    (decode (coerce (loop for octet = (read-byte stream nil nil)
                          while octet
                          collect octet
                          until (eql octet 10))
                    'octet-vector))))

(defmethod hunchentoot:process-connection :around ((acceptor behind-a-proxy) socket)
  (record *proxy-lines* (string-right-trim '(#\Return #\Newline) (read-proxy-line socket)))
  (call-next-method))

(defparameter *proxy-line* "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443")

(defmacro serving-behind-a-proxy (&body body)
  `(with-globals ((*proxy-lines* (make-recorder)))
     (serving (:mixin 'behind-a-proxy)
         (("/" (format nil "~A ~A" (hunchentoot:get-parameter "n")
                       (or (hunchentoot:raw-post-data :force-text t) ""))))
       ,@body)))

(defun numbered-request (number)
  (if (evenp number)
      (request-octets (format nil "/?n=~D" number))
      (request-octets (format nil "/?n=~D" number) :method :post :content "body")))

(defun numbered-answer (number)
  (format nil "~D ~:[body~;~]" number (evenp number)))

(define-server-test a-method-around-may-read-a-line-first
  (serving-behind-a-proxy
    (with-connection (connection)
      (send connection *proxy-line* :crlf (numbered-request 0))
      (is (string= (numbered-answer 0) (response-text (read-response connection))))
      (loop for number from 1 to 3
            do (send connection (numbered-request number))
               (is (string= (numbered-answer number)
                            (response-text (read-response connection))))))
    (is (equal (list *proxy-line*) (recorded *proxy-lines*)))))

(defclass behind-another-proxy () ())

(defmethod hunchentoot:process-connection :before ((acceptor behind-another-proxy) socket)
  (record *proxy-lines* (string-right-trim '(#\Return #\Newline) (read-proxy-line socket))))

(define-server-test a-method-before-may-read-a-line-first
  (with-globals ((*proxy-lines* (make-recorder)))
    (serving (:mixin 'behind-another-proxy) (("/" "body"))
      (with-connection (connection)
        (send connection *proxy-line* :crlf (request-octets "/"))
        (is (string= "body" (response-text (read-response connection))))
        (send connection (request-octets "/"))
        (is (string= "body" (response-text (read-response connection))))))
    (is (equal (list *proxy-line*) (recorded *proxy-lines*)))))

(define-server-test such-a-line-and-many-requests-may-come-at-once
  (serving-behind-a-proxy
    (with-connection (connection)
      (send connection *proxy-line*
            :crlf (loop for number below 5 collect (numbered-request number)))
      (loop for number below 5
            do (is (string= (numbered-answer number)
                            (response-text (read-response connection))))))
    (is (equal (list *proxy-line*) (recorded *proxy-lines*)))))

;;; One that takes the place of Hunchentoot's

(defclass answering-lines () ()
  (:documentation "A mixin for an acceptor that speaks another protocol: it answers lines."))

(defmethod hunchentoot:process-connection ((acceptor answering-lines) socket)
  (unwind-protect
       (let ((line (read-proxy-line socket))
             (stream (usocket:socket-stream socket)))
         (write-sequence (octets "You said " line) stream)
         (finish-output stream))
    (ignore-errors (usocket:socket-close socket))))

(define-server-test an-acceptor-may-speak-another-protocol
  (serving (:mixin 'answering-lines) ()
    (dolist (line (list (list "hello" :crlf) (list :crlf) (list "GET / HTTP/1.1" :crlf)))
      (is (equalp (octets "You said " line) (apply #'ask-raw line))))))

(defclass monitored () ()
  (:documentation "A mixin for an acceptor that serves connections as Hunchentoot does, by its own
loop."))

(defmethod hunchentoot:process-connection ((acceptor monitored) socket)
  (note :connection)
  (let* ((hunchentoot:*acceptor* acceptor)
         (hunchentoot::*hunchentoot-stream*
           (hunchentoot:initialize-connection-stream
            acceptor (hunchentoot::make-socket-stream socket acceptor)))
         (hunchentoot::*close-hunchentoot-stream* t))
    (unwind-protect
         (loop
           (let ((hunchentoot::*finish-processing-socket* t))
             (multiple-value-bind (headers method uri protocol)
                 (hunchentoot::get-request-data hunchentoot::*hunchentoot-stream*)
               (unless method (return))
               (let ((hunchentoot:*reply*
                       (make-instance (hunchentoot:acceptor-reply-class acceptor)))
                     (hunchentoot:*session* nil))
                 (hunchentoot:process-request
                  (make-instance (hunchentoot:acceptor-request-class acceptor)
                                 :acceptor acceptor :remote-addr "" :remote-port 0
                                 :local-addr "" :local-port 0
                                 :headers-in headers :method method :uri uri
                                 :server-protocol protocol
                                 :content-stream hunchentoot::*hunchentoot-stream*)))
               (finish-output hunchentoot::*hunchentoot-stream*)
               (setf hunchentoot::*hunchentoot-stream*
                     (hunchentoot:reset-connection-stream acceptor
                                                          hunchentoot::*hunchentoot-stream*))
               (when hunchentoot::*finish-processing-socket* (return)))))
      (close hunchentoot::*hunchentoot-stream* :abort t))))

(defclass passing-on () ()
  (:documentation "A mixin for an acceptor with a method that only calls the next one."))

(defmethod hunchentoot:process-connection ((acceptor passing-on) socket)
  (declare (ignore socket))
  (note :connection)
  (call-next-method))

(defun check-conversation ()
  "Checks that each of several requests on two connections gets its own answer."
  (loop repeat 2
        do (with-connection (connection)
             (loop for number below 4
                   do (send connection (numbered-request number))
                      (is (string= (numbered-answer number)
                                   (response-text (read-response connection)))))
             ;; More than any buffer has room for
             (send connection (loop for number below 600 collect (numbered-request number)))
             (loop for number below 600
                   do (is (string= (numbered-answer number)
                                   (response-text (read-response connection))))))))

(defmacro serving-numbers ((mixin) &body body)
  `(noting
     (serving (:mixin ,mixin)
         (("/" (format nil "~A ~A" (hunchentoot:get-parameter "n")
                       (or (hunchentoot:raw-post-data :force-text t) ""))))
       ,@body)))

(define-server-test every-request-is-answered-by-an-acceptors-own-loop
  (serving-numbers ('monitored)
    (check-conversation)
    (is (= 2 (recorded-count *steps* :connection)))))

(define-server-test a-method-without-qualifier-may-only-call-the-next
  (serving-numbers ('passing-on)
    (check-conversation)
    (is (<= 2 (recorded-count *steps* :connection)))))

;;; One that keeps the connection

(defclass keeping-connections () ((kept :initform (make-recorder) :reader kept))
  (:documentation "A mixin for an acceptor that serves no connection, but keeps its stream."))

(defmethod hunchentoot:process-connection :around ((acceptor keeping-connections) socket)
  (record (kept acceptor) (usocket:socket-stream socket)))

(define-server-test a-connection-that-a-method-keeps-stays-open
  (serving (:mixin 'keeping-connections) ()
    (with-connection (connection)
      (send connection "x" :crlf)
      (let ((stream (eventually ("the connection to be kept") (first (recorded (kept *server*))))))
        (is (not (readable-p connection 1/10)))
        (write-part stream "one")
        (finish-output stream)
        (is (string= "one" (read-text connection 3)))
        (is (eql 120 (read-byte stream)))
        (close stream)
        (is (closed-by-server-p connection))))))

;;; One that is left

(defclass left-amid () ((left :initform (make-gate "the request to be left") :reader left))
  (:documentation "A mixin for an acceptor whose handlers may leave PROCESS-CONNECTION."))

(defmethod hunchentoot:process-connection :around ((acceptor left-amid) socket)
  (declare (ignore socket))
  (catch 'leave (call-next-method))
  (open-gate (left acceptor)))

(define-server-test a-detached-connection-stays-open-when-the-request-is-left
  (let ((stream nil))
    (serving (:mixin 'left-amid)
        (("/" (setf stream (hunchentoot:send-headers))
              (write-part stream "one")
              (finish-output stream)
              (hunchentoot:detach-socket hunchentoot:*acceptor*)
              (throw 'leave nil)))
      (with-connection (connection)
        (send-request connection "/" :version "HTTP/1.0")
        (is (= 200 (response-status (read-response connection :head t))))
        (is (string= "one" (read-text connection 3)))
        (await (left *server*))
        (is (not (readable-p connection 1/10)))
        (write-part stream "two")
        (finish-output stream)
        (is (string= "two" (read-text connection 3)))
        (close stream)
        (is (closed-by-server-p connection))))))

(define-server-test a-connection-is-closed-when-the-request-is-left-otherwise
  (serving (:mixin 'left-amid) (("/" (throw 'leave nil)))
    (with-connection (connection)
      (send-request connection "/")
      (is (closed-by-server-p connection)))))

(define-server-test (a-stream-of-a-programs-own-idles-as-others-do
                     :needs (:our-http :parking))
  (serving (:mixin 'stream-wrapping :idle-timeout 1/2) (("/word" "word"))
    (with-connection (connection)
      (is (string= "word" (exchange-text connection "/word")))
      (is-true (closed-by-server-p connection))
      (await-ended-by :idle))))

(define-server-test (a-client-that-leaves-a-stream-of-a-programs-own-holds-up-nobody
                     :needs :our-http)
  (serving-streams (streams) (:mixin 'stream-wrapping)
    (let ((connection (small-connection)))
      (send-request connection "/")
      (recycling:write-outgoing (await-answer streams) *large-answer*)
      (read-head connection)
      (reset connection))
    (eventually ("the connection to end") (zerop (figure :open)))))
