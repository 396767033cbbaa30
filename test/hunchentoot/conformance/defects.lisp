(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/defects :in conformance
  :description "Defects of Hunchentoot that we do not inherit.")

(defun stays-false-p (predicate)
  "Whether PREDICATE remains false for a tenth of a second, the time that we give a
server to do what it must not do."
  (not (poll predicate 1/10)))

;;; Of the engine

(define-server-test (soft-stop-does-not-return-after-the-first-request :needs :our-engine)
  (let ((running (make-latch 3 "three requests to run"))
        (gates (vector (make-gate) (make-gate) (make-gate))))
    (serving () (("/" (count-down running)
                      (await (aref gates (parse-integer (hunchentoot:query-string*))))
                      "done"))
      (let ((clients (loop for number below 3
                           collect (let ((target (format nil "/?~D" number)))
                                     (in-background ("a client") (ask-text target))))))
        (await running)
        (let ((stop (in-background ("soft stop") (hunchentoot:stop *server* :soft t))))
          (loop for client in clients
                for gate across gates
                do (is (stays-false-p (lambda () (task-done-p stop))))
                   (open-gate gate)
                   (is (string= "done" (task-result client))))
          (is (eq *server* (task-result stop))))))))

(define-server-test (read-and-write-timeouts-may-differ :needs :our-engine)
  (serving (:read-timeout 8 :write-timeout 9) (("/" "served"))
    (is (string= "served" (ask-text "/")))))

(define-server-test (a-connection-reset-at-once-leaves-nothing-behind :needs :our-engine)
  (serving () (("/" "served"))
    (loop repeat 20
          do (with-connection (connection)
               (send connection "GET / HTTP/1.1")
               (reset connection)))
    (is (string= "served" (ask-text "/")))))

;;; Of the framing of requests

(defun refused-p (&rest parts)
  "Whether the octets of PARTS, a request for / with something wrong, are answered by
one 4xx and the end of the connection, and no handler runs."
  (let ((runs (make-recorder)))
    (serving () (("/" (record runs :handler) "served"))
      (with-connection (connection)
        (send connection "POST / HTTP/1.1" :crlf "Host: localhost" :crlf parts)
        (let ((response (read-response connection)))
          (and (<= 400 (response-status response) 499)
               (closed-by-server-p connection)
               (null (recorded runs))))))))

(define-server-test (content-length-with-transfer-encoding-is-refused :needs :our-reader)
  (is (refused-p "Content-Length: 4" :crlf "Transfer-Encoding: chunked" :crlf :crlf
                 "0" :crlf :crlf))
  (is (refused-p "Transfer-Encoding: chunked" :crlf "Content-Length: 4" :crlf :crlf
                 "0" :crlf :crlf)))

(define-server-test (differing-content-lengths-are-refused :needs :our-reader)
  (is (refused-p "Content-Length: 4" :crlf "Content-Length: 5" :crlf :crlf "body"))
  (is (refused-p "Content-Length: 4, 5" :crlf :crlf "body")))

(define-server-test (malformed-content-lengths-are-refused :needs :our-reader)
  (dolist (value '("" "four" "4x" "-4" "+4" "0x4" "4 4"))
    (is (refused-p (format nil "Content-Length: ~A" value) :crlf :crlf "body")
        "A Content-Length of ~S is taken." value)))

(define-server-test (a-body-that-ends-too-early-is-not-taken-for-whole :needs :our-reader)
  (let ((bodies (make-recorder)))
    (serving () (("/" (record bodies (hunchentoot:raw-post-data :force-binary t))
                      "served"))
      (with-connection (connection)
        (send connection "POST / HTTP/1.1" :crlf "Host: localhost" :crlf
              "Content-Length: 10" :crlf :crlf "short")
        (end-sending connection)
        (is (not (search (octets " 200 ") (receive-rest connection))))
        (is (null (recorded bodies)))))))

;;; Of bodies read as streams

(defun next-answer (connection)
  "The text of the response to a request for /next on CONNECTION, or NIL when the server
has closed it."
  (handler-case (exchange-text connection "/next")
    (broken-response () nil)
    (stream-error () nil)))

(define-server-test (an-unread-body-is-not-run-as-the-next-request :needs :our-reader)
  (let ((runs (make-recorder)))
    (serving () (("/" (hunchentoot:raw-post-data :want-stream t) "unread")
                 ("/smuggled" (record runs :smuggled) "smuggled")
                 ("/next" "next"))
      (with-connection (connection)
        (is (string= "unread"
                     (exchange-text connection "/" :method :post
                                                   :content (request-octets "/smuggled"))))
        (is (member (next-answer connection) '(nil "next") :test #'equal))
        (is (null (recorded runs)))))))

(define-server-test (a-bodyless-request-has-a-stream-that-ends-at-once :needs :our-reader)
  ;; Longer than a test's patience, so that waiting it out fails.
  (serving (:read-timeout 60 :write-timeout 60)
      (("/" (shown (read-byte (hunchentoot:raw-post-data :want-stream t) nil :end))))
    (with-connection (connection)
      (is (string= ":END" (exchange-text connection "/")))
      (is (string= ":END" (exchange-text connection "/"))))))

;;; Of heads without bound

(define-server-test (an-endless-header-line-is-refused :needs :our-reader)
  (serving () (("/" "served"))
    (with-connection (connection)
      (try-to-send connection "GET / HTTP/1.1" :crlf "X-Endless: ")
      (loop with piece = (make-string 65536 :initial-element #\x)
            repeat 64
            until (readable-p connection)
            do (try-to-send connection piece))
      (is (readable-p connection *patience*))
      (is (not (search (octets " 200 ") (receive-rest connection)))))))

(define-server-test (a-head-that-drips-in-is-given-up :needs :our-reader)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds) (("/" "served"))
      (with-prompt-connection (connection)
        (promptly (send connection "GET / HTTP/1.1" :crlf "X-Slow: "))
        (eventually ("the client to be given up" :patience (* 4 *patience*))
          (try-to-send connection "x")
          (readable-p connection 1/4))
        (is (= 408 (response-status (read-response connection))))))))

