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

(defun new-session (&rest keys)
  "Starts a session that keeps \"a=1\", with a request made of KEYS; returns its cookie."
  (session-cookie (apply #'ask "/set?a=1" keys)))

(defun ask-in-session (cookie target &key headers)
  "The text of the response to a request for TARGET with COOKIE."
  (ask-text target :headers (append (cookie-header cookie) headers)))

;;; By cookie

(define-server-test a-session-is-started-by-its-first-value
  (serving-sessions ()
    (is (null (session-cookie (ask "/get"))))
    (let ((cookies (set-cookies (ask "/set?a=1"))))
      (is (= 1 (length cookies)))
      (is (uiop:string-prefix-p "hunchentoot-session=" (first cookies)))
      (is (search "; Path=/; HttpOnly" (first cookies))))))

(define-server-test session-values-are-kept-between-connections
  (serving-sessions ()
    (let ((cookie (new-session)))
      (is (string= (shown "a=1") (ask-in-session cookie "/get")))
      (ask-in-session cookie "/set?b=2")
      (is (string= (shown "b=2") (ask-in-session cookie "/get"))))))

(define-server-test session-values-are-kept-on-one-connection
  (serving-sessions ()
    (with-connection (connection)
      (let ((cookie (session-cookie (exchange connection "/set?a=1"))))
        (is (string= (shown "a=1")
                     (exchange-text connection "/get" :headers (cookie-header cookie))))
        (is (string= "NIL" (exchange-text connection "/get")))))))

(define-server-test two-sessions-do-not-mix
  (serving-sessions ()
    (let ((one (new-session))
          (two (session-cookie (ask "/set?b=2"))))
      (is (string/= one two))
      (is (string= (shown "a=1") (ask-in-session one "/get")))
      (is (string= (shown "b=2") (ask-in-session two "/get"))))))

(define-server-test start-session-returns-the-current-session
  (serving-sessions (("/start" (shown (eq (hunchentoot:start-session)
                                          (hunchentoot:start-session))
                                      (eq hunchentoot:*session*
                                          (hunchentoot:session hunchentoot:*request*)))))
    (is (string= (shown t t) (ask-text "/start")))))

(define-server-test a-session-value-can-be-deleted
  (serving-sessions (("/delete" (hunchentoot:delete-session-value :kept) "deleted"))
    (let ((cookie (new-session)))
      (ask-in-session cookie "/delete")
      (is (string= "NIL" (ask-in-session cookie "/get"))))))

(define-server-test a-session-knows-its-client
  (serving-sessions (("/who" (let ((session (hunchentoot:start-session)))
                               (shown (hunchentoot:session-user-agent session)
                                      (hunchentoot:session-remote-addr session)
                                      (integerp (hunchentoot:session-id session))
                                      (<= (hunchentoot:session-start session)
                                          (get-universal-time))))))
    (is (string= (shown "Tester" "127.0.0.1" t t)
                 (ask-text "/who" :headers '(("User-Agent" . "Tester")))))))

;;; Verification

(define-server-test a-session-belongs-to-one-user-agent
  (serving-sessions ()
    (let ((cookie (new-session :headers '(("User-Agent" . "Mine"))))
          (mine '(("User-Agent" . "Mine"))))
      (is (string= (shown "a=1") (ask-in-session cookie "/get" :headers mine)))
      (is (string= "NIL" (ask-in-session cookie "/get"
                                         :headers '(("User-Agent" . "Stolen")))))
      ;; Whoever may know the cookie now, the session is gone.
      (is (string= "NIL" (ask-in-session cookie "/get" :headers mine))))))

(define-server-test an-invented-session-is-ignored
  (serving-sessions ()
    (dolist (value '("" "nonsense" ":" "1:" "99999999:ABCDEF" "x:y"))
      (is (string= "NIL" (ask-in-session (format nil "hunchentoot-session=~A" value)
                                         "/get"))))))

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
           (renewed (session-cookie (ask "/renew" :headers (cookie-header cookie)))))
      (is (string= (shown "a=1") (ask-in-session renewed "/get"))))))

;;; The end of a session

(define-server-test a-removed-session-is-gone-and-its-cookie-expires
  (serving-sessions (("/remove" (hunchentoot:remove-session hunchentoot:*session*)
                                "removed"))
    (let* ((cookie (new-session))
           (cookies (set-cookies (ask "/remove" :headers (cookie-header cookie)))))
      (is (= 1 (length cookies)))
      (is (uiop:string-prefix-p
           "hunchentoot-session=deleted; Expires=Mon, 01 Jan 1900 00:00:00 GMT; Path=/"
           (first cookies)))
      (is (string= "NIL" (ask-in-session cookie "/get"))))))

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
