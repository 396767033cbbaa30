(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/streaming :in conformance
  :description "Replies that the handler writes itself, after send-headers.")

(defun write-part (stream string)
  "Writes STRING in UTF-8 to STREAM, the handler's, and sends it off."
  (write-sequence (encode string) stream)
  (finish-output stream))

;;; Framing

(define-server-test a-streamed-reply-is-chunked-under-http-1.1
  (serving () (("/" (let ((stream (hunchentoot:send-headers)))
                      (write-part stream "one ")
                      (write-part stream "two"))))
    (let ((response (ask "/")))
      (is (chunked-p response))
      (is (null (content-length response)))
      (is (string= "one two" (response-text response))))))

(define-server-test a-streamed-reply-ends-with-the-connection-under-http-1.0
  (serving () (("/" (write-part (hunchentoot:send-headers) "streamed")))
    (with-connection (connection)
      (let ((response (exchange connection "/" :version "HTTP/1.0")))
        (is (not (chunked-p response)))
        (is (string-equal "close" (response-header response "connection")))
        (is (string= "streamed" (response-text response)))
        (is (closed-by-server-p connection))))))

(define-server-test a-streamed-reply-of-known-length-is-not-chunked
  (serving () (("/" (setf (hunchentoot:content-length*) 8)
                    (write-part (hunchentoot:send-headers) "streamed")))
    (with-connection (connection)
      (dolist (version '("HTTP/1.1" "HTTP/1.1"))
        (let ((response (exchange connection "/" :version version)))
          (is (not (chunked-p response)))
          (is (= 8 (content-length response)))
          (is (string= "streamed" (response-text response))))))))

(define-server-test chunking-can-be-switched-off
  (serving (:output-chunking-p nil) (("/" (write-part (hunchentoot:send-headers) "whole")))
    (with-connection (connection)
      (let ((response (exchange connection "/")))
        (is (not (chunked-p response)))
        (is (string= "whole" (response-text response)))
        (is (closed-by-server-p connection))))))

(define-server-test the-connection-goes-on-after-a-chunked-reply
  (serving () (("/" (write-part (hunchentoot:send-headers) "streamed"))
               ("/plain" "plain"))
    (with-connection (connection)
      (loop repeat 2
            do (is (string= "streamed" (exchange-text connection "/")))
               (is (string= "plain" (exchange-text connection "/plain")))))))

(define-server-test a-streamed-reply-may-be-empty
  (serving () (("/" (hunchentoot:send-headers)))
    (with-connection (connection)
      (loop repeat 2
            do (is (string= "" (exchange-text connection "/")))))))

(define-server-test what-a-streaming-handler-returns-is-not-sent
  (serving () (("/" (write-part (hunchentoot:send-headers) "written")
                    "returned"))
    (with-connection (connection)
      (loop repeat 2
            do (is (string= "written" (exchange-text connection "/")))))))

;;; The stream

(define-server-test a-large-streamed-reply-arrives-whole
  (let ((octets (test-octets 100000)))
    (serving () (("/" (let ((stream (hunchentoot:send-headers)))
                        (loop for start from 0 below 100000 by 3333
                              do (write-sequence octets stream
                                                 :start start
                                                 :end (min 100000 (+ start 3333)))))))
      (is (null (octet-difference octets (response-body (ask "/"))))))))

(define-server-test octets-arrive-in-order-however-they-are-written
  (let ((octets (test-octets 400000)))
    (dolist (sizes '((1 15 16 17 255 256 4000 4097 32751 32752 32760 32767 32768 32769 70000 3 9000)
                     ;; The end of a large piece comes to where that of a flushed one was.
                     (4 32753 3)))
      (serving () (("/" (loop with stream = (hunchentoot:send-headers)
                              for number from 0
                              for size = (elt sizes (mod number (length sizes)))
                              for start = 0 then end
                              for end = (min (length octets) (+ start size))
                              while (< start end)
                              do (if (= 1 size)
                                     (write-byte (aref octets start) stream)
                                     (write-sequence octets stream :start start :end end))
                                 (when (zerop (mod number 3))
                                   (finish-output stream)))))
        (is (null (octet-difference octets (response-body (ask "/")))))))))

