(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* own-output :in acceptors
  :description "The framing of replies that handlers of Hunchentoot write, beside fronts/streams.")

(defun write-words (&rest words)
  "A handler that streams WORDS and does not flush them."
  (loop with stream = (hunchentoot:send-headers)
        for word in words
        do (write-sequence (coerce (octets word) 'simple-vector) stream)))

(define-server-test (what-a-program-says-wrongly-of-its-reply-is-500 :needs :our-http)
  (serving () (("/length" (setf (hunchentoot:content-length*) -1)
                          (write-words "body"))
               ("/header" (setf (hunchentoot:header-out :x-bad) (format nil "a~Cb" (code-char 0)))
                          (write-words "body"))
               ("/whole" (setf (hunchentoot:header-out :transfer-encoding) "gzip")
                         "body")
               ("/known" (setf (hunchentoot:header-out :transfer-encoding) "gzip"
                               (hunchentoot:content-length*) 4)
                         (write-words "body")))
    (with-connection (connection)
      (dolist (target '("/length" "/header" "/whole" "/known"))
        (let ((response (exchange connection target)))
          (is (= 500 (response-status response)) "~A" target)
          (is (null (response-header response "transfer-encoding")) "~A" target))))))

(define-server-test (the-coding-of-a-streamed-reply-is-the-servers :needs :our-http)
  (serving () (("/" (setf (hunchentoot:header-out :transfer-encoding) "gzip")
                    (write-words "body")))
    (let ((response (ask "/")))
      (is (chunked-p response))
      (is (string= "body" (response-text response))))))

(define-server-test (a-stream-that-a-program-puts-in-between-gets-what-is-written :needs :our-http)
  (serving () (("/" (setf hunchentoot::*hunchentoot-stream*
                          (flexi-streams:make-flexi-stream hunchentoot::*hunchentoot-stream*))
                    (write-words "body")))
    (is (string= "body" (ask-text "/" :headers '(("Connection" . "close")))))))

(define-server-test (statuses-without-content-have-no-framing :needs :our-http)
  (serving () (("/" (setf (hunchentoot:return-code*) (parse-integer (hunchentoot:query-string*))
                          (hunchentoot:header-out :transfer-encoding) "chunked"
                          (hunchentoot:content-length*) 10)
                    "body")
               ("/next" "next"))
    (with-connection (connection)
      (dolist (status '(204 304))
        (let ((response (exchange connection (format nil "/?~D" status))))
          (is (= status (response-status response)))
          (is (null (response-header response "transfer-encoding")))
          (is (null (response-header response "content-length"))))
        (is (string= "next" (exchange-text connection "/next")))))))
