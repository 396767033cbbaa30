(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/connection-methods :in conformance
  :description "Methods of PROCESS-CONNECTION that do more than to wrap it.")

;;; One that reads before Hunchentoot does

(defclass behind-a-proxy () ()
  (:documentation "A mixin for an acceptor whose connections begin with a line of the PROXY
protocol."))

(defun read-proxy-line (socket)
  "Reads a line of octets from SOCKET, no more."
  (let ((stream (usocket:socket-stream socket)))
    (decode (coerce (loop for octet = (read-byte stream nil nil)
                          while octet
                          collect octet
                          until (eql octet 10))
                    'octet-vector))))

(defun note-proxy-line (socket)
  (note (string-right-trim '(#\Return #\Newline) (read-proxy-line socket))))

(defmethod hunchentoot:process-connection :around ((acceptor behind-a-proxy) socket)
  (note-proxy-line socket)
  (call-next-method))

(defclass behind-another-proxy () ())

(defmethod hunchentoot:process-connection :before ((acceptor behind-another-proxy) socket)
  (note-proxy-line socket))

(defparameter *proxy-line* "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443")

(defmacro serving-numbers ((mixin) &body body)
  `(noting
     (serving (:mixin ,mixin)
         (("/" (format nil "~A ~A" (hunchentoot:get-parameter "n")
                       (or (hunchentoot:raw-post-data :force-text t) ""))))
       ,@body)))

(defun numbered-request (number)
  (if (evenp number)
      (request-octets (format nil "/?n=~D" number))
      (request-octets (format nil "/?n=~D" number) :method :post :content "body")))

(defun send-numbers (connection start end &rest first)
  "Sends the requests from START below END to CONNECTION at once, behind the octets of FIRST; checks
that they are answered."
  (send connection first (loop for number from start below end collect (numbered-request number)))
  (loop for number from start below end
        do (is (string= (format nil "~D ~:[body~;~]" number (evenp number))
                        (response-text (read-response connection))))))

(define-server-test methods-around-and-before-may-read-a-line-first
  (dolist (mixin '(behind-a-proxy behind-another-proxy))
    (dolist (count '(1 5))
      (serving-numbers (mixin)
        (with-connection (connection)
          (send-numbers connection 0 count *proxy-line* :crlf)
          (loop for number from 1 to 3
                do (send-numbers connection number (1+ number))))
        (is (equal (list *proxy-line*) (recorded *steps*)))))))

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

(define-server-test methods-without-qualifier-may-have-a-loop-or-call-the-next
  (dolist (mixin '(monitored passing-on))
    (serving-numbers (mixin)
      (loop repeat 2
            do (with-connection (connection)
                 (loop for number below 4
                       do (send-numbers connection number (1+ number)))
                 ;; More than any buffer has room for
                 (send-numbers connection 0 600)))
      (is (<= 2 (recorded-count *steps* :connection))))))

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
        (write-parts stream "one")
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
  (open-gate (left acceptor))
  (when (ours-p)                        ; else nobody would handle it
    (error "A method has failed.")))

(define-server-test a-detached-connection-stays-open-when-the-request-is-left
  (let ((stream nil))
    (serving (:mixin 'left-amid)
        (("/" (setf stream (hunchentoot:send-headers))
              (write-parts stream "one")
              (hunchentoot:detach-socket hunchentoot:*acceptor*)
              (throw 'leave nil)))
      (with-connection (connection)
        (send-request connection "/" :version "HTTP/1.0")
        (is (= 200 (response-status (read-response connection :head t))))
        (is (string= "one" (read-text connection 3)))
        (await (left *server*))
        (is (not (readable-p connection 1/10)))
        (write-parts stream "two")
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

(define-server-test (replies-of-any-size-come-whole-over-a-stream-of-a-programs-own
                     :needs :our-http)
  (serving (:mixin 'stream-wrapping) (("/" *large-answer*) ("/octets" (test-octets 300000)))
    (with-connection (connection)
      (send-request connection "/")
      (is-true (large-reply-p connection))
      (is (equalp (test-octets 300000) (response-body (exchange connection "/octets")))))))

(define-server-test (a-client-that-leaves-a-stream-of-a-programs-own-holds-up-nobody
                     :needs :our-http)
  (serving-streams (streams) (:mixin 'stream-wrapping)
    (let ((connection (small-connection)))
      (send-request connection "/")
      (recycling:write-outgoing (await-answer streams) *large-answer*)
      (read-head connection)
      (reset connection))
    (eventually ("the connection to end") (zerop (figure :open)))))