(define-server-test single-octets-can-be-written
  (serving () (("/" (let ((stream (hunchentoot:send-headers)))
                      (loop for octet across (encode "octets")
                            do (write-byte octet stream)))))
    (is (string= "octets" (ask-text "/")))))

(define-server-test text-can-be-written-through-a-flexi-stream
  (serving () (("/" (let ((stream (flexi-streams:make-flexi-stream
                                   (hunchentoot:send-headers) :external-format :utf-8)))
                      (format stream "Grüße~%~D €" 3)
                      (finish-output stream))))
    (is (string= (format nil "Grüße~%3 €") (ask-text "/")))))

(define-server-test a-client-sees-each-part-before-the-next-is-written
  (let ((seen (make-gate "the client to see the first part")))
    (serving () (("/" (let ((stream (hunchentoot:send-headers)))
                        (write-part stream "first")
                        (await seen)
                        (write-part stream "second"))))
      (with-connection (connection)
        (send-request connection "/")
        (is (chunked-p (read-head connection)))
        (is (string= "first" (decode (read-chunk connection))))
        (is (not (readable-p connection)))
        (open-gate seen)
        (is (string= "second" (decode (read-chunk connection))))
        (is (null (read-chunk connection)))))))

(define-server-test the-headers-can-be-sent-long-before-the-body
  (let ((seen (make-gate "the client to see the headers")))
    (serving () (("/" (let ((stream (hunchentoot:send-headers)))
                        (finish-output stream)
                        (await seen)
                        (write-part stream "body"))))
      (with-connection (connection)
        (send-request connection "/" :version "HTTP/1.0")
        (is (= 200 (response-status (read-head connection))))
        (open-gate seen)
        (is (string= "body" (decode (receive-rest connection))))))))

;;; Headers

(define-server-test headers-set-before-send-headers-are-sent-and-later-ones-are-not
  (serving () (("/" (setf (hunchentoot:return-code*) 202
                          (hunchentoot:content-type*) "text/x-test"
                          (hunchentoot:header-out :x-before) "yes")
                    (hunchentoot:send-headers)
                    (setf (hunchentoot:return-code*) 500
                          (hunchentoot:header-out :x-after) "yes")))
    (let ((response (ask "/")))
      (is (= 202 (response-status response)))
      (is (string= "text/x-test" (content-type response)))
      (is (string= "yes" (response-header response "x-before")))
      (is (null (response-header response "x-after"))))))

(define-server-test the-header-stream-gets-a-copy-of-the-headers
  (if (header-stream-works-p)
      (let ((copy (make-string-output-stream)))
        (with-globals ((hunchentoot:*header-stream* copy))
          (serving () (("/" (setf (hunchentoot:header-out :x-out) "out")
                            "body"))
            (ask "/" :headers '(("X-In" . "in")))))
        (let ((copied (get-output-stream-string copy)))
          (dolist (expected '("GET / HTTP/1.1" "X-In: in" "200 OK" "X-Out: out"))
            (is (search expected copied :test #'char-equal) "~S was not copied." expected))
          (is (not (search "body" copied)))))
      (skip "Broadcast streams of this Lisp reach no Gray streams.")))

;;; Errors

(define-server-test an-error-after-the-headers-does-not-change-what-was-sent
  (serving () (("/" (write-part (hunchentoot:send-headers) "so far")
                    (error "The handler fails.")))
    (with-connection (connection)
      (send-request connection "/" :headers '(("Connection" . "close")))
      (is (= 200 (response-status (read-head connection))))
      (is (search (encode "so far") (receive-rest connection))))))

(define-server-test a-client-that-leaves-does-not-harm-the-server
  (let ((gone (make-gate "the client to leave"))
        (failed (make-gate "the write to fail")))
    (serving () (("/" (let ((stream (hunchentoot:send-headers)))
                        (finish-output stream)
                        (await gone)
                        (unwind-protect (loop repeat 1000
                                              do (write-part stream "and on and on"))
                          (open-gate failed))))
                 ("/next" "served"))
      (with-connection (connection)
        (send-request connection "/")
        (read-head connection)
        (reset connection))
      (open-gate gone)
      (await failed)
      (is (string= "served" (ask-text "/next"))))))
