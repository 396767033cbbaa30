(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/connections :in conformance
  :description "Keep-alive, closing, pipelining, half-closed and broken connections.")

(defun connection-header (response)
  "The Connection header of RESPONSE in lower case, or NIL."
  (let ((value (response-header response "connection")))
    (and value (string-downcase value))))

(defmacro serving-number (&body body)
  "Evaluates BODY while the target /?N, with an integer N, is answered by N."
  `(serving () (("/" (or (hunchentoot:query-string*) "none")))
     ,@body))

;;; Keep-alive and close

(define-server-test http-1.0-connections-are-kept-on-request
  (serving-number
    (with-connection (connection)
      (loop repeat 3
            for response = (exchange connection "/?1" :version "HTTP/1.0"
                                     :headers '(("Connection" . "Keep-Alive")))
            do (is (string= "1" (response-text response)))
               (is (string= "keep-alive" (connection-header response)))
               (is (string= (format nil "timeout=~D"
                                    (hunchentoot:acceptor-read-timeout *server*))
                            (response-header response "keep-alive")))))))

(define-server-test keep-alive-is-confirmed-under-http-1.1-when-asked-for
  (serving-number
    (is (string= "keep-alive"
                 (connection-header
                  (ask "/" :headers '(("Connection" . "keep-alive"))))))))

(define-server-test a-handler-may-close-the-connection-of-http-1.0
  (serving () (("/" (setf (hunchentoot:header-out :connection) "Close")
                    nil))
    (with-connection (connection)
      (is (string= "close" (connection-header (exchange connection "/"))))
      (is (closed-by-server-p connection)))))

(define-server-test a-connection-is-closed-when-it-is-idle-too-long
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds) (("/" "body"))
      (with-prompt-connection (connection)
        (promptly (exchange connection "/"))
        (is (closed-by-server-p connection))))))

(define-server-test (a-reply-of-which-a-program-says-close-is-the-last :needs :our-reader)
  (serving () (("/" (setf (hunchentoot:header-out :connection)
                          (hunchentoot:get-parameter "value"))
                    "body"))
    (dolist (value '("close" "Close" "x,%20close"))
      (with-connection (connection)
        (is (string= "body" (exchange-text connection (format nil "/?value=~A" value))))
        (is (closed-by-server-p connection))))
    (with-connection (connection)
      (loop repeat 2
            do (is (string= "body" (exchange-text connection "/?value=closed")))))))

(define-server-test connections-are-kept-while-heads-are-traced
  (if (header-stream-works-p)
      (with-globals ((hunchentoot:*header-stream* (make-broadcast-stream)))
        (serving-number
          (with-connection (connection)
            (dotimes (number 3)
              (is (string= (princ-to-string number)
                           (exchange-text connection (format nil "/?~D" number))))))
          (with-connection (connection)
            (exchange connection "/" :headers '(("Connection" . "close")))
            (is (closed-by-server-p connection)))))
      (skip "Broadcast streams of this Lisp reach no Gray streams.")))

(defclass only-request (hunchentoot:request) ()
  (:documentation "A request that is its connection's last, which the program decides after the
reply."))

(defmethod hunchentoot:process-request :after ((request only-request))
  (setf hunchentoot::*finish-processing-socket* t))

(define-server-test a-program-may-end-the-connection-after-the-reply
  (serving (:request-class 'only-request) (("/" "body"))
    (with-connection (connection)
      (is (string= "body" (exchange-text connection "/")))
      (is (closed-by-server-p connection)))))

;;; Pipelining

(define-server-test pipelined-requests-are-answered-in-order
  (serving-number
    (with-connection (connection)
      (send connection (loop for number below 20
                             collect (request-octets (format nil "/?~D" number))))
      (dotimes (number 20)
        (is (string= (princ-to-string number)
                     (response-text (read-response connection))))))))

;;; Requests that come in pieces

(define-server-test expect-100-continue-is-answered-before-the-body-is-sent
  (serving () (("/" (hunchentoot:raw-post-data :force-text t)))
    (with-connection (connection)
      (send connection "POST / HTTP/1.1" :crlf "Host: localhost" :crlf
            "Expect: 100-continue" :crlf "Content-Length: 4" :crlf :crlf)
      (is (= 100 (response-status (read-response connection))))
      (send connection "body")
      (is (string= "body" (response-text (read-response connection)))))))

;;; Many clients

(define-server-test handlers-run-at-the-same-time
  (let ((all-in (make-latch 10 "ten handlers to run at the same time")))
    (serving () (("/" (count-down all-in)
                      (await all-in)
                      "met"))
      (let ((clients (loop repeat 10
                           collect (in-background ("a client") (ask-text "/")))))
        (is (equal (make-list 10 :initial-element "met")
                   (mapcar #'task-result clients)))))))
