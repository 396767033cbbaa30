(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* channels :in acceptors
  :description "Streams of server-sent events, and channels that publish to many of them.")

(defmacro serving-events ((streams channel &rest options) (&rest initargs) &body body)
  "Evaluates BODY while *SERVER*, with INITARGS, answers / by event streams that subscribe to
CHANNEL, a variable bound to a new channel with OPTIONS, and are recorded in STREAMS."
  `(let ((,streams (make-recorder))
         (,channel (recycling:make-channel ,@options)))
     (serving ,initargs
         (("/" (recycling:defer-reply (reply)
                 (record ,streams (recycling:subscribe ,channel (recycling:start-event-stream
                                                                 reply :high-water-mark 20000)))))
          ("/plain" (recycling:defer-reply (reply)
                      (record ,streams (recycling:start-event-stream reply))))
          ("/word" "word"))
       ,@body)))

(defun subscribed-p (connection channel count &rest keys)
  "Makes CONNECTION the COUNTth that subscribes to CHANNEL; true when the head of its stream is that
of events."
  (apply #'send-request connection "/" keys)
  (eventually ("a subscriber") (= count (recycling:channel-size channel)))
  (let ((head (read-head connection)))
    (and (= 200 (response-status head))
         (eql 0 (search "text/event-stream" (response-header head "content-type")))
         (equal "no-cache" (response-header head "cache-control")))))

(defun subscribe-each (connections channel)
  "Makes CONNECTIONS the first that subscribe to CHANNEL, in their order."
  (loop for connection in connections
        for count from 1
        do (is-true (subscribed-p connection channel count))))

(defun next-event (connection)
  "The data of the next event, one in each chunk, that CONNECTION reads; NIL at the end."
  (let ((chunk (ignore-errors (read-chunk connection))))
    (and chunk
         (second (first (parsed-events chunk))))))

(define-server-test (events-leave-as-they-are-sent :needs :our-engine)
  (serving-events (streams channel) ()
    (with-connection (connection)
      (send-request connection "/plain" :headers '(("Last-Event-ID" . "41")))
      (let ((stream (nth-reply streams)))
        (read-head connection)
        (is-true (recycling:send-event stream (format nil "a~%b") :event "tick" :id 42 :retry 1000))
        (is (string= (in-lines "event: tick" "id: 42" "retry: 1000" "data: a" "data: b" "")
                     (decode (read-chunk connection))))
        (is-true (recycling:send-comment stream "still there"))
        (is (string= (in-lines ":still there" "") (decode (read-chunk connection))))
        (signals recycling:malformed-event (recycling:send-event stream "x" :id (string #\Newline)))
        (recycling:close-outgoing stream)
        (is (null (read-chunk connection))))
      (is (string= "word" (exchange-text connection "/word"))))))

(define-server-test (a-client-tells-the-last-event-that-it-got :needs :our-engine)
  (serving () (("/" (prin1-to-string (recycling:last-event-id))))
    (is (string= "\"41\"" (ask-text "/" :headers '(("Last-Event-ID" . "41")))))
    (is (string= "\"ä€\"" (ask-text "/" :headers '(("Last-Event-ID" . "ä€")))))
    (is (string= "NIL" (ask-text "/")))))

(defun publish-in-order (channel name count)
  "Publishes COUNT events of NAME on CHANNEL; true when each reaches all its subscribers."
  (loop for number below count
        always (= (recycling:channel-size channel)
                  (recycling:publish channel (format nil "~A ~D" name number) :id number))))

(defun events-of-name (name events)
  (remove name events :key (lambda (text) (subseq text 0 1)) :test-not #'string=))

(define-server-test (all-subscribers-get-all-events-in-order :needs :our-engine)
  (serving-events (streams channel) ()
    (with-connections (connections 20)
      (subscribe-each connections channel)
      (let* ((count 30)
             (publishers (loop for name in '("a" "b")
                               collect (let ((name name))
                                         (in-background ("publishing")
                                           (publish-in-order channel name count)))))
             (seen (loop for connection in connections
                         collect (loop repeat (* 2 count) collect (next-event connection)))))
        (is (every #'task-result publishers))
        (is (= 1 (length (remove-duplicates seen :test #'equal))) "All see the same order.")
        (dolist (name '("a" "b"))
          (is (equal (loop for number below count collect (format nil "~A ~D" name number))
                     (events-of-name name (first seen))))))
      (when *parking-p*
        (eventually ("all to wait without a thread")
          (and (zerop (figure :busy)) (= 20 (figure :deferred))))))
    (eventually ("subscribers that left to be forgotten")
      (recycling:publish channel "anybody?")
      (zerop (recycling:channel-size channel)))))

(define-server-test (a-client-that-speaks-the-old-protocol-subscribes-too :needs :our-engine)
  (serving-events (streams channel) ()
    (with-connections (connections 2)
      (is-true (subscribed-p (first connections) channel 1))
      (is-true (subscribed-p (second connections) channel 2 :version "HTTP/1.0"))
      (is (= 2 (recycling:publish channel "Grüße")))
      (is (string= "Grüße" (next-event (first connections))))
      (mapc #'recycling:close-outgoing (recorded streams))
      (is (equal '(("" "Grüße" "")) (parsed-events (receive-rest (second connections)))))
      (is (null (read-chunk (first connections))))
      (eventually ("all to have left") (zerop (recycling:channel-size channel)))
      (is (zerop (recycling:publish channel "nobody"))))))

(define-server-test (slow-subscribers-are-dropped :needs :parking)
  (let ((told (make-recorder)) (channel (recycling:make-channel)))
    (serving (:write-timeout 600)       ; which would end it, too
        (("/" (recycling:defer-reply (reply :on-abandon (lambda () (record told t)))
                (recycling:subscribe channel
                                     (recycling:start-event-stream reply :high-water-mark 20000)))))
      (with-connection (quick)
        (is-true (subscribed-p quick channel 1))
        (with-open-connection (slow (small-connection))
          (is-true (subscribed-p slow channel 2))
          (await-pending 2)            ; until then nobody sends to the quick one either
          (let* ((text (make-string 2000 :initial-element #\x))
                 (heard 0)
                 (reading (as-client ("reading")
                            (loop until (equal "last" (next-event quick))
                                  do (incf heard)))))
            (loop for sent from 1 to 5000
                  while (= 2 (recycling:channel-size channel))
                  do (recycling:publish channel text)
                     (eventually ("the quick one to read") (<= sent heard)))
            (is (= 1 (recycling:publish channel "last")))
            (task-result reading)
            (is (plusp heard)))
          (eventually ("the connection to end") (= 1 (figure :open)))
          (is (= 1 (recorded-count told)) "Who was dropped is told once.")
          (is (= 1 (recycling:channel-dropped channel)))
          (is (= 1 (recycling:channel-size channel))))))))

(define-server-test (slow-subscribers-may-miss-events :needs :parking)
  (serving-events (streams channel :when-full :skip) ()
    (with-open-connection (slow (small-connection))
      (is-true (subscribed-p slow channel 1))
      (loop repeat 5000
            while (= 1 (recycling:publish channel (make-string 2000 :initial-element #\x))))
      (is (= 1 (recycling:channel-size channel)))
      (is (zerop (recycling:publish channel "missed")))
      (is (<= 2 (recycling:channel-skipped channel)))
      (let ((reading (as-client ("reading")
                       (loop for event = (next-event slow)
                             until (equal event "seen again")
                             never (equal event "missed")))))
        (eventually ("room") (= 1 (recycling:publish channel "seen again")))
        (is-true (task-result reading))))))

(define-server-test (a-client-that-is-unsubscribed-gets-nothing-more :needs :our-engine)
  (serving-events (streams channel) ()
    (with-connections (connections 2)
      (subscribe-each connections channel)
      (let ((first (nth-reply streams 1)) (second (nth-reply streams 2)))
        (is-true (recycling:unsubscribe channel first))
        (is (null (recycling:unsubscribe channel first)))
        (recycling:subscribe channel second)
        (is (= 1 (recycling:publish channel "once")))
        (is (string= "once" (next-event (second connections))))
        (recycling:send-event first "alone")
        (is (string= "alone" (next-event (first connections))))))))

(defun next-comment-p (connection)
  "True when what comes next on CONNECTION, a stream of events, is a comment."
  (string= (in-lines ":" "") (decode (read-chunk connection))))

(define-server-test (a-client-that-is-silent-for-long-gets-comments :needs :our-engine)
  (with-globals ((recycling:*heartbeat-seconds* 1/20))
    (serving-events (streams channel) ()
      (loop repeat 2                    ; after the last stream has ended, too
            do (with-connection (connection)
                 (is-true (subscribed-p connection channel 1))
                 (loop repeat 3 do (is-true (next-comment-p connection)))
                 (recycling:close-outgoing (await-answer streams))
                 (eventually ("the stream to end") (zerop (recycling:channel-size channel))))))))

(define-server-test (subscribers-may-change-while-others-publish :needs :our-engine)
  (serving-events (streams channel :when-full :skip) ()
    (with-connections (connections 8)
      (subscribe-each connections channel)
      (let* ((all (recorded streams))
             (changing (loop for stream in (rest all)
                             collect (let ((stream stream))
                                       (in-background ("changing")
                                         (loop repeat 200
                                               do (recycling:unsubscribe channel stream)
                                                  (recycling:subscribe channel stream))))))
             (publishing (loop repeat 2
                               collect (in-background ("publishing")
                                         (loop repeat 100 do (recycling:publish channel "x")))))
             (seen (loop repeat 200 count (equal "x" (next-event (first connections))))))
        (mapc #'task-result (append changing publishing))
        (is (= 200 seen) "Who stays gets all.")
        (is (= 8 (recycling:channel-size channel)))))))

(define-server-test (what-is-no-event-reaches-nobody :needs :our-engine)
  (let ((channel (recycling:make-channel)))
    (signals recycling:malformed-event (recycling:publish channel "x" :id (string #\Newline))))
  (serving-events (streams channel) ()
    (with-connection (connection)
      (is-true (subscribed-p connection channel 1))
      (signals recycling:malformed-event (recycling:publish channel "x" :event (string #\Newline)))
      (recycling:publish channel "fine")
      (is (string= "fine" (next-event connection))))))

(define-server-test (no-event-is-longer-than-what-was-announced :needs :our-engine)
  (let ((channel (recycling:make-channel)))
    (serving () (("/" (setf (hunchentoot:content-length*) 12)
                      (recycling:defer-reply (reply)
                        (recycling:subscribe channel (recycling:start-event-stream reply))))
                 ("/word" "word"))
      (with-connection (connection)
        (is-true (subscribed-p connection channel 1))
        (is (= 1 (recycling:publish channel "1234")))
        (is (zerop (recycling:publish channel "5")))
        (is (string= "data: 1234"
                     (string-right-trim '(#\Newline) (decode (read-octets connection 12)))))
        (is (not (readable-p connection 1/20)))))))

(define-server-test (many-subscribers-hold-no-threads :needs :parking)
  (serving-events (streams channel)
      (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 2))
    (with-connections (connections 150)
      (loop for connection in connections
            for count from 1
            do (subscribed-p connection channel count))
      (await-pending 150)
      (is (>= 2 (figure :threads)))
      (loop repeat 5 do (is (= 150 (recycling:publish channel "tick"))))
      (is (loop for connection in connections
                always (loop repeat 5 always (equal "tick" (next-event connection)))))
      (is (string= "word" (ask-text "/word"))))))

