(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/sessions :in conformance
  :description "Sessions, and a request class with its own; see differential/, too.")

;; Hunchentoot would warn, once, that it has to make up the secret itself.
(hunchentoot:reset-session-secret)

(defun session-cookie (response)
  "The name and value of the session cookie that RESPONSE sets, or NIL."
  (let ((cookie (find "session" (set-cookies response) :test #'search)))
    (and cookie (subseq cookie 0 (position #\; cookie)))))

(defun ask-in-session (cookie target)
  "The text of the response to a request for TARGET with COOKIE."
  (ask-text target :headers `(("Cookie" . ,cookie))))

(define-server-test sessions-do-not-mix-and-end-with-the-secret
  (serving () (("/set" (setf (hunchentoot:session-value :kept) (hunchentoot:query-string*))
                       "kept")
               ("/get" (shown (hunchentoot:session-value :kept))))
    (unwind-protect
         (let ((one (session-cookie (ask "/set?a=1"))) (two (session-cookie (ask "/set?b=2"))))
           (is (string/= one two))
           (is (string= (shown "a=1") (ask-in-session one "/get")))
           (is (string= (shown "b=2") (ask-in-session two "/get")))
           (hunchentoot:reset-session-secret)
           (is (string= "NIL" (ask-in-session one "/get"))))
      (hunchentoot:reset-sessions *server*))))

;;; Hooks on the request

(defclass badge-request (hunchentoot:request) ()
  (:documentation "A request whose session is what its X-Badge header says."))

(defmethod hunchentoot:session-verify ((request badge-request))
  (hunchentoot:header-in :x-badge request))

(defmethod hunchentoot:session-cookie-value ((session string))
  session)

(define-server-test a-request-class-may-verify-sessions-its-own-way
  (serving (:request-class 'badge-request)
      (("/" (shown hunchentoot:*session* (hunchentoot:session hunchentoot:*request*))))
    (is (string= (shown "gold" "gold") (ask-text "/" :headers '(("X-Badge" . "gold")))))
    (is (string= (shown nil nil) (ask-text "/")))))
