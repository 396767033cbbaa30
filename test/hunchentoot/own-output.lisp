(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite own-output :in acceptors
  :description "The framing of replies that handlers write themselves.")

(in-suite own-output)

(defun write-words (&rest words)
  "A handler that streams WORDS and does not flush them."
  (loop with stream = (hunchentoot:send-headers)
        for word in words
        do (write-sequence (octets word) stream)))

(define-server-test (a-length-that-nothing-has-is-not-announced :needs :our-http)
  (serving () (("/" (setf (hunchentoot:content-length*) -1)
                    (write-words "body")))
    (with-connection (connection)
      (loop repeat 2
            do (is (= 500 (response-status (exchange connection "/"))))))))

;;; Replies without content

(define-server-test (what-is-written-after-a-switch-of-protocols-leaves-as-it-is :needs :our-http)
  (serving () (("/" (setf (hunchentoot:return-code*) 101
                          (hunchentoot:header-out :upgrade) "talk"
                          (hunchentoot:header-out :connection) "Upgrade")
                    (write-words "abc" "def")))
    (let ((text (ask-parts (request-octets "/" :headers '(("Connection" . "Upgrade")
                                                          ("Upgrade" . "talk"))))))
      (is (uiop:string-suffix-p text (format nil "~C~C~2:*~C~Cabcdef" #\Return #\Linefeed)))
      (is (not (search "transfer-encoding" text :test #'char-equal))))))

(define-server-test (after-a-switch-of-protocols-nothing-is-taken-for-a-request :needs :our-http)
  (serving () (("/" (setf (hunchentoot:return-code*) 101
                          (hunchentoot:header-out :upgrade) "talk")
                    ""))
    (flet ((check-one-answer ()
             (let ((text (ask-parts (request-octets "/" :headers '(("Connection" .
                                                                    "keep-alive, Upgrade")
                                                                   ("Upgrade" . "talk")))
                                    (request-octets "/"))))
               (is (= 1 (count-of "HTTP/1.1 " text)))
               text)))
      (is (not (search "connection:" (check-one-answer) :test #'char-equal))
          "What is to be said of the new protocol, the program says.")
      (with-globals ((hunchentoot:*header-stream* (make-broadcast-stream)))
        (check-one-answer)))))

(define-server-test (the-page-about-a-header-that-cannot-be-sent-has-one-framing :needs :our-http)
  (serving () (("/" (setf (hunchentoot:header-out :x-bad) (format nil "a~Cb" (code-char 0)))
                    (write-words "body")))
    (with-connection (connection)
      (loop repeat 2
            for response = (exchange connection "/")
            do (is (= 500 (response-status response)))
               (is (not (chunked-p response)))))))

(define-server-test (the-coding-of-a-streamed-reply-is-the-servers :needs :our-http)
  (serving () (("/" (setf (hunchentoot:header-out :transfer-encoding) "gzip")
                    (write-words "body")))
    (let ((response (ask "/")))
      (is (chunked-p response))
      (is (string= "body" (response-text response))))))

(define-server-test
    (a-streamed-reply-whose-end-nobody-would-see-ends-the-connection :needs :our-http)
  (serving (:output-chunking-p nil) (("/" (write-words "body")))
    (let ((text (ask-parts (request-octets "/") (request-octets "/"))))
      (is (uiop:string-suffix-p text "body"))
      (is (search "connection: close" text :test #'char-equal))
      (is (= 1 (count-of "HTTP/1.1 " text))))))

;;; The streams of a connection

(define-server-test (what-was-written-in-chunks-is-sent-before-more-is-read :needs :our-http)
  (serving (:max-early-octets 0)
      (("/" (let* ((content (hunchentoot:raw-post-data :want-stream t))
                   (stream (hunchentoot:send-headers)))
              (write-sequence (octets "early ") stream) ; and not flushed
              (write-byte (read-byte content) stream))))
    (with-connection (connection)
      (send connection (octets "POST / HTTP/1.1" :crlf "Host: localhost" :crlf "Content-Length: 1"
                               :crlf :crlf))
      (is (chunked-p (read-head connection)))
      (is (string= "early " (decode (read-chunk connection))))
      (send connection "x")
      (is (string= "x" (decode (read-chunk connection))))
      (is (null (read-chunk connection))))))

(define-server-test (a-stream-that-a-program-puts-in-between-gets-what-is-written :needs :our-http)
  (serving () (("/" (setf hunchentoot::*hunchentoot-stream*
                          (flexi-streams:make-flexi-stream hunchentoot::*hunchentoot-stream*))
                    (write-words "body")))
    (is (string= "body" (ask-text "/" :headers '(("Connection" . "close")))))))

;;; What a program says of the framing

(define-server-test (programs-do-not-frame-replies :needs :our-http)
  (serving () (("/whole" (setf (hunchentoot:header-out :transfer-encoding) "gzip") "body")
               ("/known" (setf (hunchentoot:header-out :transfer-encoding) "gzip"
                               (hunchentoot:content-length*) 4)
                         (write-sequence (octets "body") (hunchentoot:send-headers))))
    (dolist (target '("/whole" "/known"))
      (with-connection (connection)
        (loop repeat 2
              for response = (exchange connection target)
              do (is (= 500 (response-status response)))
                 (is (null (response-header response "transfer-encoding"))))))))

(define-server-test (statuses-without-content-have-no-framing :needs :our-http)
  (serving () (("/" (setf (hunchentoot:return-code*) (parse-integer (hunchentoot:query-string*))
                          (hunchentoot:header-out :transfer-encoding) "chunked"
                          (hunchentoot:content-length*) 10)
                    "body")
               ("/next" "next"))
    (with-connection (connection)
      (dolist (status '(204 304))
        (send-request connection (format nil "/?~D" status))
        (let ((response (read-response connection :head t)))
          (is (= status (response-status response)))
          (is (null (response-header response "transfer-encoding")))
          (is (null (response-header response "content-length"))))
        (is (string= "next" (exchange-text connection "/next")))))))
