(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/slow-clients :in fronts
  :description "Clients that take their time to take a reply, or to send content.")

(define-front-test (slow-clients-hold-no-thread :modes (:plain :tls :http2) :needs :parking)
  (with-front (request :worker-num 1 :max-thread-count 1) (reply 200 '() *large-answer*)
    (with-connections (connections 2)
      (dolist (connection connections)
        (send connection (request-octets "/") (request-octets "/word")))
      (await-held-up 2)
      (is (equal "word" (ask-text "/word")))
      (is (= 2 (count :writing (recycling:list-connections *server*)
                      :key (lambda (plist) (getf plist :state)))))
      (send (first connections) (request-octets "/word"))
      (dolist (connection connections)
        (is-true (large-reply-p connection))
        (is (equal "word" (response-text (read-response connection)))))
      (is (equal "word" (response-text (read-response (first connections))))))
    (let ((before (figure :memory)))
      (with-connection (leaving)
        (send-request leaving "/")
        (await-held-up 1)
        (is (< before (figure :memory))))
      (eventually ("memory to be given back") (>= before (figure :memory))))))

(define-front-test (a-large-last-reply-arrives-whole :modes (:plain :unparked :tls))
  (with-front (request) (reply 200 '() (make-string 6000000 :initial-element #\ä))
    (with-connection (connection)
      (send connection (request-octets "/" :headers '(("Connection" . "close"))) "and more")
      (end-sending connection)
      (when *parking-p*
        (await-held-up 1))
      (is (= 12000000 (content-length (read-head connection))))
      (is (null (octet-difference (encode (make-string 6000000 :initial-element #\ä))
                                  (receive-many connection 12000000))))
      (is-true (closed-by-server-p connection)))
    (eventually ("all octets to be counted") (< 12000000 (figure :octets-sent) 12010000))))

(define-front-test (a-client-that-is-slow-and-steady-gets-all
                    :modes (:plain :http2) :needs :our-http)
  (dolist (path '("/whole" "/streamed"))
    (with-growing-limit (seconds)       ; it takes four times that, in all
      (with-front (request :write-timeout seconds :read-timeout seconds
                           :max-connection-requests 1)
          (if (equal "/whole" (path request))
              (reply 200 '() *large-answer*)
              (streamed (write 200) (write-large write)))
        (with-open-connection (connection (small-connection))
          (flet ((take (count)
                   (length (receive-many connection count))))
            (send-request connection path :version "HTTP/1.0") ; so there are no chunks
            (is (= 200 (response-status (read-head connection))))
            ;; The system tells the server, at the latest, when three pieces were taken.
            (is (= 2400000 (loop with *limit* = (/ seconds 2)
                                 repeat 16
                                 sum (promptly (loop repeat 3
                                                     do (poll (constantly nil) (/ seconds 12))
                                                     sum (take 50000))))))
            (is (= (- *large-size* 2400000) (promptly (take (- *large-size* 2400000)))))))))))

(define-front-test (a-client-that-sends-its-content-slowly-and-steadily-sends-all
                    :modes (:plain :http2) :needs :our-http)
  (with-growing-limit (seconds)
    (with-front (request :read-timeout seconds :min-content-rate nil)
        (reply 200 '() (content request))
      (with-connection (connection)
        (send connection (post-head "/" "Content-Length: 12"))
        (loop repeat 12
              do (promptly (poll (constantly nil) (/ seconds 3))
                           (send connection "x")))
        (is (= 200 (response-status (read-response connection))))))))

(define-front-test (a-client-that-takes-a-reply-too-slowly-is-given-up
                    :modes (:plain :unparked :tls) :needs :our-http)
  (with-globals ((engine:*reply-grace* 1/2))
    (dolist (arguments '((:write-timeout 1/4) (:write-timeout 60 :min-reply-rate 1000000000)))
      (dolist (path '("/whole" "/streamed"))
        (with-front* (request arguments)
            (if (equal "/whole" (path request))
                (reply 200 '() *large-answer*)
                (streamed (write 200) (write-large write)))
          (with-open-connection (connection (small-connection))
            (send-request connection path)
            (eventually ("the reply to begin") (readable-p connection))
            (eventually ("the client to be given up") (zerop (figure :open)))
            (is-true (cut-answer-p connection))))))))

(define-front-test (a-soft-stop-lets-slow-clients-have-their-replies :modes (:plain :tls :http2)
                    :needs :parking)
  (with-globals ((engine::*drain-seconds* 1/10) (engine::*held-seconds* 1/10))
    (with-front (request) (reply 200 '() *large-answer*)
      (with-connections (connections 2)
        (destructuring-bind (connection idle) connections
          (send-request connection "/")
          (await-held-up 1)
          (is (equal "word" (exchange-text idle "/word")))
          (let ((stop (as-client ("stopping") (stop-front :soft t))))
            (is-true (closed-by-server-p idle) "The moment for others is over.")
            (is-true (large-reply-p connection))
            (is-true (closed-by-server-p connection))
            (task-result stop))))))
  (with-front (request) (reply 200 '() *large-answer*)
    (with-connection (connection)
      (send-request connection "/")
      (await-held-up 1)
      (is (equal '(:writing) (mapcar (lambda (plist) (getf plist :state))
                                     (nth-value 1 (stop-front :soft t :timeout 1/2)))))
      (is-true (cut-answer-p connection)))))

(define-front-test (what-a-handler-wrote-leaves-without-its-thread
                    :modes (:plain :unparked :http2) :needs :parking)
  (with-globals ((recycling:*high-water-mark* (* 2 *large-size*)))
    (with-front (request :worker-num 1 :max-thread-count 1)
        (streamed (write 200)
          (write-large write)
          (when (equal "/error" (path request))
            (error "At the end.")))
      (with-connections (connections 2)
        (destructuring-bind (whole cut) connections
          (send whole (request-octets "/") (request-octets "/word"))
          (send-request cut "/error")
          (await-held-up 2)
          (is (equal "word" (ask-text "/word")))
          (is-true (large-stream-p whole))
          (is (equal "word" (response-text (read-response whole))))
          (read-head cut)
          (loop with left = *large-size*
                while (plusp left)
                do (decf left (length (read-chunk cut)))
                finally (is (zerop left)))
          (is-true (closed-by-server-p cut) "The last chunk is missing."))))))

;;; Clients for which threads wait

(defparameter *waits*
  '(:worker-num 6 :max-thread-count 6 :read-timeout 60 :write-timeout 60)
  "Arguments of a server half of whose threads may wait for clients.")

(define-front-test (slow-clients-hold-a-share-of-the-threads :modes (:plain :unparked :tls :http2)
                    :needs :our-http)
  (with-front* (request (if (and (eq :hunchentoot *front*) (eq :unparked *mode*))
                            (list* :mixin 'stream-wrapping *waits*)
                            *waits*))
      (if (equal "/content" (path request))
          (reply 200 '() (content request))
          (streamed (write 200) (write-large write)))
    (loop for (kind . octets)
            in `(,@(unless *parking-p* ; else content needs no thread
                     `((:body . ,(post-head "/content" "Content-Length: 50000"))))
                 (:write . ,(request-octets "/large")))
          do (let ((connections '()))
               (unwind-protect
                    (progn
                      (loop repeat 8
                            do (push (connect) connections)
                               (send (first connections) octets))
                      (eventually ("those that are too many to be given up")
                        (<= 5 (getf (figure :expired-by) kind)))
                      (loop repeat 5 do (is (equal "word" (ask-text "/word"))))
                      (is (= 5 (getf (figure :expired-by) kind))))
                 (mapc #'disconnect connections))))))

(define-front-test (the-slowest-client-is-given-up-and-no-other :modes (:unparked)
                    :needs :our-http)
  (with-front* (request (list* :worker-num 3 :max-thread-count 3 *waits*))
      (reply 200 '() (content request))
    (with-connections (connections 2)
      (destructuring-bind (slow fast) connections
        (send slow (post-head "/" "Content-Length: 500000") "a")
        (eventually ("a thread to wait") (= 1 (figure :busy)))
        (send fast (post-head "/" "Content-Length: 500000") (test-octets 400000))
        (is (= 408 (response-status (read-response slow))))
        (send fast (test-octets 100000))
        (is (= 500000 (length (response-body (read-response fast)))))))))

;;; Clients that send more while their last reply is on its way

(define-front-test (who-sends-more-than-is-read-is-not-reset :modes (:plain :unparked :tls)
                    :needs :our-http)
  (with-front (request :max-body-octets 10) (reply 200 '() "last")
    (loop for (status . octets)
            in (list (cons 413 (octets "POST / HTTP/1.1" :crlf "Host: localhost" :crlf
                                       "Content-Length: 1000000" :crlf :crlf))
                     (cons 400 (octets "nonsense" :crlf)))
          do (with-connection (connection)
               (send connection octets)
               (dotimes (number 20)
                 (try-to-send connection (make-string 10000 :initial-element #\x)))
               (is (= status (response-status (read-response connection))))
               (is-true (closed-by-server-p connection))))))

(define-front-test (who-sends-after-the-last-reply-is-not-reset :modes (:plain :unparked))
  (with-front (request :max-body-octets 10) nil
    (flet ((may-send-p ()
             (with-connection (connection)
               (send connection (post-head "/" "Content-Length: 11"))
               (is (= 413 (response-status (read-response connection))))
               (is-true (closed-by-server-p connection))
               (poll (constantly nil) 1/50)
               (ignore-errors (send connection "x") ; a reset makes the next one fail
                              (send connection "x")
                              t))))
      ;; The server waits for so short a time that a busy machine may be late.
      (is-true (loop repeat 5 thereis (may-send-p))))))

(define-front-test (who-never-closes-is-closed-in-the-end :modes (:plain))
  (with-front (request :read-timeout 1000) (reply 200 '() "last")
    (with-connection (connection)
      (send connection "nonsense" :crlf "more")
      (is (= 400 (response-status (read-response connection))))
      (is-true (closed-by-server-p connection))
      (eventually ("the connection to end") (zerop (figure :open)))
      (when *parking-p*
        (is (= 1 (ended-by :linger)))))))

(define-front-test who-sends-no-more-is-closed-at-once
  (with-front (request) (reply 200 '() (content request))
    (dolist (keys '((:headers (("Connection" . "close")))
                    (:version "HTTP/1.0")
                    (:method :post :content "content" :headers (("Connection" . "x, Close")))
                    (:method :post :chunks ("content") :headers (("Connection" . "close")))))
      (with-connection (connection)
        (is (= 200 (response-status (apply #'exchange connection "/" keys))))
        (is-true (closed-by-server-p connection))
        (eventually ((format nil "the connection of ~S to be closed" keys))
          (and (zerop (figure :open)) (zerop (figure :busy))))))
    (is (zerop (ended-by :linger)))))
