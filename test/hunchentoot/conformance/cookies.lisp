(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/cookies :in conformance
  :description "Cookies in and out.")

(defun set-cookies (response)
  "The values of the Set-Cookie headers of RESPONSE."
  (response-header-values response "set-cookie"))

(defun cookie-header (&rest cookies)
  "An alist of headers that sends COOKIES, strings like \"name=value\"."
  `(("Cookie" . ,(format nil "~{~A~^; ~}" cookies))))

;;; In

(define-server-test cookies-of-the-request-are-found-by-name
  (serving () (("/" (shown (hunchentoot:cookie-in "a") (hunchentoot:cookie-in "b")
                           (hunchentoot:cookie-in "A") (hunchentoot:cookie-in "c"))))
    (is (string= (shown "1" "x=y" nil nil)
                 (ask-text "/" :headers (cookie-header "a=1" "b=x=y"))))))

(define-server-test all-cookies-of-the-request-are-an-alist
  (serving () (("/" (shown (hunchentoot:cookies-in*))))
    (is (string= (shown '(("a" . "1") ("b" . "") ("c" . "3")))
                 (ask-text "/" :headers (cookie-header "a=1" "b=" "c=3"))))
    (is (string= "NIL" (ask-text "/")))))

;;; Out

(define-server-test a-cookie-is-sent-with-its-value
  (serving () (("/" (hunchentoot:set-cookie "a" :value "1") "baked"))
    (is (equal '("a=1") (set-cookies (ask "/"))))))

(define-server-test a-cookie-is-sent-with-its-attributes
  (serving () (("/" (hunchentoot:set-cookie "a" :value "1" :max-age 60 :path "/p"
                                                :domain "example.org"
                                                :secure t :http-only t)
                    "baked"))
    (is (equal '("a=1; Max-Age=60; Domain=example.org; Path=/p; Secure; HttpOnly")
               (set-cookies (ask "/"))))))

(define-server-test a-cookie-expires-on-a-date-in-gmt
  (serving () (("/" (hunchentoot:set-cookie
                     "a" :value "1" :expires (encode-universal-time 5 4 3 2 1 2030 0))
                    "baked"))
    (is (equal '("a=1; Expires=Wed, 02 Jan 2030 03:04:05 GMT")
               (set-cookies (ask "/"))))))

(define-server-test a-cookie-tells-same-site-where-the-release-knows-it
  (if (same-site-cookies-p)
      (serving () (("/" (apply #'hunchentoot:set-cookie "a" '(:value "1" :same-site "Lax"))
                        "baked"))
        (is (equal '("a=1; SameSite=Lax") (set-cookies (ask "/")))))
      (skip "This release of Hunchentoot does not know SameSite.")))

(define-server-test several-cookies-are-several-headers
  (serving () (("/" (hunchentoot:set-cookie "a" :value "1")
                    (hunchentoot:set-cookie "b" :value "2")
                    "baked"))
    (is (null (set-exclusive-or '("a=1" "b=2") (set-cookies (ask "/")) :test #'equal)))))

(define-server-test a-cookie-set-twice-is-sent-once
  (serving () (("/" (hunchentoot:set-cookie "a" :value "1")
                    (hunchentoot:set-cookie "a" :value "2")
                    "baked"))
    (is (equal '("a=2") (set-cookies (ask "/"))))))

(define-server-test an-outgoing-cookie-can-be-asked
  (serving () (("/" (hunchentoot:set-cookie "a" :value "1" :path "/p")
                    (let ((cookie (hunchentoot:cookie-out "a")))
                      (shown (hunchentoot:cookie-name cookie)
                             (hunchentoot:cookie-value cookie)
                             (hunchentoot:cookie-path cookie)
                             (hunchentoot:cookie-secure cookie)
                             (hunchentoot:cookie-out "b")
                             (mapcar #'car (hunchentoot:cookies-out*))))))
    (is (string= (shown "a" "1" "/p" nil nil '("a")) (ask-text "/")))))

(define-server-test cookies-go-out-with-streamed-and-with-failed-replies
  (serving () (("/streamed" (hunchentoot:set-cookie "a" :value "1")
                            (hunchentoot:send-headers))
               ("/missing" (hunchentoot:set-cookie "b" :value "2")
                           (setf (hunchentoot:return-code*) 404)
                           nil))
    (is (equal '("a=1") (set-cookies (ask "/streamed"))))
    (is (equal '("b=2") (set-cookies (ask "/missing"))))))
