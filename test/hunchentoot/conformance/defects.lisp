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

(define-server-test (a-head-that-drips-in-is-given-up :needs :our-reader)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds) (("/" "served"))
      (with-prompt-connection (connection)
        (promptly (send connection "GET / HTTP/1.1" :crlf "X-Slow: "))
        (eventually ("the client to be given up" :patience (* 4 *patience*))
          (try-to-send connection "x")
          (readable-p connection 1/4))
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
