(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* giving-way :in acceptors
  :description "What clients have a server keep gives way to new clients, where there is no memory for both: the oldest first.")

;;; In each test more than may wait is 50000 octets, of which some clients take all.

(defun check-late-head (&key (target "/word") (text "word") (size 5000))
  "Checks that *SERVER* answers TARGET with TEXT to a client whose head, of SIZE octets, about, comes in two parts."
  (let ((kept (make-gate "the part of a head to be kept")))
    (with-connection (connection)
      (with-function (server::input-kept-p (original &rest arguments)
                       (prog1 (apply original arguments)
                         (open-gate kept)))
        (send connection "GET " target " HTTP/1.1" :crlf
              "X-Padding: " (make-string size :initial-element #\x))
        (await kept))
      (send connection :crlf "Host: localhost" :crlf :crlf)
      (is (string= text (response-text (read-response connection)))))))

(defun send-parts-of-content (connections)
  "Sends over each of CONNECTIONS all of a request with content but for 1000 octets; waits until that is kept."
  (loop for connection in connections
        for count from 1
        do (send connection (post-head "/" "Content-Length: 9000") (test-octets 8000))
           (eventually ("a part of content to be kept")
             (<= (* 8000 count) (engine:client-memory-reserved)))))

(defun padded-request (size)
  "The octets of a request for /word, with a head of SIZE octets, about."
  (octets "GET /word HTTP/1.1" :crlf "Host: localhost" :crlf
          "X-Padding: " (make-string size :initial-element #\x) :crlf :crlf))

(define-server-test (requests-behind-deferred-replies-give-way :needs :parking)
  (with-memory-for-all (100000)
    (serving-deferred (replies) ()
      (with-connections (connections 6)
        (loop for connection in connections
              for count from 1
              do (send connection "GET / HTTP/1.1" :crlf "Host: localhost" :crlf :crlf (padded-request 8000))
                 (await-deferred count))
        (check-late-head)
        (dolist (connection connections)
          (complete replies "later")
          (is (string= "later" (response-text (read-response connection)))))
        (is (closed-by-server-p (first connections)) "The request behind the oldest one was dropped.")
        (is (string= "word" (response-text (read-response (sixth connections)))) "And no other.")))))

(define-server-test (requests-of-the-next-turn-count-as-memory-of-clients :needs :parking)
  (let ((busy (make-gate)) (leave (make-gate)) (held (make-gate)) (go-on (make-gate)))
    (serving (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 1))
        (("/word" "word")
         ("/busy" (progn (open-gate busy) (await leave) "busy"))
         ("/held" (progn (open-gate held) (await go-on) "held")))
      (with-connections (connections 3)
        (destructuring-bind (before flood after) connections
          (send-request before "/busy")
          (await busy)
          (apply #'send flood (loop repeat 100 collect (padded-request 20)))
          (send-request after "/held")
          (open-gate leave)
          (await held)                  ; the first turn of FLOOD is over
          (is (plusp (engine:client-memory-reserved)))
          (engine::evict-idle-connections (recycling::engine-of (recycling::acceptor-taskmaster* *server*)))
          (open-gate go-on)
          (loop repeat 100 do (unless (string= "word" (response-text (read-response flood))) (fail "Another answer.")))
          (dolist (other (list before after))
            (is (= 200 (response-status (read-response other))))))))
    (is (zerop (engine:client-memory-reserved)))))

(define-server-test (content-that-comes-in-parts-gives-way-to-files :needs :parking)
  (with-memory-for-all (100000)
    (with-globals ((server::*most-unfinished* 0))
      (serving () (("/" (shown (length (hunchentoot:raw-post-data :force-binary t))))
                   ("/word" "word"))
        (with-connections (connections 3)
          (send-parts-of-content connections)
          (check-late-head :size 12000)
          (dolist (connection connections)
            (send connection (test-octets 1000))
            (is (string= (shown 9000) (response-text (read-response connection))))))))))

(define-server-test (content-that-comes-in-parts-gives-way-without-files :needs :parking)
  (with-memory-for-all (100000)
    (with-globals ((server::*most-unfinished* 0))
      (with-function (platform:open-temporary-file (original) -28)
        (serving () (("/" (shown (length (hunchentoot:raw-post-data :force-binary t))))
                     ("/word" "word"))
          (with-connections (connections 3)
            (send-parts-of-content connections)
            (check-late-head :size 12000)
            (is (= 503 (response-status (read-response (first connections)))))
            (send (third connections) (test-octets 1000))
            (is (string= (shown 9000) (response-text (read-response (third connections)))))))))))

(define-server-test (heads-whose-content-is-to-come-count :needs :parking)
  (with-memory-for-all (100000)
    (with-globals ((server::*most-unfinished* 0))
      (serving () (("/" (shown (length (hunchentoot:raw-post-data :force-binary t))))
                   ("/word" "word"))
        (with-connections (connections 2)
          (loop for connection in connections
                for framing in '("Content-Length: 9" "Transfer-Encoding: chunked")
                do (send connection (post-head "/" (octets "X-Padding: " (make-string 10000 :initial-element #\x) :crlf framing))
                         "5;ext")
                   (eventually ("the head to be kept")
                     (< 40000 (engine:client-memory-reserved) 50000)))
          (is (= 503 (response-status (read-response (first connections)))) "It gave way to the second one.")
          (send (second connections) :crlf "abcde" :crlf "0" :crlf :crlf)
          (is (string= (shown 5) (response-text (read-response (second connections))))))
        (eventually ("the memory to be given back") (zerop (engine:client-memory-reserved)))))))

(define-server-test (parts-of-messages-give-way :needs :parking)
  (with-memory-for-all (100000)
    (serving-echoes (ends)
      (with-connections (connections 6)
        (let ((talks (mapcar #'open-talk connections))
              (part (subseq (frame :binary (test-octets 8000)) 0 7900)))
          (loop for talk in talks
                for count from 1
                do (tell talk part)
                   (eventually ("a part of a message to be kept")
                     (<= (* 7800 count) (engine:client-memory-reserved))))
          (check-late-head :target "/plain" :text "plain")
          (await-end ends 1006)
          (is (closed-by-server-p (first connections)) "It was the oldest one.")
          (tell (sixth talks) (subseq (frame :binary (test-octets 8000)) 7900))
          (is (eq :binary (first (hear (sixth talks))))))))))

(define-server-test (replies-that-clients-do-not-take-give-way-to-heads :needs :parking)
  (with-memory-for-all (100000)
    (serving () (("/" *large-answer*)
                 ("/word" "word"))
      (with-open-connection (connection (connect-with-small-buffer (port-of *server*)))
        (send-request connection "/")
        (eventually ("the reply to wait for its client") (< 50000 (engine:client-memory-reserved)))
        (check-late-head)
        (is-true (cut-answer-p connection))))))