(define-server-test (half-a-head-is-answered-408-when-its-time-is-over :needs :our-reader)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds) (("/" "served"))
      (with-prompt-connection (connection)
        (promptly (send connection "GET / HTTP/1.1" :crlf "Host: loc"))
        (let ((response (read-response connection)))
          (is (= 408 (response-status response)))
          (is (equalp "close" (response-header response "connection")))
          (is (response-header response "date"))
          (is (plusp (length (response-text response)))))
        (is (closed-by-server-p connection)))
      (eventually ("the connection to be closed")
        (zerop (getf (recycling:stats *server*) :open))))))

(define-server-test (half-a-second-head-is-answered-408-too :needs :our-reader)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds) (("/" "served"))
      (with-prompt-connection (connection)
        (promptly (send connection (request-octets "/") "G"))
        (is (string= "served" (response-text (read-response connection))))
        (is (= 408 (response-status (read-response connection))))))))

(define-server-test (many-halves-of-heads-hold-no-threads :needs :parking)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds
              :taskmaster (make-instance 'recycling:recycling-taskmaster
                                         :standby-thread-count 1 :max-thread-count 1))
        (("/" "served"))
      (let ((*limit-began* (platform:microseconds)))
        (with-connections (connections 30)
          (is (string= "served" (promptly (dolist (connection connections)
                                            (send connection "GET / HTT"))
                                          (ask-text "/"))))
          (dolist (connection connections)
            (is (= 408 (response-status (read-response connection)))))))
      (is (string= "served" (promptly (ask-text "/")))))))

(define-server-test (a-client-whose-head-came-in-time-is-served-when-a-worker-is-free
                     :needs :parking)
  (with-growing-limit (seconds)
    (let ((first-gate (make-gate)) (second-gate (make-gate)))
      (serving (:read-timeout seconds
                :taskmaster (make-instance 'recycling:recycling-taskmaster
                                           :standby-thread-count 1 :max-thread-count 1))
          (("/" "served")
           ("/first" (await first-gate (* 8 *patience*)) "first")
           ("/second" (await second-gate (* 8 *patience*)) "second"))
        (flet ((ask-held (connection target)
                 (send-request connection target)
                 (eventually ("the worker to be held")
                   (eql 1 (getf (recycling:stats *server*) :busy))))
               (unanswered-p (connection)
                 (not (readable-p connection (+ seconds 1/2)))))
          (with-connections (connections 3)
            (destructuring-bind (late other another) connections
              (unwind-protect
                   (progn
                     (is (string= "served"
                                  (promptly
                                    (prog1 (exchange-text late "/")
                                      (ask-held other "/first")
                                      (send late "GET / HTTP/1.1" :crlf "Host: loc")))))
                     (is (unanswered-p late))
                     (open-gate first-gate)
                     ;; Then the turn of LATE comes before another one of OTHER, so part of the
                     ;; head of LATE has been read by the second answer.
                     (is (equal '("first" "served")
                                (promptly
                                  (prog1 (list (response-text (read-response other))
                                               (exchange-text other "/"))
                                    (ask-held another "/second")
                                    (send late "alhost" :crlf :crlf)))))
                     (is (unanswered-p late))
                     (open-gate second-gate)
                     (is (string= "served" (response-text (read-response late)))))
                (open-gate first-gate)
                (open-gate second-gate)))))))))

(define-server-test (a-client-that-has-asked-nothing-is-told-nothing :needs :our-reader)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds) (("/" "served"))
      (dolist (beginning (list (octets) (octets :crlf) (octets :crlf :crlf)))
        (let ((*limit-began* (platform:microseconds)))
          (with-connections (connections 2)
            (is (string= "served" (promptly (prog1 (exchange-text (first connections) "/")
                                              (dolist (connection connections)
                                                (send connection beginning))))))
            (dolist (connection connections)
              (is (closed-by-server-p connection)))))))))

;;; Of replies

(define-server-test (an-error-after-the-headers-cuts-the-reply-short :needs :our-reader)
  (serving () (("/" (write-part (hunchentoot:send-headers) "so far")
                    (error "The handler fails.")))
    (with-connection (connection)
      (send-request connection "/")
      (is (chunked-p (read-head connection)))
      (is (string= "so far" (decode (read-chunk connection))))
      (is (closed-by-server-p connection)))))
