(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* giving-way :in acceptors
  :description "Where there is no memory for all, what clients have kept for longest gives way.")

;;; In each test more than may wait is 50000 octets, of which some clients take all.

(defun check-late-head (&key (target "/word") (text "word") (size 5000))
  "Checks that *SERVER* answers TARGET with TEXT to a client whose head, of SIZE octets, about,
comes in two parts."
  (let ((kept (make-gate "the part of a head to be kept")))
    (with-connection (connection)
      (with-function (server::keep-waiting-input (original &rest arguments)
                       (prog1 (apply original arguments)
                         (open-gate kept)))
        (send connection "GET " target " HTTP/1.1" :crlf
              "X-Padding: " (make-string size :initial-element #\x))
        (await kept))
      (send connection :crlf "Host: localhost" :crlf :crlf)
      (is (string= text (response-text (read-response connection)))))))

(defun kept-p (least &optional most)
  "True when more than LEAST octets, and fewer than MOST, are reserved for clients, and no worker of
*SERVER* is still at it: what a worker owns gives way to nobody."
  (and (< least (engine:client-memory-reserved) (or most most-positive-fixnum))
       (zerop (getf (server:stats *server*) :busy))))

(defun send-parts-of-content (connections)
  "Sends over each of CONNECTIONS all of a request with content but for 1000 octets; waits until
that is kept."
  (loop for connection in connections
        for count from 1
        do (send connection (post-head "/" "Content-Length: 9000") (test-octets 8000))
           (eventually ("a part of content to be kept")
             (kept-p (1- (* 8000 count))))))

(defun two-requests (size)
  "The octets of a request for /, and behind it those of one for /word with a head of SIZE octets,
about."
  (octets "GET / HTTP/1.1" :crlf "Host: localhost" :crlf :crlf (padded-request size)))

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
              do (send connection (two-requests 8000))
                 (await-deferred count))
        (check-late-head)
        (dolist (connection connections)
          (complete replies "later")
          (is (string= "later" (response-text (read-response connection)))))
        (is (closed-by-server-p (first connections))
            "The request behind the oldest one was dropped.")
        (is (string= "word" (response-text (read-response (sixth connections))))
            "And no other.")))))

(defun large-request (target &optional (size 3500))
  "The octets of a request for TARGET whose head takes four times SIZE octets of memory, about."
  (octets "GET " target " HTTP/1.1" :crlf "Host: localhost" :crlf
          "X-Padding: " (make-string size :initial-element #\x) :crlf :crlf))

(defun await-memory (octets)
  "Waits until more than OCTETS are reserved for clients, and for a millisecond: who has memory in
the next one is younger."
  (eventually ("memory to be reserved") (kept-p octets))
  (let ((now (platform:milliseconds)))
    (eventually ("a millisecond to pass") (< now (platform:milliseconds)))))

(define-server-test (large-requests-whose-replies-come-later-give-way :needs :parking)
  (with-memory-for-all (100000)
    (serving-deferred (replies) ()
      (with-connections (connections 3)
        (loop for connection in connections
              for count from 1
              do (send connection (large-request "/"))
                 (nth-reply replies count)
                 (when (< count 3)
                   (await-deferred count) ; its worker may not be done, though its handler has begun
                   (await-memory (* 14000 count))))
        (destructuring-bind (first second third) connections
          (is (= 503 (response-status (read-response first))))
          (is (string= "word" (exchange-text first "/word")) "It is used again.")
          (is (not (complete replies "late")))
          (is-true (complete replies "later"))
          (is (string= "later" (response-text (read-response second))))
          ;; There is room for it once the first one was answered.
          (is (= (if (complete replies "later") 200 503)
                 (response-status (read-response third)))))
        (eventually ("the memory to be given back") (zerop (engine:client-memory-reserved)))))))

(define-server-test (usual-requests-whose-replies-come-later-take-no-memory-of-clients
                     :needs :parking)
  (serving-deferred (replies) ()
    (with-connection (connection)
      (send-request connection "/" :headers '(("Accept-Language" . "en") ("Cookie" . "a=b; c=d")))
      (await-deferred 1)
      (is (zerop (engine:client-memory-reserved)))
      (complete replies "later")
      (is (string= "later" (response-text (read-response connection)))))))

(define-server-test (large-requests-that-find-no-memory-are-not-deferred :needs :parking)
  (with-memory-for-all (100000)
    (serving-deferred (replies) ()
      (with-connection (connection)
        (send connection (large-request "/" 15000))
        (is (= 503 (response-status (read-response connection))))
        (is (not (complete replies "late")))
        (is (string= "word" (exchange-text connection "/word")))))))

(define-server-test (large-requests-that-find-no-memory-are-not-answered-later-by-clack
                     :needs :parking)
  (with-memory-for-all (100000)
    (with-later (given) responder
      (with-connection (connection)
        (send connection (large-request "/" 15000))
        (let ((response (read-response connection)))
          (is (= 503 (response-status response)))
          (is (string= "Service Unavailable" (response-text response))))
        (is (not (eq t (elsewhere (nth-given given) '(200 () ("late"))))))
        (is (string= "word" (exchange-text connection "/word")))))))

(define-server-test (streams-of-large-requests-give-way :needs :parking)
  (with-memory-for-all (100000)
    (let ((streams (make-recorder)) (left (make-gate)))
      (serving () (("/" (recycling:defer-reply (reply :on-abandon (lambda () (open-gate left)))
                          (record streams (recycling:start-stream reply)))))
        (with-connections (connections 3)
          (loop for connection in connections
                for count from 1
                do (send connection (large-request "/"))
                   (read-head connection)
                   (when (< count 3)
                     (await-memory (* 14000 count))))
          (await left)
          (is (closed-by-server-p (first connections)) "It was the oldest one.")
          (recycling:close-outgoing (second (recorded streams)))
          (is (equalp (octets "0" :crlf :crlf) (receive-few (second connections) 5))))))))

(define-server-test (requests-behind-a-reply-that-is-not-taken-count :needs :parking)
  (serving () (("/" *large-answer*)
               ("/word" "word"))
    (with-open-connection (connection (connect-with-small-buffer (port-of *server*)))
      (send connection (two-requests 8000))
      (eventually ("the reply, and the request behind it, to wait for the client")
        (< (+ (length *large-answer*) 8000) (engine:client-memory-reserved))))
    (eventually ("the memory to be given back") (zerop (engine:client-memory-reserved)))))

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
          (engine::evict-idle-connections (server:server-engine *server*))
          (open-gate go-on)
          (loop repeat 100
                do (unless (string= "word" (response-text (read-response flood)))
                     (fail "Another answer.")))
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
                for padding = (make-string 10000 :initial-element #\x)
                do (send connection (post-head "/" (octets "X-Padding: " padding :crlf framing))
                         "5;ext")
                   (eventually ("the head to be kept")
                     (kept-p 40000 50000)))
          (is (= 503 (response-status (read-response (first connections))))
              "It gave way to the second one.")
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
                     (kept-p (1- (* 7800 count)))))
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
        (await-memory 50000)
        (eventually ("the connection to be parked")
          (and (= 1 (figure :writing)) (zerop (figure :busy))))
        (check-late-head)
        (is-true (cut-answer-p connection))))))
