(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite slow-streams :in acceptors
  :description "Clients that take their time to take what a handler streams.")

(in-suite slow-streams)

(defun stream-large-answer ()
  "A handler that streams *LARGE-ANSWER* in pieces."
  (loop with stream = (hunchentoot:send-headers)
        for start from 0 below *large-size* by *paced-octets*
        do (write-sequence *large-answer* stream
                           :start start :end (min *large-size* (+ start *paced-octets*)))
           (finish-output stream)))

(defun large-stream-p (connection &optional (pause (constantly nil)))
  "Whether the next reply that CONNECTION reads is *LARGE-ANSWER* in chunks, before each of which it
calls PAUSE."
  (flet ((next-chunk ()
           (funcall pause)
           (read-chunk connection)))
    (and (chunked-p (read-head connection))
         (loop for start = 0 then end
               for chunk = (next-chunk)
               for end = (+ start (length chunk))
               while (and chunk
                          (<= end *large-size*)
                          (null (mismatch *large-answer* chunk :start1 start :end1 end)))
               finally (return (and (null chunk) (= start *large-size*)))))))

(define-server-test (a-client-that-reads-nothing-of-a-stream-holds-a-thread-for-one-write-timeout
                     :needs :our-http)
  (let ((failures (make-recorder)))
    (with-routes (("/stream" (handler-bind ((error (lambda (condition)
                                                     (record failures (type-of condition)))))
                               (stream-large-answer)))
                  ("/word" "word"))
      ;; Nobody waits for the read timeout here, which is longer than the patience of the test.
      (with-acceptor (acceptor :write-timeout 1/4 :read-timeout 60
                               :taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 1))
        (with-connections (connections 6)
          (dolist (connection connections)
            (send-request connection "/stream"))
          (is (string= "word" (ask-text "/word")))
          (eventually ("all handlers to fail") (<= 6 (recorded-count failures)))
          (is (equal (make-list 6 :initial-element 'server:stream-timeout) (recorded failures))
              "Each waits once.")
          (dolist (connection connections)
            (is (< (length (receive-many connection *large-size*)) *large-size*))))))))

(define-server-test (a-client-that-reads-a-stream-slowly-gets-all-of-it :needs :our-http)
  (with-routes (("/stream" (stream-large-answer)))
    (is-true (call-at-pace
              (lambda (seconds pause)   ; four times the write timeout, in all
                (with-acceptor (acceptor :write-timeout seconds :read-timeout seconds)
                  (with-open-connection (connection (connect-with-small-buffer
                                                     (hunchentoot:acceptor-port acceptor)))
                    (send-request connection "/stream")
                    (large-stream-p connection pause))))))))

(define-server-test (what-is-left-of-a-stream-holds-no-thread :needs :parking)
  (with-globals ((recycling:*high-water-mark* (* 2 *large-size*)))
    (serving-large (("/stream" (stream-large-answer)))
      (with-connection (slow)
        (with-connection (slower)
          (send slow (request-octets "/stream") (request-octets "/word"))
          (send-request slower "/stream")
          (wait-until-held-up 2)
          (is (string= "word" (ask-text "/word")))
          (is (large-stream-p slow))
          (is (string= "word" (response-text (read-response slow))))
          (is (large-stream-p slower))
          (is (string= "word" (exchange-text slower "/word"))))))))

(define-server-test (where-the-heap-has-no-room-a-handler-waits-for-its-client :needs :parking)
  (with-globals ((recycling:*high-water-mark* (* 2 *large-size*)))
    (let ((room-p nil))
      (with-function (engine:make-room-in-heap (original octets) room-p)
        (serving-large (("/stream" (stream-large-answer)))
          (with-connection (slow)
            (send-request slow "/stream")
            (eventually ("the handler to wait") (plusp (figure :busy)))
            (is (not (poll (lambda () (zerop (figure :busy))) 1/5)))
            (is (large-stream-p slow))))))))

(define-server-test (what-was-written-before-a-handler-failed-arrives-without-a-thread
                     :needs :parking)
  (with-globals ((recycling:*high-water-mark* (* 2 *large-size*)))
    (serving-large (("/stream" (stream-large-answer) (error "At the end.")))
      (with-connection (slow)
        (send-request slow "/stream")
        (wait-until-held-up 1)
        (read-head slow)
        (is (null (octet-difference *large-answer*
                                    (octets (loop with position = 0
                                                  while (< position *large-size*)
                                                  collect (let ((chunk (read-chunk slow)))
                                                            (incf position (length chunk))
                                                            chunk))))))
        (is (closed-by-server-p slow) "The last chunk is missing.")))))

;;; Time limits of a handler's own

(define-server-test (a-handler-that-leaves-amid-a-write-and-writes-on-breaks-no-chunk
                     :needs :our-http)
  (let ((armed-p nil))
    (with-routes (("/" (let ((stream (hunchentoot:send-headers)))
                         (setf armed-p t)
                         (catch 'late
                           (write-sequence (octets "first ") stream)
                           (finish-output stream))
                         (write-sequence (octets "second") stream)
                         (finish-output stream))))
      (with-function (platform:send-octets (original descriptor octets start end)
                       (if (shiftf armed-p nil)
                           (prog1 (funcall original descriptor octets start (+ start 2))
                             (bt:interrupt-thread (bt:current-thread)
                                                  (lambda () (throw 'late nil))))
                           (funcall original descriptor octets start end)))
        (serving ()
            ()
          (with-connection (connection)
            (loop repeat 2
                  do (is (string= "first second" (exchange-text connection "/"))))))))))

(define-server-test (a-handler-that-leaves-before-its-head-is-sent-ends-the-connection
                     :needs :our-http)
  (with-routes (("/" (catch 'late
                       (hunchentoot:send-headers))
                     "late"))
    (with-function (recycling::take-before-streaming (original request)
                     (throw 'late nil))
      (serving ()
          ()
        (with-connection (connection)
          (send-request connection "/")
          (is (closed-by-server-p connection)))))))
