(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/content :in fronts
  :description "The content of requests, whole or in pieces, read or not.")

(defgeneric stream-of (request)
  (:documentation "The content of REQUEST as a stream of octets.")
  (:method ((request list)) (getf request :raw-body))
  (:method ((request hunchentoot:request))
    (hunchentoot:raw-post-data :request request :want-stream t)))

(defun counted (octets)
  "A text that tells how many OCTETS there are, and which."
  (shown (length octets) (reduce #'logxor octets :initial-value 0)))

(defun framings-of (octets)
  "OCTETS as the content of requests by their length and in chunks: keyword arguments."
  (list (list :content octets)
        (list :chunks (loop for start from 0 below (length octets) by 10000
                            collect (subseq octets start (min (length octets) (+ start 10000)))))))

(defun post-octets (target keys)
  (apply #'request-octets target :method :post keys))

(defun response-status-if-any (connection)
  "The status of the next response of CONNECTION; NIL where that ends."
  (ignore-errors (response-status (read-response connection))))

;;; All that comes

(define-front-test (content-comes-whole :modes (:plain :unparked :tls :http2) :needs :our-content)
  (with-front (request) (reply 200 '() (counted (content request)))
    (with-connection (connection)
      (dolist (size '(0 1 3 1900 2048 5000 100000))
        (dolist (keys (framings-of (test-octets size)))
          (let ((octets (octets (post-octets "/" keys) (request-octets "/word"))))
            (dolist (pieces '(1 2 7))
              (send-in-pieces connection (ceiling (length octets) pieces) octets)
              (is (equal (counted (test-octets size)) (response-text (read-response connection)))
                  "~D octets in ~D pieces" size pieces)
              (is (equal "word" (response-text (read-response connection)))))))))))

(define-front-test (content-of-any-size-holds-no-thread-while-it-comes :modes (:plain :tls :http2)
                                                                       :needs :parking)
  (with-globals ((server::*most-content-memory* 400000)
                 (server::*content-vectors* (server::make-free-list 0)))
    (with-front (request) (reply 200 '() (counted (content request)))
      (let ((requests (loop for size in '(3 300 100000 1000000) ; the last one needs a file
                            append (loop for keys in (framings-of (test-octets size))
                                         collect (cons size (post-octets "/" keys)))))
            (before (figure :memory)))
        (with-connections (connections (length requests))
          (loop for connection in connections
                for (nil . octets) in requests
                do (send connection (subseq octets 0 (- (length octets) 3)))
                   (eventually ("no thread to serve it") (zerop (figure :busy))))
          (is (equal "word" (ask-text "/word")))
          (eventually ("most to be in a file") (> 1000000 (- (figure :memory) before)))
          (loop for connection in connections
                for (size . octets) in requests
                do (send connection (subseq octets (- (length octets) 3)))
                   (is (equal (counted (test-octets size))
                              (response-text (read-response connection))))))
        (eventually ("memory to be given back") (>= before (figure :memory)))))))

(define-front-test (a-client-that-announces-much-and-sends-little-takes-little-memory
                    :modes (:plain :http2) :needs :parking)
  (with-front (request) (reply 200 '() (counted (content request)))
    (let ((before (figure :memory)))
      (dolist (octets (list (octets (post-head "/" "Content-Length: 4000000") "some octets")
                            (octets "GET / HT")))
        (with-connections (connections 20)
          (dolist (connection connections)
            (send connection octets))
          (eventually ("all to be looked at") (and (= 20 (figure :parked)) (zerop (figure :busy))))
          (is (> 200000 (- (figure :memory) before))))
        (eventually ("the connections to end") (zerop (figure :open)))))))

(define-front-test (content-goes-to-a-file-where-memory-is-scarce :modes (:plain) :needs :parking)
  (with-front (request) (reply 200 '() (counted (content request)))
    (loop for (size share plenty) in '((60000 0 1/4) (500000 1/2 0))
          do (with-globals ((engine:*waiting-share* share) (server::*plenty* plenty))
               (let* ((before (figure :memory)) (octets (test-octets size))
                      (request (request-octets "/" :method :post :content octets)))
                 (with-connection (connection)
                   (send connection (subseq request 0 (- (length request) 9)))
                   (eventually ("it to wait") (and (= 1 (figure :parked)) (zerop (figure :busy))))
                   (is (>= before (figure :memory)))
                   (send connection (subseq request (- (length request) 9)))
                   (is (equal (counted octets) (response-text (read-response connection))))))))))

(define-front-test (content-without-room-is-answered-503-and-told-once :modes (:plain :tls)
                                                                      :needs :parking)
  (with-front (request) (reply 200 '() (counted (content request)))
    (with-environment (("TMPDIR" "/nowhere"))
      (loop repeat 3
            do (with-connection (connection)
                 (try-to-send connection (post-octets "/" (list :content (test-octets 9000000))))
                 (let ((response (read-response connection)))
                   (is (= 503 (response-status response)))
                   (is-true (response-header response "retry-after"))))))
    (is (= 1 (count-messages (await-log "refused: Neither memory nor a temporary file"))))))

;;; Any thread

(define-front-test (any-thread-reads-content-after-the-handler :modes (:plain :unparked :tls :http2)
                                                               :needs :our-content)
  (with-front (request)
      (later (answer)
        (in-background ("reading")
          (funcall answer 200 '() (handler-case (counted (content request))
                                    (error (condition) (princ-to-string condition))))))
    (with-connection (connection)
      (dolist (octets (list* (test-octets 1000000)
                             (loop repeat 20
                                   collect (octets "hello")
                                   collect (test-octets 100000))))
        (dolist (keys (framings-of octets))
          (is (equal (counted octets)
                     (apply #'exchange-text connection "/" :method :post keys))))))))

(define-front-test (content-is-read-anywhere-as-text-or-octets :fronts (:clack) :modes (:plain))
  (with-front (request)
      (let ((stream (stream-of request)) (text (copy-seq "----")))
        (reply 200 '() (shown (listen stream) (read-sequence text stream :start 1) text
                              (file-position stream :end) (file-position stream) (listen stream)
                              (file-position stream (1+ (file-position stream))) (close stream)
                              (file-position stream (1- (file-position stream))) (read-byte stream)
                              (file-position stream 3) (read-byte stream) (file-position stream)
                              (file-position stream :start) (file-position stream))))
    (dolist (size '(5 5000000))         ; of which the second one goes to a file
      (is (equal (shown t 3 "-aü-" t size nil nil t t 120 t 98 4 t 0)
                 (ask-text "/" :method :post
                               :content (octets "aüb" (repeated "x" (- size 4)))))))))

(define-front-test (content-is-gone-with-its-request
                    :modes (:plain :unparked :http2) :needs :our-content)
  (let ((streams (make-recorder)) (octets (make-array 300000 :element-type '(unsigned-byte 8))))
    (with-front (request)
        (let ((stream (stream-of request)))
          (record streams stream)
          (reply 200 '() (princ-to-string (read-sequence octets stream))))
      (flet ((content-of (value)
               (make-array 300000 :element-type '(unsigned-byte 8) :initial-element value)))
        (with-connection (connection)
          (loop for value from 1 to 3
                do (is (equal "300000" (exchange-text connection "/" :method :post
                                                      :content (content-of value)))))
          (exchange-text connection "/word")) ; so the third request has ended, too
        (loop for stream in (recorded streams)
              for value from 1
              do (fill octets value)
                 (signals recycling:content-left
                   (file-position stream 0)
                   (read-sequence octets stream))
                 (is (equalp (content-of value) octets) "It is not that of a later one."))))))

;;; What is left of it

(defun smuggling-content (size)
  "About SIZE octets of requests, which must not be taken for some where they are content."
  (let ((request (request-octets "/smuggled")))
    (octets "x" (loop repeat (ceiling size (length request)) collect request))))

(define-front-test (what-a-handler-leaves-of-its-content-is-no-request :needs :our-content)
  (with-front (request)
      (let ((path (path request)))
        (when (member path '("/one" "/fails") :test #'equal)
          (read-byte (stream-of request)))
        (when (equal "/fails" path)
          (error "It fails."))
        (reply 200 '() path))
    (dolist (size '(1000 100000 3000000))
      (dolist (keys (framings-of (smuggling-content size)))
        (with-connection (connection)
          (loop for (target status) in '(("/one" 200) ("/none" 200) ("/fails" 500) ("/one" 200))
                for sender = (in-background ("sender")
                               (send connection (post-octets target keys)))
                do (is (eql status (response-status (read-response connection)))
                       "~A ~D" target size)
                   (task-result sender)
                   (is (equal "word" (exchange-text connection "/word")))))))))

;;; Content that breaks off; for what is not acceptable, see inputs.lisp

(define-front-test (content-that-breaks-off-is-never-taken-for-whole
                    :modes (:plain :unparked :http2) :needs :our-content)
  (let ((whole (make-recorder)))
    (with-front (request) (progn (record whole t) (reply 200 '() "whole"))
      (loop for (framing . part) in `(("Content-Length: 10" "good")
                                      ("Content-Length: 300000" ,(test-octets 200000))
                                      ("Transfer-Encoding: chunked" ,(chunk "good"))
                                      ("Transfer-Encoding: chunked" "5" :crlf "goo"))
            do (dolist (leave (list #'end-sending #'reset))
                 (with-connection (connection)
                   (send connection (post-head "/" framing) part)
                   (funcall leave connection)
                   (let ((status (response-status-if-any connection)))
                     (is-true (or (null status) (<= 400 status)))))
                 (eventually ("it to be closed") (zerop (figure :open)))))
      (is (equal "word" (ask-text "/word")))
      (is (not (search "[ERROR]" (front-log))) "No error of the program."))
    (is (null (recorded whole)))))

(define-front-test (memory-is-given-back-while-its-connection-goes-on :modes (:plain)
                                                                      :needs :parking)
  (let ((answers (make-recorder))
        (large `(("X-Large" . ,(make-string 20000 :initial-element #\x)))) ; of four octets each
        (cookies `(("Cookie" . ,(format nil "~{~A~}" (make-list 1000 :initial-element "a;"))))))
    (with-front (request)
        (cond ((equal "/later" (path request)) (later (answer) (record answers answer)))
              ((equal "/large" (path request)) (reply 200 '() *large-answer*))
              (t (reply 200 '() (content request))))
      (with-connection (connection)
        (loop with before = (figure :memory)
              for (least cut . octets)
                in (list (list* 9000 10000 (request-octets "/word" :headers large))
                         (list* 40000 40000 (request-octets "/" :method :post
                                                                :content (test-octets 50000)))
                         (list* 80000 20100 (request-octets "/" :method :post :headers large
                                                                :content (test-octets 100)))
                         (list* 160000 nil (request-octets "/later" :headers cookies))
                         (list* (1- *large-size*) nil (request-octets "/large")))
              do (send connection (subseq octets 0 cut))
                 (eventually ("memory to be taken") (< (+ before least) (figure :memory)))
                 (cond (cut (send connection (subseq octets cut)))
                       ((recorded answers) (funcall (await-answer answers) 200 '() "later")))
                 (is (= 200 (response-status (read-response connection))))
                 (eventually ("memory to be given back") (>= before (figure :memory))))))))

(define-front-test (those-that-wait-give-way-where-memory-is-scarce :modes (:plain)
                                                                    :needs :parking)
  (with-front (request) (reply 200 '() (content request))
    (with-connections (connections 2)
      (destructuring-bind (first second) connections
        (send first (post-head "/" "Content-Length: 50000") (test-octets 40000))
        (eventually ("content to take memory") (< 40000 (figure :memory)))
        (with-globals ((engine:*waiting-share* (/ 60000 (figure :memory-limit))))
          (send second "GET /word HTTP/1.1" :crlf "Host: a" :crlf
                "X: " (make-string 20000 :initial-element #\x))
          (is (= 503 (response-status (read-response first))))
          (send second :crlf :crlf)
          (is (equal "word" (response-text (read-response second)))))
        (with-globals ((engine:*waiting-share* 0))
          (send second "GET / HT")
          (is (= 503 (response-status (read-response second)))))))))

(define-front-test (memory-for-content-is-given-back-however-a-request-ends :needs :our-content)
  (let ((answers (make-recorder)))
    (with-front (request)
        (let ((path (path request)))
          (unless (equal "/unread" path)
            (content request))
          (cond ((equal "/fails" path) (error "It fails."))
                ((equal "/later" path) (later (answer) (record answers answer)))
                (t (reply 200 '() "read"))))
      (let ((before (figure :memory)))
        (dolist (target '("/all" "/unread" "/fails"))
          (ask target :method :post :content (test-octets 200000)))
        (with-connection (connection)
          (send-request connection "/later" :method :post :content (test-octets 200000))
          (funcall (await-answer answers) 200 '() "later")
          (is (equal "later" (response-text (read-response connection)))))
        (let ((connection (connect)))
          (send-request connection "/later" :method :post :content (test-octets 200000))
          (let ((answer (await-answer answers)))
            (reset connection)
            (ignore-errors (funcall answer 200 '() "too late"))))
        (let ((connection (connect)))
          (send connection (post-head "/all" "Content-Length: 6000000") (test-octets 5500000))
          (reset connection))
        (eventually ("memory to be given back")
          (and (zerop (figure :open)) (>= before (figure :memory))))
        (pass)))))

;;; A client that waits to be asked for it

(defun begin-to-expect (connection target &optional (framing "Content-Length: 4"))
  (send connection (post-head target (octets "Expect: 100-continue" :crlf framing))))

(defun final-response (connection &rest parts)
  "The next response of CONNECTION that is final; sends PARTS after an interim one.  The second
value is the number of interim ones."
  (loop for response = (read-response connection)
        for count from 0
        while (= 100 (response-status response))
        do (send connection parts)
        finally (return (values response count))))

(define-front-test (content-is-asked-for-once-and-comes-then :needs :our-content)
  (with-front (request)
      (cond ((equal "/unread" (path request)) (reply 200 '() "unread"))
            ((equal "/octets" (path request))
             (loop with stream = (stream-of request)
                   while (read-byte stream nil nil))
             (reply 200 '() "read"))
            (t (loop repeat 2 do (content request))
               (reply 200 '() "read")))
    (loop for (framing . body) in `(("Content-Length: 4" "late")
                                    ("Transfer-Encoding: chunked" ,(chunk "late") "0" :crlf :crlf))
          do (dolist (target '("/all" "/octets"))
               (with-connection (connection)
                 (begin-to-expect connection target framing)
                 (multiple-value-bind (response count) (final-response connection body)
                   (is (= 1 count))
                   (is (equal "read" (response-text response))))
                 (is (equal "word" (exchange-text connection "/word")))))
             (with-connection (connection) ; one that does not wait
               (begin-to-expect connection "/all" framing)
               (send connection body)
               (is (equal "read" (response-text (final-response connection))))
               (is (equal "word" (exchange-text connection "/word"))))
             (with-connection (connection) ; a handler that does not want it
               (begin-to-expect connection "/unread" framing)
               (multiple-value-bind (response count) (final-response connection body)
                 (is (equal "unread" (response-text response)))
                 (if (equalp "close" (response-header response "connection"))
                     (is (zerop count))
                     (is (equal "word" (exchange-text connection "/word")))))))
    (with-connection (connection)
      (send connection "POST /all HTTP/1.0" :crlf "Expect: 100-continue" :crlf "Content-Length: 4"
            :crlf :crlf "body")
      (is (= 200 (response-status (read-response connection))) "HTTP/1.0 has no interim ones."))))

(define-front-test (a-refusal-comes-in-place-of-100
                    :modes (:plain :unparked :http2) :needs :our-content)
  (with-front (request :max-body-octets 3) (reply 200 '() (content request))
    (with-connection (connection)
      (begin-to-expect connection "/")
      (is (= 413 (response-status (read-response connection)))))))

;;; Content that does not come

(defparameter *stalling*
  '(("Content-Length: 10" "a=1") ("Transfer-Encoding: chunked" "5" :crlf "a=1"))
  "Header lines and parts of content that announce more than they send.")

(defun check-stalling-clients (counted-p)
  "Checks that *SERVER* tells clients so that stall, and, if COUNTED-P, counts them."
  (with-connections (connections (length *stalling*))
    (loop for connection in connections
          for (framing . part) in *stalling*
          do (send connection (post-head "/" (octets "Content-Type: " *urlencoded* :crlf framing))
                   part))
    (dolist (connection connections)
      (let ((response (read-response connection)))
        (is (= 408 (response-status response)))
        (unless (eq :http2 *mode*)
          (is (equalp "close" (response-header response "connection")))))
      (end-sending connection)
      (is-true (closed-by-server-p connection)))
    (when counted-p
      (eventually ("both to be counted") (= 2 (getf (figure :expired-by) :body))))
    (is (equal "word" (ask-text "/word")))))

(define-front-test (a-client-that-stalls-amid-content-is-told-so
                    :modes (:plain :unparked :http2) :needs :our-content)
  (let ((whole (make-recorder)))
    (flet ((check (counted-p &rest arguments)
             (with-front* (request (list* :idle-timeout 60 arguments))
                 (progn (content request)
                        (record whole :read)
                        (reply 200 '() "read"))
               (check-stalling-clients counted-p))))
      (check nil :read-timeout 1/2)
      (with-globals ((http:*content-grace* 1/2))
        (check *parking-p* :read-timeout 60)))
    (is (null (recorded whole)))))

(define-front-test (a-client-that-trickles-is-told-so :needs :our-content)
  (with-globals ((http:*content-grace* 1/2))
    (with-front (request :read-timeout 60 :head-timeout 1/2) (reply 200 '() (content request))
      (dolist (octets (list (octets "GET / HTTP/1.1" :crlf "X: ")
                            (post-head "/" "Content-Length: 10000")))
        (with-connection (connection)
          (send connection octets)
          (eventually ("the client to be told")
            (try-to-send connection "a")
            (readable-p connection 1/100))
          (is (= 408 (response-status (read-response connection))))))
      (when *parking-p*
        (await-ended-by :body)))))

(define-front-test (who-has-sent-much-or-need-not-be-fast-has-time-for-the-rest :needs :our-content)
  (with-globals ((http:*content-grace* 0))
    (dolist (rate '(nil 1))
      (with-front (request :min-content-rate rate :read-timeout 60)
          (reply 200 '() (content request))
        (with-connection (connection)
          (send connection (octets (post-head "/" "Content-Length: 50000") (test-octets 49999)))
          (is (not (readable-p connection 1/2)))
          (send connection "b")
          (is (= 50000 (length (response-body (read-response connection))))))))))

(define-front-test (a-soft-stop-does-not-wait-for-content-that-does-not-come
                    :modes (:plain :http2) :needs :parking)
  (with-front (request) (reply 200 '() (content request))
    (with-connection (connection)
      (send connection (post-head "/" "Content-Length: 5") "a")
      (eventually ("it to be looked at") (and (= 1 (figure :open)) (zerop (figure :busy))))
      (stop-front :soft t)
      (is (eql 408 (response-status-if-any connection))))))
