(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/libraries :in conformance
  :description "What WebSocket libraries and the like do with sockets and streams.")

;;; One takes the socket of a connection from a variable, sets time limits on that, and has each
;;; client's thread read from its content stream, and write to the streams of all.  A message is an
;;; octet for its length, and the text.

(defvar *talk-socket* nil
  "The socket of the connection that is served, in the thread that serves it.")

(defclass talkative () ()
  (:documentation "A mixin for an acceptor that keeps the socket for the library."))

(defmethod hunchentoot:process-connection :around ((acceptor talkative) socket)
  (let ((*talk-socket* socket))
    (call-next-method)))

(defclass talk-request (hunchentoot:request) ()
  (:documentation "A request after which the client may go on to talk."))

(defvar *talk* nil
  "A function of the request and its stream, which talks; set by each test.")

(defmethod hunchentoot:process-request :after ((request talk-request))
  (when (= 101 (hunchentoot:return-code*))
    (let ((stream (hunchentoot::content-stream request)))
      (force-output stream)
      (hunchentoot::set-timeouts *talk-socket* 600 600)
      (handler-case (funcall *talk* stream)
        (error () nil)))))

(defun grant-talk ()
  "What the library's handler does."
  (setf (hunchentoot:return-code*) 101
        (hunchentoot:header-out :upgrade) "talk"
        (hunchentoot:header-out :connection) "Upgrade"
        ;; Or Hunchentoot puts "Keep-Alive" in its place.
        (cdr (assoc :connection (hunchentoot:headers-in*))) "Upgrade")
  "")

