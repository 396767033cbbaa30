(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite exchanges :in acceptors
  :description "Where one request ends and the next begins, and what a connection owes its client.")

(in-suite exchanges)

(defun ask-parts (&rest parts)
  "The text of all that *SERVER* sends in answer to PARTS, after which the client sends no more."
  (with-connection (connection)
    (apply #'send connection parts)
    (end-sending connection)
    (map 'string #'code-char (receive-rest connection))))

(define-server-test (a-head-that-follows-an-empty-line-has-its-own-time :needs :parking)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds) (("/" "Hey!"))
      (with-prompt-connection (connection)
        (promptly (send connection :crlf)
                  (eventually ("an idle connection") (= 1 (figure :parked)))
                  (send connection "GET / HTTP/1.1" :crlf))
        (is (= 408 (response-status (read-response connection))))
        (eventually ("the head to be counted") (plusp (getf (figure :expired-by) :head)))
        (is (= 1 (getf (figure :expired-by) :head)))
        (is (zerop (getf (figure :expired-by) :idle)))))))

(define-server-test a-head-has-its-own-time-and-its-octets-have-none
  (let* ((acceptor (make-test-acceptor :read-timeout 7))
         (application (recycling::acceptor-taskmaster* acceptor))
         (connection (engine::make-connection nil))
         (http (server:make-http-connection))
         (now (platform:milliseconds)))
    (flet ((deadline (kind)
             (server::settle-head-deadline application connection http kind)
             (is (eq kind (engine:connection-deadline-kind connection)))
             (engine:connection-deadline connection)))
      (when (typep acceptor 'recycling:parallel-acceptor)
        (setf (hunchentoot:taskmaster-acceptor application) acceptor)
        (let ((first (deadline :idle)))
          (is (<= (+ now 7000) first (+ now 60000)))
          (eventually ("time to pass") (> (+ 7000 (platform:milliseconds)) first))
          (is (= first (deadline :idle)) "More empty lines give no more time.")
          (let ((second (deadline :head)))
            (is (> second first) "A head is something else.")
            (eventually ("time to pass") (> (+ 7000 (platform:milliseconds)) second))
            (is (= second (deadline :head)))))))))

(defclass stream-that-ended (trivial-gray-streams:fundamental-binary-input-stream)
  ()
  (:documentation "A stream that signals its end already to who listens, as TLS streams do."))

(defmethod trivial-gray-streams:stream-listen ((stream stream-that-ended))
  (error 'end-of-file :stream stream))

(test the-end-of-a-stream-is-something-to-be-read
  (is (server::transport-ready-p (server:transport-for (make-instance 'stream-that-ended) nil))))

(define-server-test (what-a-program-keeps-of-a-connection-has-no-descriptor-when-that-has-ended
                     :needs :our-http)
  (let ((kept nil))
    (serving () (("/" (setf kept hunchentoot::*hunchentoot-stream*) "Hey!"))
      (with-connection (connection)
        (is (string= "Hey!" (exchange-text connection "/")))
        (is (platform:octet-stream-descriptor kept)))
      (eventually ("the connection to be closed") (zerop (figure :open)))
      (is (null (platform:octet-stream-descriptor kept)))
      (with-connection (other)
        (is (string= "Hey!" (exchange-text other "/")))))))

(define-server-test (a-client-that-is-granted-another-protocol-may-talk-on-as-content
                     :needs :our-http)
  (serving () (("/" (setf (hunchentoot:return-code*) 101
                          (hunchentoot:header-out :upgrade) "talk"
                          (hunchentoot:header-out :connection) "Upgrade")
                    (let* ((reply (hunchentoot:send-headers))
                           (content (hunchentoot::content-stream hunchentoot:*request*)))
                      (loop repeat 3 do (write-byte (read-byte content) reply))
                      (finish-output reply))))
    (let ((text (ask-parts (request-octets "/" :headers '(("Connection" . "Upgrade")
                                                          ("Upgrade" . "talk")))
                           "abc")))
      (is (search " 101 " text))
      (is (search "abc" text) "~A" text))))

;;; Content that a handler read in part, or not

(defparameter *smuggled*
  (format nil "GET /smuggled HTTP/1.1~C~CHost: localhost~C~C~C~C"
          #\Return #\Linefeed #\Return #\Linefeed #\Return #\Linefeed)
  "What must not be taken for a request where it is content.")

(defun smuggling-content (size)
  "SIZE octets, or a few more, of requests."
  (octets "x" (loop repeat (ceiling size (length *smuggled*)) collect *smuggled*)))

(defmacro with-partial-readers ((smuggled) &body body)
  "Evaluates BODY while /one reads the first octet of its content, /none nothing, and SMUGGLED
records requests that were none."
  `(let ((,smuggled (make-recorder)))
     (serving (:max-early-octets 0)
         (("/one" (princ-to-string
                   (read-byte (hunchentoot:raw-post-data :want-stream t))))
          ("/none" "none")
          ("/smuggled" (record ,smuggled :smuggled) "smuggled"))
       ,@body)))

(defun framings-of (octets)
  "OCTETS as the content of requests by their length and in chunks: keyword arguments."
  (list (list :content octets)
        (list :chunks (loop for start from 0 below (length octets) by 10000
                            collect (subseq octets start (min (length octets) (+ start 10000)))))))

(define-server-test (what-a-handler-leaves-of-its-content-is-no-request :needs :our-http)
  (with-partial-readers (smuggled)
    (dolist (framing (framings-of (smuggling-content 1000)))
      (dolist (target '("/one" "/none"))
        (with-connection (connection)
          (loop repeat 3
                do (is (= 200 (response-status (apply #'exchange connection target :method :post
                                                      framing)))))
          (is (string= "none" (exchange-text connection "/none"))))))
    (is (zerop (recorded-count smuggled)))))

(define-server-test (content-that-is-too-much-to-be-dropped-ends-the-connection :needs :our-http)
  (with-globals ((server:*unread-limit* 20000)
                 (server:*unasked-limit* 20000))
    (with-partial-readers (smuggled)
      (dolist (framing (framings-of (smuggling-content 60000)))
        (dolist (target '("/one" "/none"))
          (with-connection (connection)
            (let ((octets (octets (apply #'request-octets target :method :post framing)
                                  (request-octets "/smuggled"))))
              (in-background ("sender") (try-to-send connection octets))
              (is (= 200 (response-status (read-response connection))) "~A" target)
              (ignore-errors (end-sending connection))
              (is (zerop (length (receive-rest connection))) "~A" target)))))
      (is (zerop (recorded-count smuggled))))))

(define-server-test
    (content-that-was-read-whole-is-not-in-the-way-whatever-its-size :needs :our-http)
  (with-globals ((server:*unread-limit* 1000)
                 (server:*unasked-limit* 1000))
    (serving () (("/" (princ-to-string (length (hunchentoot:raw-post-data)))))
      (with-connection (connection)
        (loop repeat 3
              do (is (string= "30000" (exchange-text connection "/" :method :post
                                                     :content (test-octets 30000)))))))))

(define-server-test (memory-for-content-is-given-back-with-the-reply :needs :our-http)
  (serving () (("/" (princ-to-string (length (hunchentoot:raw-post-data))))
               ("/error" (hunchentoot:raw-post-data) (error "after the content")))
    (let ((before (engine:client-memory-reserved)))
      (dolist (target '("/" "/error"))
        (ask target :method :post :content (test-octets (* 2 server::*uncounted-octets*))))
      (eventually ("the memory to be given back")
        (= before (engine:client-memory-reserved))))))

;;; Replies

(define-server-test (nothing-interim-comes-after-the-reply-has-begun :needs :our-http)
  (serving () (("/" (setf (hunchentoot:content-length*) 4)
                    (let ((reply (hunchentoot:send-headers)))
                      (finish-output reply)
                      (loop with content = (slot-value hunchentoot:*request*
                                                       'hunchentoot::content-stream)
                            repeat 4 do (write-byte (read-byte content) reply)))))
    (let ((text (ask-parts "POST / HTTP/1.1" :crlf "Host: localhost" :crlf "Content-Length: 4" :crlf
                           "Expect: 100-continue" :crlf :crlf "body")))
      (is (= 1 (count-of "HTTP/1.1 " text)) "~A" text)
      (is (uiop:string-suffix-p text "body")))))

(define-server-test (an-error-amid-a-reply-of-known-length-ends-the-connection :needs :our-http)
  (serving () (("/" (setf (hunchentoot:content-length*) 10)
                    (let ((reply (hunchentoot:send-headers)))
                      (write-sequence (octets "half") reply)
                      (error "amid the reply"))))
    (let ((text (ask-parts (request-octets "/") (request-octets "/"))))
      (is (= 1 (count-of "HTTP/1.1 " text)) "What is missing is not taken from another reply."))))

(define-server-test (a-reply-has-one-date :needs :our-http)
  (serving () (("/" (setf (hunchentoot:header-out :date) "Sun, 06 Nov 1994 08:49:37 GMT") "Hey!"))
    (let ((response (ask "/")))
      (is (= 1 (length (response-header-values response "date"))))
      (is (not (search "1994" (response-header response "date")))))))

(define-server-test (reasons-are-hunchentoots :needs :our-http)
  (serving () (("/" (setf (hunchentoot:return-code*)
                          (parse-integer (hunchentoot:get-parameter "status")))
                    "Hey!"))
    (dolist (status '(200 302 404 413 414 416 500 503))
      (is (equal (hunchentoot:reason-phrase status)
                 (response-reason (ask (format nil "/?status=~D" status))))))))

(define-server-test (a-header-that-cannot-be-sent-is-an-error-that-is-told :needs :our-http)
  (serving () (("/" (setf (hunchentoot:header-out :x-test) (format nil "a~Cb" (code-char 0)))
                    "Hey!")
               ("/well" "well"))
    (with-connection (connection)
      (is (= 500 (response-status (exchange connection "/"))))
      (is (string= "well" (exchange-text connection "/well"))))))

(test how-long-connections-are-kept-is-told-of-each-acceptor
  (is (equal '("timeout=5" "timeout=7" "timeout=7" "timeout=5")
             (mapcar #'server::keep-alive-of '(5 7 7 5)))))

(define-server-test (a-form-is-known-by-its-type :needs :our-http)
  (serving () (("/" (princ-to-string (hunchentoot:post-parameter "a"))))
    (loop for (type value) in '(("application/x-www-form-urlencoded" "1")
                                ("APPLICATION/X-WWW-FORM-urlencoded" "1")
                                ("application/x-www-form-urlencoded; charset=utf-8" "1")
                                ("application/x-www-form-urlencoded ;charset=utf-8" "1")
                                ("application/x-www-form-urlencoded2" "NIL")
                                ("application/x-www-form" "NIL")
                                ("text/plain" "NIL"))
          do (is (string= value (ask-text "/" :method :post :content "a=1" :content-type type))
                 "~A" type))))

(define-server-test (heads-of-two-clients-are-kept-apart :needs :parking)
  (serving (:taskmaster (make-instance 'recycling:recycling-taskmaster
                                       :standby-thread-count 1 :max-thread-count 1))
      (("/first" "first") ("/second" "second"))
    (flet ((halves (target)
             (let* ((octets (request-octets target)) (half (floor (length octets) 2)))
               (values (subseq octets 0 half) (subseq octets half)))))
      (multiple-value-bind (first-1 first-2) (halves "/first")
        (multiple-value-bind (second-1 second-2) (halves "/second")
          (with-connections (connections 2)
            (destructuring-bind (one other) connections
              (flet ((send-half (connection half)
                       (send connection half)
                       (eventually ("all to be parked")
                         (and (= 2 (figure :parked)) (zerop (figure :busy))))))
                (is (string= "first" (exchange-text other "/first")))
                (send-half one first-1)
                (send one first-2)
                (is (string= "first" (response-text (read-response one))))
                (send-half other second-1)
                (is (string= "first" (exchange-text one "/first")))
                (send other second-2)
                (is (string= "second" (response-text (read-response other))))))))))))

(define-server-test (a-handler-that-closes-content-it-does-not-have-closes-no-other
                     :needs :our-http)
  (serving () (("/" (let ((stream (hunchentoot:raw-post-data :want-stream t)))
                      (prog1 (shown (read-byte stream nil))
                        (close stream)))))
    (dolist (method '(:get :post))
      (loop repeat 2
            do (with-connection (connection)
                 (send-request connection "/" :method method
                                              :headers (and (eq :post method)
                                                            '(("Content-Length" . "0"))))
                 (is (string= (shown nil) (response-text (read-response connection)))))))))

;;; Content that a handler has asked for is its own to read

(define-server-test (a-handler-may-read-the-stream-of-content-after-the-head-of-its-reply
                     :needs :our-http)
  (let ((begun (make-gate "the head of the reply")))
    (with-globals ((server:*unasked-limit* 10))
      (serving (:max-early-octets 0)
          (("/" (let ((content (hunchentoot:raw-post-data :want-stream t))
                      (reply (hunchentoot:send-headers)))
                  (open-gate begun)
                  (loop repeat 100 do (write-byte (read-byte content) reply)))))
        (with-connection (connection)
          (let ((octets (test-octets 100)))
            (send connection (request-octets "/" :method :post
                                                 :headers '(("Content-Length" . "100"))))
            (await begun)
            (send connection octets)
            (let ((response (read-response connection)))
              (is (equalp octets (response-body response)))
              (is (null (response-header response "connection")))))
          (is-true (read-response (progn (send-request connection "/other") connection))))))))

(define-server-test (a-handler-that-has-the-stream-of-content-and-answers-is-heard-before-that-comes
                     :needs :our-http)
  (serving (:max-early-octets 0)
      (("/" (hunchentoot:raw-post-data :want-stream t) "answer"))
    (with-connection (connection)
      (send connection (request-octets "/" :method :post :headers '(("Content-Length" . "5"))))
      (is (string= "answer" (response-text (read-response connection))))
      (send connection "abcde")
      (is (= 404 (response-status (exchange connection "/other")))))))

(defclass asking-later-request (hunchentoot:request) ()
  (:documentation "A request whose form is asked for after its reply."))

(defvar *asked-later* nil)

(defmethod hunchentoot:process-request :after ((request asking-later-request))
  (record *asked-later* (handler-case (hunchentoot:post-parameters request)
                          (error (condition) condition))))

(define-server-test (what-was-not-taken-for-want-of-memory-is-not-asked-for-again :needs :our-http)
  (when (engine:client-memory-budget)
    (with-globals ((*asked-later* (make-recorder))
                   (engine:*client-memory-share* 0))
      (serving (:request-class 'asking-later-request :max-early-octets 0) (("/" "answer"))
        (with-connection (connection)
          (send-request connection "/"
                        :method :post :form `(("a" . ,(make-string 70000 :initial-element #\b))))
          (is (string= "answer" (response-text (read-response connection))))
          (is (closed-by-server-p connection)))
        (eventually ("the form to be asked for") (recorded *asked-later*))
        (is (equal '(()) (recorded *asked-later*)))))))

;;; Where a request begins and ends

(define-server-test (connect-is-not-served :needs :our-engine)
  (let ((runs (make-recorder)))
    (serving () (("example.com:80" (record runs :handler) "connected"))
      (let ((answer (octet-text (ask-raw "CONNECT example.com:80 HTTP/1.1" :crlf
                                         "Host: example.com:80" :crlf :crlf
                                         "GET / HTTP/1.1" :crlf "Host: localhost" :crlf :crlf))))
        (is (search "HTTP/1.1 501" answer))
        (is (= 1 (length (cl-ppcre:all-matches-as-strings "HTTP/1.1 " answer)))))
      (is (null (recorded runs))))))

(define-server-test (the-rest-of-chunks-beyond-all-limits-is-no-request :needs :our-http)
  (let ((runs (make-recorder)))
    (with-globals ((server:*unasked-limit* 20000)
                   (server:*unread-limit* 10000))
      (serving () (("/" "unwanted")
                   ("/part" (read-byte (hunchentoot:raw-post-data :want-stream t)) "unwanted")
                   ("/smuggled" (record runs :handler) "smuggled"))
        (dolist (target '("/" "/part"))
          (with-connection (connection)
            (send-request connection target
                          :method :post
                          :chunks (list (repeated (list "GET /smuggled HTTP/1.1" :crlf
                                                        "Host: localhost" :crlf :crlf)
                                                  100000)))
            (is (string= "unwanted" (response-text (read-response connection))))
            (ignore-errors (end-sending connection))
            (is-true (closed-by-server-p connection))))
        (is (null (recorded runs)))))))

(defun request-of-64-octets (number)
  (let ((request (octets (format nil "GET /?~4,'0D HTTP/1.1" number) :crlf
                         "Host: localhost" :crlf "X-Padding: 01234567890" :crlf :crlf)))
    (assert (= 64 (length request)))
    request))

(define-server-test requests-that-fill-the-buffer-exactly-are-all-answered
  (let ((entered (make-gate)) (go-on (make-gate)))
    (serving () (("/" (open-gate entered)
                      (await go-on)
                      (hunchentoot:query-string*)))
      (with-connection (connection)
        (send connection (request-of-64-octets 0))
        (await entered)
        ;; These lie in the kernel: the buffer of 16 KiB takes 256 of them.
        (send connection (loop for number from 1 to 300 collect (request-of-64-octets number)))
        (open-gate go-on)
        (is (loop for number from 0 to 300
                  always (string= (format nil "~4,'0D" number)
                                  (response-text (read-response connection)))))))))

(defun only-connection ()
  "The engine's only connection that is open, or NIL."
  (let ((found '()))
    (engine::map-connections (lambda (connection) (push connection found))
                             (engine::engine-table (server:server-engine *server*)))
    (first found)))

(define-server-test (each-slow-head-has-its-own-time :needs :parking)
  (serving (:read-timeout 60) (("/" "slow"))
    (with-connection (connection)
      (flet ((deadline-of-half-a-head ()
               (send connection "GET / HTTP/1.1" :crlf)
               (prog1 (eventually ("half a head to be read")
                        (let ((known (only-connection)))
                          (and known
                               (eq :head (engine:connection-deadline-kind known))
                               (engine:connection-deadline known))))
                 (send connection "Host: localhost" :crlf :crlf)
                 (is (string= "slow" (response-text (read-response connection))))
                 (eventually ("the connection to be parked")
                   (let ((known (only-connection)))
                     (eq :idle (engine:connection-deadline-kind known)))))))
        (let ((first (deadline-of-half-a-head))
              (began (platform:milliseconds)))
          (eventually ("the clock to move on")
            (< began (platform:milliseconds)))
          (is (< first (deadline-of-half-a-head))))))))
