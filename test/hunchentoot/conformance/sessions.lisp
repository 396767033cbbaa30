(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/sessions :in conformance
  :description "Sessions, and a request class with its own; see differential/, too.")

;; Hunchentoot would warn, once, that it has to make up the secret itself.
(hunchentoot:reset-session-secret)

(defun session-cookie (response)
  "The name and value of the session cookie that RESPONSE sets, or NIL."
  (let ((cookie (find "session" (set-cookies response) :test #'search)))
    (and cookie (subseq cookie 0 (position #\; cookie)))))

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