(defmacro serving-talk ((stream &body talk) &body body)
  "Evaluates BODY while /talk switches to a talk that evaluates TALK, with STREAM bound to that of
the connection."
  `(with-globals ((*talk* (lambda (,stream) ,@talk)))
     (serving (:mixin 'talkative :request-class 'talk-request)
         (("/talk" (grant-talk)) ("/plain" "plain"))
       ,@body)))

(defun message (text)
  (octets (vector (length text)) text))

(defun receive-message (stream)
  "The next message from STREAM, text; an error at its end."
  (let ((octets (make-array (read-byte stream) :element-type '(unsigned-byte 8))))
    (unless (= (length octets) (read-sequence octets stream))
      (error "Half a message came."))
    (decode octets)))

(defun say-message (stream text)
  (write-sequence (message text) stream)
  (force-output stream))

(defun ask-for-talk (connection &rest more)
  "Sends the request for a talk, and the octets of MORE at once; returns the response."
  (send connection (request-octets "/talk" :headers '(("Connection" . "keep-alive, Upgrade")
                                                      ("Upgrade" . "talk")))
        more)
  (let ((response (read-response connection :head t)))
    (is (= 101 (response-status response)))
    response))

(defun heard (connection)
  "The next message that CONNECTION's client gets, text."
  (read-text connection (next-octet connection)))

(defun echo (stream)
  (loop (say-message stream (receive-message stream))))

(define-server-test a-library-may-talk-on-after-a-101-and-loses-nothing-that-came-with-it
  (serving-talk (stream (echo stream))
    (with-connection (connection)
      (ask-for-talk connection (message "early") (message "bird"))
      (is (string= "early" (heard connection)))
      (is (string= "bird" (heard connection)))
      (dolist (text '("one" "two"))
        (send connection (message text))
        (is (string= text (heard connection))))
      (is (string= "plain" (ask-text "/plain"))))))

(define-server-test (what-the-client-says-at-once-over-tls-is-not-lost :needs :tls-client)
  (over-tls
    (serving-talk (stream (echo stream))
      (with-connection (connection)
        (ask-for-talk connection (message "early"))
        (is (string= "early" (heard connection)))))))

(define-server-test everybody-in-a-chat-hears-everybody
  (let ((streams '()) (lock (bt:make-lock "chat")) (count 50))
    (flet ((tell-all (text)
             (bt:with-lock-held (lock)
               (dolist (stream streams) (say-message stream text)))))
      (serving-talk (stream (bt:with-lock-held (lock) (push stream streams))
                            (unwind-protect (loop (tell-all (receive-message stream)))
                              (bt:with-lock-held (lock)
                                (setf streams (remove stream streams)))))
        (with-connections (connections count)
          (mapc #'ask-for-talk connections)
          (eventually ("all to be in the chat")
            (= count (bt:with-lock-held (lock) (length streams))))
          (loop for connection in connections
                for number from 0
                do (send connection (message (format nil "I am ~D" number))))
          (let ((expected (sort (loop for number below count
                                      collect (format nil "I am ~D" number))
                                #'string<)))
            (is (loop for connection in connections
                      always (equal expected (sort (loop repeat count collect (heard connection))
                                                   #'string<))))))
        (eventually ("the chat to be empty")
          (null (bt:with-lock-held (lock) streams)))))))

(define-server-test a-time-limit-that-is-set-on-the-socket-holds
  (let ((ended (make-gate "the talk to end")))
    (serving-talk (stream (hunchentoot::set-timeouts *talk-socket* 1/5 1/5)
                          (unwind-protect (receive-message stream)
                            (open-gate ended)))
      (with-connection (connection)
        (ask-for-talk connection)
        (await ended)
        (is (closed-by-server-p connection))))))

(define-server-test what-is-left-of-a-talk-is-no-request
  (serving-talk (stream (receive-message stream) (error "The talk fails."))
    (with-connection (connection)
      (ask-for-talk connection (message "one") (message "GET / HTTP/1.1") #(13 10 13 10))
      (is (closed-by-server-p connection)))))

;;; A library that takes the connection away, and has a thread of its own talk on

(define-server-test a-library-may-detach-the-socket-before-its-101
  (let ((talkers (make-recorder)))
    (serving (:mixin 'talkative)
        (("/talk" (hunchentoot:detach-socket hunchentoot:*acceptor*)
                  (record talkers (hunchentoot::content-stream hunchentoot:*request*))
                  (grant-talk)))
      (with-connection (connection)
        (ask-for-talk connection)
        (send connection (message "early"))
        (let ((stream (first (recorded talkers))))
          (unwind-protect (progn (is (string= "early" (receive-message stream)))
                                 (say-message stream "bird")
                                 (is (string= "bird" (heard connection))))
            (close stream)))))))

(define-server-test
    (a-request-for-another-protocol-has-no-content-before-that :needs :our-http)
  (serving () (("/" (shown (read-byte (hunchentoot:raw-post-data :want-stream t) nil))))
    (with-connection (connection)
      (loop repeat 2
            do (is (string= (shown nil)
                            (exchange-text connection "/"
                                           :headers '(("Connection" . "keep-alive, Upgrade")
                                                      ("Upgrade" . "talk")))))))))

;;; What only the Lisp's own streams can do

(defun lisps-own (stream)
  "What handlers show of STREAM that only the Lisp's own streams have; the same everywhere else."
  (if (uiop:featurep :sbcl)
      (list (plusp (uiop:symbol-call '#:sb-sys '#:fd-stream-fd stream)))
      '(t)))

(define-server-test the-stream-of-a-socket-is-one-of-the-lisps-own
  (serving (:mixin 'talkative)
      (("/" (shown (lisps-own (usocket:socket-stream *talk-socket*)))))
    (with-connection (connection)
      (loop repeat 3
            do (is (string= (shown '(t)) (exchange-text connection "/")))))))

(define-server-test octets-leave-in-their-order-whichever-stream-they-were-written-to
  (serving (:mixin 'talkative)
      (("/" (write-sequence (octets "one ") (hunchentoot:send-headers))
            (write-sequence (octets "two") (usocket:socket-stream *talk-socket*))))
    (is (uiop:string-suffix-p (decode (ask-raw (request-octets "/" :version "HTTP/1.0")))
                              "one two"))))

(define-server-test time-limits-may-be-set-in-any-handler
  (serving (:mixin 'talkative)
      (("/" (hunchentoot::set-timeouts *talk-socket* 600 600)
            (hunchentoot:raw-post-data :force-text t)))
    (with-connection (connection)
      (loop for text in '("one" "two")
            do (is (string= text (exchange-text connection "/" :method :post :content text))))
      ;; Two at once: what was read ahead must still be found.
      (send connection (request-octets "/" :method :post :content "three")
            (request-octets "/" :method :post :content "four"))
      (is (string= "three" (response-text (read-response connection))))
      (is (string= "four" (response-text (read-response connection)))))))

(define-server-test the-time-limit-of-the-server-holds-for-streams-that-handlers-read
  (flet ((late-p (stream)
           (handler-case (read-byte stream)
             (error () "late"))))
    (serving (:mixin 'talkative :read-timeout 1/2 :idle-timeout 600)
        (("/" (late-p (usocket:socket-stream *talk-socket*)))
         ("/ours" (late-p hunchentoot::*hunchentoot-stream*)))
      (is (string= "late" (ask-text "/")))
      (with-connection (connection)
        (send-request connection "/ours")
        (is-true (readable-p connection *patience*))))))

(define-server-test a-socket-that-a-handler-closes-is-closed
  (serving (:mixin 'talkative)
      (("/" (close (usocket:socket-stream *talk-socket*) :abort t)
            "nobody hears this"))
    (quietly
      (with-connection (connection)
        (send-request connection "/")
        (is (closed-by-server-p connection)))
      (with-connection (connection)
        (send-request connection "/")
        (is (closed-by-server-p connection))))))
