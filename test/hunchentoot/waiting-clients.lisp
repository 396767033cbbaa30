(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* waiting-clients :in acceptors
  :description "Clients for which threads have to wait hold no more than a share of them.")

(defparameter *slow-client-count* 8
  "How many clients are slow: more than there are threads.")

(defmacro serving-waits ((&rest initargs) &body body)
  "Evaluates BODY while an acceptor made with INITARGS, with 6 threads, of which 3 may wait for
clients, reads content, as a whole or as a stream, and streams replies."
  `(serving (:taskmaster (taskmaster :standby-thread-count 6 :max-thread-count 6)
             :max-early-octets 0 :read-timeout 60 :write-timeout 60 ,@initargs)
       (("/whole" (shown (length (hunchentoot:raw-post-data :force-binary t))))
        ("/stream" (read-byte (hunchentoot:raw-post-data :want-stream t))
                   (shown (read-byte (hunchentoot:raw-post-data :want-stream t))))
        ("/large" (stream-large-answer))
        ("/next" "next"))
     ,@body))

(defun check-waits (kind target)
  "Checks that 5 clients that are too many are given up because of KIND, :BODY or :WRITE, and others
get \"next\" from TARGET."
  (eventually ("clients to be given up")
    (<= 5 (getf (figure :expired-by) kind)))
  (loop repeat 5 do (is (string= "next" (ask-text target)))))

(defun send-some-content (connections target &optional (framing "Content-Length: 50000"))
  "Sends over each of CONNECTIONS a little of the content that FRAMING announces to TARGET."
  (dolist (connection connections)
    (send connection (post-head target framing) "a")))

(define-server-test (a-client-that-sends-content-slowly-holds-a-share-of-the-threads
                     :needs :our-http)
  (dolist (target '("/whole" "/stream"))
    (serving-waits ()
      (with-connections (connections *slow-client-count*)
        (send-some-content connections target)
        (check-waits :body "/next")
        (eventually ("clients to be answered")
          (= 5 (count-if #'readable-p connections)))
        (dolist (connection (remove-if-not #'readable-p connections))
          (is (= 408 (response-status (read-response connection)))))))))

(defun begin-to-expect (connection target &optional (framing "Content-Length: 4"))
  (send connection (post-head target (octets "Expect: 100-continue" :crlf framing))))

(define-server-test (a-client-that-was-asked-for-content-and-is-silent-holds-a-share-of-the-threads
                     :needs :our-http)
  (serving-waits (:max-early-octets 1000)
    (with-connections (connections *slow-client-count*)
      (dolist (connection connections)
        (begin-to-expect connection "/whole"))
      (check-waits :body "/next")
      (is (= 8 (loop for connection in connections
                     count (= 100 (response-status (read-response connection))))))
      (eventually ("clients to be answered")
        (= 5 (count-if #'readable-p connections)))
      (dolist (connection (remove-if-not #'readable-p connections))
        (is (= 408 (response-status (read-response connection))))))))

(define-server-test (a-client-that-takes-a-streamed-reply-slowly-holds-a-share-of-the-threads
                     :needs :our-http)
  (serving-waits ()
    (with-connections (connections *slow-client-count*)
      (dolist (connection connections)
        (send-request connection "/large"))
      (check-waits :write "/next"))))

(define-server-test (slow-clients-hold-a-share-of-the-threads-over-tls
                     :needs (:our-http :tls-client))
  (over-tls
    (serving-waits ()
      (let ((connections '()))
        (unwind-protect
             (progn
               ;; Without parking a connection that idles while others wait is closed: each begins
               ;; its request at once.
               (loop repeat *slow-client-count*
                     do (push (connect) connections)
                        (send-some-content (list (first connections)) "/whole"))
               (check-waits :body "/next"))
          (mapc #'disconnect connections))))))

(defun taskmaster-with-one-wait (threads)
  "A taskmaster with THREADS, an integer, of which one may wait for its client."
  (taskmaster :standby-thread-count threads :max-thread-count threads :max-waiting-count 1))

(define-server-test (the-slowest-client-is-given-up-and-no-other :needs :our-http)
  (serving (:taskmaster (taskmaster-with-one-wait 4)
            :max-early-octets 0 :read-timeout 60)
      (("/" (shown (length (hunchentoot:raw-post-data :force-binary t)))))
    (with-connections (connections 2)
      (destructuring-bind (slow fast) connections
        (send slow (post-head "/" "Content-Length: 500000") "a")
        (eventually ("a worker to wait") (= 1 (figure :busy)))
        (send fast (post-head "/" "Content-Length: 500000") (test-octets 400000))
        (is (= 408 (response-status (read-response slow))))
        (send fast (test-octets 100000))
        (is (string= (shown 500000) (response-text (read-response fast))))))))

(define-server-test (the-client-that-is-waited-for-is-given-up-whoever-waits :needs :our-http)
  (let ((stream nil)
        (asked (make-gate "the first handler to begin"))
        (over (make-gate "the second handler to end")))
    (serving (:taskmaster (taskmaster-with-one-wait 4)
              :max-early-octets 0 :read-timeout 60 :content-grace 60)
        (("/lend" (setf stream (hunchentoot:raw-post-data :want-stream t))
                  (open-gate asked)
                  (await over)
                  "lent")
         ("/read" (prog1 (shown (ignore-errors (read-byte stream)))
                    (open-gate over)))
         ("/own" (shown (length (hunchentoot:raw-post-data :force-binary t)))))
      (with-connections (connections 3)
        (destructuring-bind (lender reader own) connections
          (send lender (post-head "/lend" "Content-Length: 10"))
          (await asked)
          (send-request reader "/read")
          (eventually ("a worker to wait") (engine:waits-full-p (server:server-engine *server*)))
          (let ((now (platform:milliseconds)))
            (eventually ("the first client to be slower than the next one")
              (< (+ now 5) (platform:milliseconds))))
          (send own (post-head "/own" "Content-Length: 3"))
          (is (string= (shown nil) (response-text (read-response reader)))
              "Its handler was told that the other client is slow.")
          (send own "abc")
          (is (string= (shown 3) (response-text (read-response own)))))))))

(define-server-test (a-client-that-talks-another-protocol-is-waited-for-without-limit
                     :needs :our-http)
  (serving (:mixin 'talkative :request-class 'talk-request
            :taskmaster (taskmaster-with-one-wait 6))
      (("/talk" (grant-talk)))
    (with-globals ((*talk* #'echo))
      (with-connections (connections 3)
        (mapc #'ask-for-talk connections)
        (dolist (connection connections)
          (send connection (message "still here"))
          (is (string= "still here" (heard connection))))))))

(define-server-test (a-client-is-not-asked-for-content-while-too-many-are-waited-for
                     :needs :parking)
  (serving (:taskmaster (taskmaster-with-one-wait 4)
            :read-timeout 60)
      (("/" (hunchentoot:raw-post-data :force-text t)))
    (with-connections (connections 2)
      (destructuring-bind (silent held) connections
        (begin-to-expect silent "/")
        (is (= 100 (response-status (read-response silent))))
        (eventually ("a worker to wait") (engine:waits-full-p (server:server-engine *server*)))
        (with-globals ((server::*held-milliseconds* 3000))
          (let ((began (platform:milliseconds)))
            (begin-to-expect held "/")
            (eventually ("the second one to be parked")
              (or (and (= 1 (figure :parked)) (= 1 (figure :busy)))
                  (readable-p held)))
            (is-true (or (not (readable-p held))
                         (<= (+ began 3000) (platform:milliseconds))) ; this client is late
                     "It was asked at once."))
          (is (= 100 (response-status (read-response held))))
          (is (= 408 (response-status (read-response silent))))
          (send held "body")
          (is (string= "body" (response-text (read-response held)))))))))

;;; The least rate at which a reply is taken

(define-server-test (a-client-that-takes-a-reply-too-slowly-is-given-up :needs :parking)
  (dolist (target '("/whole" "/streamed"))
    (serving (:write-timeout 60 :min-reply-rate 1000000000 :reply-grace 1)
        (("/whole" *large-answer*)
         ("/streamed" (stream-large-answer)))
      (with-open-connection (connection (connect-with-small-buffer (port-of *server*)))
        (send-request connection target)
        (eventually ("the reply to begin") (readable-p connection))
        (eventually ("the client to be given up") (zerop (figure :open)))
        (is-true (cut-answer-p connection))))))
