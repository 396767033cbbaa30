(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/content :in conformance
  :description "What a handler returns, and how the reply describes it.")

(defun content-type (response)
  "The Content-Type of RESPONSE."
  (response-header response "content-type"))

;;; Bodies

(define-server-test a-string-is-sent-in-utf-8-by-default
  (serving () (("/" "Grüße, €"))
    (let ((response (ask "/")))
      (is (equalp (encode "Grüße, €") (response-body response)))
      (is (string= "text/html; charset=utf-8" (content-type response))))))

(define-server-test a-string-is-sent-in-the-external-format-of-the-reply
  (serving () (("/" (setf (hunchentoot:reply-external-format*)
                          (flexi-streams:make-external-format :latin-1 :eol-style :lf))
                    "Grüße"))
    (let ((response (ask "/")))
      (is (equalp (encode "Grüße" :latin-1) (response-body response)))
      (is (string= "text/html; charset=iso-8859-1" (content-type response))))))

(define-server-test octets-are-sent-as-they-are
  (let ((octets (test-octets 5000)))
    (serving () (("/" (setf (hunchentoot:content-type*) "image/png")
                      octets))
      (let ((response (ask "/")))
        (is (null (octet-difference octets (response-body response))))
        (is (string= "image/png" (content-type response)))))))

(define-server-test content-length-counts-octets
  (serving () (("/string" "äöü") ("/octets" (test-octets 7)) ("/empty" ""))
    (is (= 6 (content-length (ask "/string"))))
    (is (= 7 (content-length (ask "/octets"))))
    (is (= 0 (content-length (ask "/empty"))))))

(define-server-test a-large-body-arrives-whole
  (let ((octets (test-octets 300000)))
    (serving () (("/" octets))
      (with-connection (connection)
        (loop repeat 2
              do (is (null (octet-difference octets (response-body
                                                      (exchange connection "/"))))))))))

(define-server-test the-body-is-corrected-over-a-wrong-content-length
  (serving () (("/" (setf (hunchentoot:content-length*) 99)
                    "four"))
    (is (= 4 (content-length (ask "/"))))))

(define-server-test a-reply-without-body-and-length-ends-with-the-connection
  (serving () (("/" nil))
    (with-connection (connection)
      (let ((response (exchange connection "/")))
        (is (= 200 (response-status response)))
        (is (string-equal "close" (response-header response "connection")))
        (is (null (content-length response)))
        (is (zerop (length (response-body response))))
        (is (closed-by-server-p connection))))))

(define-server-test a-bodyless-status-has-no-body
  (serving () (("/" (setf (hunchentoot:return-code*) 204)
                    nil))
    (let ((response (ask-raw (request-octets "/"))))
      (is (search (octets :crlf :crlf) response))
      (is (= (length response) (+ 4 (search (octets :crlf :crlf) response)))))))

(define-server-test a-body-for-a-bodyless-status-is-dropped-where-the-release-says-so
  (if (bodies-of-bodyless-statuses-dropped-p)
      (serving () (("/" (setf (hunchentoot:return-code*) 204)
                        "dropped"))
        (is (not (search (octets "dropped")
                         (ask-raw (request-octets "/" :headers
                                                  '(("Connection" . "close"))))))))
      (skip "This release of Hunchentoot sends such bodies.")))

;;; Content types

(define-server-test text-gets-a-charset-and-other-types-do-not
  (flet ((type-sent-for (type)
           (serving () (("/" (setf (hunchentoot:content-type*) type)
                             "text"))
             (content-type (ask "/")))))
    (is (string= "text/plain; charset=utf-8" (type-sent-for "text/plain")))
    (is (string= "text/css; charset=latin-1" (type-sent-for "text/css; charset=latin-1")))
    (is (string= "application/json" (type-sent-for "application/json")))))

(define-server-test the-default-content-type-can-be-changed
  (with-globals ((hunchentoot:*default-content-type* "application/x-test"))
    (serving () (("/" "text"))
      (is (string= "application/x-test" (content-type (ask "/")))))))

;;; Headers

(define-server-test headers-are-set-by-keyword-and-by-string
  (serving () (("/" (setf (hunchentoot:header-out :x-one) "1"
                          (hunchentoot:header-out "X-Two") 2)
                    (shown (hunchentoot:header-out :x-one)
                           (hunchentoot:header-out :x-two)
                           (hunchentoot:header-out :x-three))))
    (let ((response (ask "/")))
      (is (string= "1" (response-header response "x-one")))
      (is (string= "2" (response-header response "x-two")))
      (is (string= (shown "1" 2 nil) (response-text response))))))

(define-server-test a-header-set-twice-is-sent-once
  (serving () (("/" (setf (hunchentoot:header-out :x-one) "1"
                          (hunchentoot:header-out :x-one) "2")
                    "sent"))
    (is (equal '("2") (response-header-values (ask "/") "x-one")))))

(define-server-test a-header-set-to-nil-is-not-sent
  (serving () (("/" (setf (hunchentoot:header-out :x-one) "1"
                          (hunchentoot:header-out :x-one) nil
                          (hunchentoot:header-out :server) nil)
                    "sent"))
    (let ((response (ask "/")))
      (is (null (response-header response "x-one")))
      (is (null (response-header response "server"))))))

(define-server-test a-header-cannot-smuggle-another
  (serving () (("/" (setf (hunchentoot:header-out :x-one)
                          (format nil "1~C~CX-Two: 2" #\Return #\Newline))
                    "sent")
               ("/cookie" (hunchentoot:set-cookie
                           "a" :value (format nil "1~CX-Two: 2" #\Newline))
                          "sent"))
    (is (null (response-header (ask "/") "x-two")))
    (is (null (response-header (ask "/cookie") "x-two")))))

(define-server-test every-reply-names-server-and-date
  (serving () (("/" "dated"))
    (let ((response (ask "/")))
      (is (search "Hunchentoot" (response-header response "server")))
      (is (cl-ppcre:scan "^[A-Z][a-z]{2}, \\d\\d [A-Z][a-z]{2} \\d{4} \\d\\d:\\d\\d:\\d\\d GMT$"
                         (response-header response "date"))))))

(define-server-test no-cache-forbids-caching
  (serving () (("/" (hunchentoot:no-cache) "fresh"))
    (let ((response (ask "/")))
      (is (search "no-store" (response-header response "cache-control")))
      (is (string= "no-cache" (response-header response "pragma")))
      (is (string= "Mon, 26 Jul 1997 05:00:00 GMT" (response-header response "expires"))))))

;;; Return codes

(define-server-test a-return-code-goes-with-the-handlers-own-body
  (serving () (("/" (setf (hunchentoot:return-code*) 418)
                    "short and stout"))
    (let ((response (ask "/")))
      (is (= 418 (response-status response)))
      (is (string= "short and stout" (response-text response))))))

(define-server-test a-return-code-has-its-reason-phrase
  (serving () (("/" (setf (hunchentoot:return-code*)
                          (parse-integer (hunchentoot:query-string*)))
                    "body"))
    (loop for (code reason) in '(("201" "Created") ("403" "Forbidden")
                                 ("503" "Service Unavailable"))
          do (is (string= reason (response-reason (ask (format nil "/?~A" code))))))))

(define-server-test a-second-value-is-ignored-where-the-release-says-so
  (serving () (("/" (values "first" "second")))
    (let ((response (ask "/")))
      (if (second-value-is-an-error-p)
          ;; Nobody relies on this defect, and we need not inherit it.
          (is (member (response-status response) '(200 500)))
          (is (string= "first" (response-text response)))))))
