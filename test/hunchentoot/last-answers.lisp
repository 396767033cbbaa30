(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite last-answers :in acceptors
  :description "Clients that send more while their last answer is on its way are not reset.")

(in-suite last-answers)

(defmacro with-patient-closing (&body body)
  "Evaluates BODY while a connection that was answered for the last time waits for its client for
longer than a test waits for anything."
  `(with-globals ((engine::*linger-seconds* (* 2 *patience*))
                  (platform::*discard-seconds* (* 2 *patience*))
                  (platform::*discard-pause* (* 2 *patience*)))
     ,@body))

(defun octets-refused-p (connection)
  "Sends something to CONNECTION; true when that fails."
  (handler-case (progn (send connection "more") nil)
    (error () t)))

(defun check-that-more-may-come (connection)
  "Checks that the server has ended its half of CONNECTION, and is not surprised by what comes."
  (is (closed-by-server-p connection))
  (is (not (poll (lambda () (octets-refused-p connection)) 1/5))))

(define-server-test (what-comes-after-a-refusal-resets-nobody :needs :our-engine)
  (with-patient-closing
    (serving (:max-body-octets 10) (("/" "body"))
      (loop for (status . input) in `((413 "POST / HTTP/1.1" :crlf "Host: localhost" :crlf
                                           "Content-Length: 1000000" :crlf :crlf)
                                      (400 "nonsense" :crlf))
            do (with-connection (connection)
                 (apply #'send connection input)
                 (is (= status (response-status (read-response connection))))
                 (check-that-more-may-come connection))))))

(define-server-test (a-client-that-has-not-said-that-it-sends-no-more-is-not-reset
                     :needs :our-engine)
  (with-patient-closing
    (serving (:persistent-connections-p nil) (("/" "body"))
      (with-connection (connection)
        (is (equal "body" (exchange-text connection "/")))
        (check-that-more-may-come connection)))))

(define-server-test (a-client-that-has-said-that-it-sends-no-more-is-closed-at-once
                     :needs :our-engine)
  (with-patient-closing
    (serving () (("/" (hunchentoot:raw-post-data) "body"))
      (dolist (keys '((:headers (("Connection" . "close")))
                      (:headers (("Connection" . "x, Close")))
                      (:version "HTTP/1.0")
                      (:method :post :content "content" :headers (("Connection" . "close")))
                      (:method :post :chunks ("content") :headers (("Connection" . "close")))))
        (with-connection (connection)
          (is (equal "body" (apply #'exchange-text connection "/" keys)))
          (is (closed-by-server-p connection))
          (eventually ((format nil "the connection of ~S to be closed" keys))
            (and (zerop (figure :open)) (zerop (figure :busy)))))))))

(define-server-test (a-client-that-has-sent-more-than-it-has-said-is-not-reset
                     :needs (:our-engine :known-read-ahead))
  (with-patient-closing
    (serving () (("/" "body"))
      (flet ((requests (count &rest headers)
               (loop repeat count
                     collect (octets "GET / HTTP/1.1" :crlf "Host: localhost" :crlf headers
                                     :crlf))))
        (dolist (count '(1 2000))       ; all of them are read with the first one, or not
          (with-connection (connection)
            (send connection (requests 1 "Connection: close" :crlf) (requests count))
            (is (string= "body" (response-text (read-response connection))))
            (check-that-more-may-come connection)))))))
