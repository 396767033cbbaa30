(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/sessions :in conformance
  :description "Sessions by cookie and by rewritten URL.")

;; Hunchentoot would warn, once, that it has to make up the secret itself.
(hunchentoot:reset-session-secret)

;;; A site with sessions: its pages, and a client that keeps its cookie

(defmacro serving-sessions ((&rest routes) &body body)
  "Evaluates BODY while a site serves ROUTES besides these pages: /set keeps its query
string in the session, /get shows what is kept; and forgets all sessions afterwards."
  `(serving () (("/set" (setf (hunchentoot:session-value :kept) (hunchentoot:query-string*))
                        "kept")
                ("/get" (shown (hunchentoot:session-value :kept)))
                ,@routes)
     (unwind-protect (progn ,@body)
       (hunchentoot:reset-sessions *server*))))

(defun session-cookie (response)
  "The name and value of the session cookie that RESPONSE sets, or NIL."
  (let ((cookie (find "session" (set-cookies response) :test #'search)))
    (and cookie (subseq cookie 0 (position #\; cookie)))))

(defun new-session ()
  "Starts a session that keeps \"a=1\"; returns its cookie."
  (session-cookie (ask "/set?a=1")))

(defun ask-in-session (cookie target)
  "The text of the response to a request for TARGET with COOKIE."
  (ask-text target :headers `(("Cookie" . ,cookie))))

;;; By cookie

(define-server-test two-sessions-do-not-mix
  (serving-sessions ()
    (let ((one (new-session))
          (two (session-cookie (ask "/set?b=2"))))
      (is (string/= one two))
      (is (string= (shown "a=1") (ask-in-session one "/get")))
      (is (string= (shown "b=2") (ask-in-session two "/get"))))))

(define-server-test a-session-value-can-be-deleted
  (serving-sessions (("/delete" (hunchentoot:delete-session-value :kept) "deleted"))
    (let ((cookie (new-session)))
      (ask-in-session cookie "/delete")
      (is (string= "NIL" (ask-in-session cookie "/get"))))))

;;; Verification

(define-server-test a-new-secret-ends-all-sessions
  (serving-sessions ()
    (let ((cookie (new-session)))
      (hunchentoot:reset-session-secret)
      (is (string= "NIL" (ask-in-session cookie "/get"))))))

(define-server-test regenerating-the-cookie-keeps-the-session
  (serving-sessions (("/renew" (hunchentoot:regenerate-session-cookie-value
                                hunchentoot:*session*)
                               "renewed"))
    (let* ((cookie (new-session))
           (renewed (session-cookie (ask "/renew" :headers `(("Cookie" . ,cookie))))))
      (is (string= (shown "a=1") (ask-in-session renewed "/get"))))))

;;; The end of a session

(define-server-test a-session-expires-when-it-is-not-used
  (serving-sessions (("/age" (setf (hunchentoot:session-max-time hunchentoot:*session*) -1)
                             "aged"))
    (let ((cookie (new-session)))
      (ask-in-session cookie "/age")
      (is (string= "NIL" (ask-in-session cookie "/get"))))))

(define-server-test session-gc-removes-only-the-old
  (serving-sessions (("/age" (setf (hunchentoot:session-max-time hunchentoot:*session*) -1)
                             "aged")
                     ("/gc" (hunchentoot:session-gc) "collected"))
    (let ((old (new-session))
          (young (new-session)))
      (ask-in-session old "/age")
      (ask "/gc")
      (is (= 1 (length (hunchentoot:session-db *server*))))
      (is (string= (shown "a=1") (ask-in-session young "/get"))))))

(define-server-test reset-sessions-removes-all
  (serving-sessions ()
    (let ((cookie (new-session)))
      (hunchentoot:reset-sessions *server*)
      (is (string= "NIL" (ask-in-session cookie "/get"))))))
