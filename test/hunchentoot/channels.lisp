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

(defun next-event (connection)
  "The data of the next event, one in each chunk, that CONNECTION reads; NIL at the end."
  (let ((chunk (ignore-errors (read-chunk connection))))
    (and chunk
         (second (first (parsed-events chunk))))))

(define-server-test (events-leave-as-they-are-sent :needs :our-engine)
  (serving-events (streams channel) ()
    (with-connection (connection)
      (is-true (subscribed-p connection channel 1))
      (let ((stream (await-answer streams)))
        (is-true (recycling:send-event stream (format nil "a~%b") :event "tick" :id 42 :retry 1000))
        (is (string= (in-lines "event: tick" "id: 42" "retry: 1000" "data: a" "data: b" "")
                     (chunk-text connection)))
        (is-true (recycling:send-comment stream "still there"))
        (is (string= (in-lines ":still there" "") (chunk-text connection)))
        (signals recycling:malformed-event (recycling:send-event stream "x" :id (string #\Newline)))
        (signals recycling:malformed-event
          (recycling:publish channel "x" :event (string #\Newline)))
        (is (= 1 (recycling:publish channel "fine")))
        (is (string= "fine" (next-event connection)))
        (is-true (recycling:unsubscribe channel stream))
        (is (null (recycling:unsubscribe channel stream)))
        (is (= 1 (length (server::shared-queue-on-end stream))) "The heartbeat is left.")
        (is (zerop (recycling:publish channel "nobody's")))
        (recycling:send-event stream "alone")
        (is (string= "alone" (next-event connection)))
        (recycling:close-outgoing stream)
        (is (null (read-chunk connection))))
      (is (string= "word" (exchange-text connection "/word"))))))

(define-server-test (a-client-tells-the-last-event-that-it-got :needs :our-engine)
  (serving () (("/" (prin1-to-string (recycling:last-event-id))))
    (is (string= "\"ä€\"" (ask-text "/" :headers '(("Last-Event-ID" . "ä€")))))
    (is (string= "NIL" (ask-text "/")))))

(define-server-test (all-subscribers-get-all-events-in-order :needs :our-engine)
  (serving-events (streams channel :when-full :skip)
      (:taskmaster (taskmaster :max-thread-count (if *parking-p* 2 100)))
    (with-connections (connections 50)
      (loop for connection in connections
            for count from 1
            do (is-true (subscribed-p connection channel count)))
      (await-pending 50)
      (let* ((count 30)
             (publishing (loop for name in '("a" "b")
                               collect (let ((name name))
                                         (in-background ("publishing")
                                           (dotimes (number count)
                                             (recycling:publish
                                              channel (format nil "~A ~D" name number)))))))
             (changing (let ((stream (first (last (recorded streams)))))
                         (in-background ("changing")
                           (loop repeat 200
                                 do (recycling:unsubscribe channel stream)
                                    (recycling:subscribe channel stream)))))
             (seen (loop for connection in (butlast connections)
                         collect (loop repeat (* 2 count) collect (next-event connection)))))
        (mapc #'task-result (cons changing publishing))
        (is (= 1 (length (remove-duplicates seen :test #'equal))) "All see the same order.")
        (dolist (name '("a" "b"))
          (is (equal (loop for number below count collect (format nil "~A ~D" name number))
                     (remove name (first seen) :key (lambda (text) (subseq text 0 1))
                                               :test-not #'string=)))))
      (is (= 50 (recycling:channel-size channel)))
      (is (string= "word" (ask-text "/word"))))
    (eventually ("subscribers that left to be forgotten")
      (recycling:publish channel "anybody?")
      (zerop (recycling:channel-size channel)))))

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
          (await-pending 2)             ; until then nobody sends to the quick one either
          (let ((text (make-string 2000 :initial-element #\x)))
            (loop repeat 5000
                  while (= 2 (recycling:publish channel text))
                  do (is-true (next-event quick)))
            (is (string= text (next-event quick))))
          (is (= 1 (recycling:publish channel "last")))
          (is (string= "last" (next-event quick)))
          (eventually ("the connection to end") (= 1 (figure :open)))
          (is (= 1 (recorded-count told)) "The program is told once that it was dropped.")
          (is (= 1 (recycling:channel-size channel))))))))

(define-server-test (slow-subscribers-may-miss-events :needs :parking)
  (serving-events (streams channel :when-full :skip) ()
    (with-open-connection (slow (small-connection))
      (is-true (subscribed-p slow channel 1))
      (loop repeat 5000
            while (= 1 (recycling:publish channel (make-string 2000 :initial-element #\x))))
      (is (= 1 (recycling:channel-size channel)))
      (is (zerop (recycling:publish channel "missed")))
      (let ((reading (as-client ("reading")
                       (loop for event = (next-event slow)
                             until (equal event "seen again")
                             never (equal event "missed")))))
        (eventually ("room") (= 1 (recycling:publish channel "seen again")))
        (is-true (task-result reading))))))

(define-server-test (a-client-that-is-silent-for-long-gets-comments :needs :our-engine)
  (with-globals ((recycling:*heartbeat-seconds* 1/20))
    (serving-events (streams channel) ()
      (loop repeat 2                    ; after the last stream has ended, too
            do (with-connection (connection)
                 (is-true (subscribed-p connection channel 1))
                 (loop repeat 3 do (is (string= (in-lines ":" "") (chunk-text connection))))
                 (recycling:close-outgoing (await-answer streams))
                 (eventually ("the stream to end") (zerop (recycling:channel-size channel))))))))
