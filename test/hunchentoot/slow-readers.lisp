(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite slow-replies :in acceptors
  :description "Replies to clients that take their time.")

(in-suite slow-replies)

(defmacro serving-large (routes &body body)
  "Evaluates BODY while an acceptor with one thread serves *LARGE-ANSWER* under /large, a word
under /word, and ROUTES."
  `(serving (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 1))
       (("/large" *large-answer*)
        ("/word" "word")
        ,@routes)
     ,@body))

(defun large-reply-p (connection)
  "Whether the next reply that CONNECTION reads is *LARGE-ANSWER*."
  (let ((head (read-head connection)))
    (and (= 200 (response-status head))
         (= *large-size* (content-length head))
         (whole-answer-p connection))))

(defun wait-until-held-up (count)
  "Waits until COUNT clients hold up their replies, and no thread."
  (eventually ("clients to hold up their replies")
    (and (= count (figure :writing)) (zerop (figure :busy)))))

(define-server-test (slow-clients-hold-no-thread :needs :parking)
  (serving-large ()
    (with-connection (slow)
      (with-connection (slower)
        (send-request slow "/large")
        (send-request slower "/large")
        (wait-until-held-up 2)
        (is (string= "word" (ask-text "/word")))
        (is (= 2 (count :writing (recycling:list-connections *server*)
                        :key (lambda (plist) (getf plist :state)))))
        (is (large-reply-p slow))
        (is (large-reply-p slower))
        (is (string= "word" (exchange-text slow "/word")))))))

(define-server-test (a-client-that-reads-a-large-reply-slowly-gets-all-of-it :needs :our-http)
  (with-routes (("/large" *large-answer*))
    (is-true (call-at-pace
              (lambda (seconds pause)
                (with-acceptor (acceptor :write-timeout seconds)
                  (with-open-connection (slow (connect-with-small-buffer
                                               (hunchentoot:acceptor-port acceptor)))
                    (send-request slow "/large")
                    (and (= 200 (response-status (read-head slow)))
                         (large-answer-slowly-p slow pause)))))))))

(define-server-test (a-request-after-a-large-reply-is-answered-in-order :needs :parking)
  (serving-large ()
    (with-connection (slow)
      (send slow (request-octets "/large") (request-octets "/word"))
      (wait-until-held-up 1)
      (send slow (request-octets "/large") (request-octets "/word"))
      (loop repeat 2
            do (is (large-reply-p slow))
               (is (string= "word" (response-text (read-response slow))))))))

(define-server-test (a-large-last-reply-arrives-whole :needs :parking)
  (serving-large ()
    (with-connection (slow)
      (send-request slow "/large" :headers '(("Connection" . "close")))
      (end-sending slow)
      (wait-until-held-up 1)
      (is (large-reply-p slow))
      (is (closed-by-server-p slow)))))

(defun text-follows-p (connection size)
  "Whether the next SIZE octets from CONNECTION are those of letters ä."
  (let ((octets (receive-many connection size)))
    (loop for index below size by 2
          always (and (= 195 (aref octets index)) (= 164 (aref octets (1+ index)))))))

(define-server-test (a-large-string-arrives-whole :needs :parking)
  (let ((text (make-string 6000000 :initial-element #\ä)))
    (serving-large (("/text" text))
      (with-connection (slow)
        (send-request slow "/text")
        (wait-until-held-up 1)
        ;; The worker makes other replies meanwhile.
        (is (string= "word" (ask-text "/word")))
        (let ((size (content-length (read-head slow))))
          (is (= 12000000 size))
          (is (text-follows-p slow size)))))))

(define-server-test (a-client-that-reads-nothing-is-given-up :needs :parking)
  (with-globals ((engine::*tick* 1/100))
    (with-routes (("/large" *large-answer*))
      (with-acceptor (acceptor :write-timeout 1/5 :read-timeout 20)
        (with-connection (slow)
          (send-request slow "/large")
          (eventually ("the client to be given up")
            (= 1 (getf (recycling:stats acceptor) :expired))))))))

(define-server-test (a-soft-stop-lets-slow-clients-have-their-replies :needs :parking)
  (serving-large ()
    (with-connection (slow)
      (send-request slow "/large")
      (wait-until-held-up 1)
      (let ((stop (as-client ("soft stop") (hunchentoot:stop *server* :soft t))))
        (is (large-reply-p slow))
        (is (closed-by-server-p slow))
        (task-result stop)))))

(define-server-test (a-handler-that-writes-on-itself-waits-for-its-client :needs :our-http)
  (serving-large (("/stream" (let ((stream (hunchentoot:send-headers)))
                               (write-sequence *large-answer* stream)
                               (finish-output stream))))
    (with-connection (slow)
      (send slow (request-octets "/stream" :version "HTTP/1.0"))
      (eventually ("the handler to wait") (= 1 (figure :busy)))
      (is (zerop (figure :writing)))
      (read-head slow)
      (is (whole-answer-p slow))
      (is (closed-by-server-p slow)))))

(define-server-test (what-was-written-is-sent-before-more-is-read :needs :our-http)
  (serving-large (("/turns" (let* ((content (hunchentoot:raw-post-data :want-stream t))
                                   (stream (hunchentoot:send-headers)))
                              (write-sequence (octets "early ") stream) ; and not flushed
                              (write-byte (read-byte content) stream))))
    (with-connection (connection)
      (send connection (format nil "POST /turns HTTP/1.0~C~C~2:*Content-Length: 1~C~C~2:*~C~C"
                               #\Return #\Newline))
      (is (= 200 (response-status (read-head connection))))
      (is (equalp (octets "early ") (read-octets connection 6)))
      (send connection "x")
      (is (equalp (octets "x") (receive-rest connection))))))
