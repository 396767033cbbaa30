(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/sessions :in conformance
  :description "Sessions, and the hooks for an application's own; see differential/, too.")

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

;;; Hooks on the acceptor

(defclass own-sessions ()
  ((sessions :initform '() :accessor own-session-db)
   (created :initform (make-recorder) :reader created-sessions)
   (removed :initform (make-recorder) :reader removed-sessions))
  (:documentation "A mixin for an acceptor that keeps its sessions to itself."))

(defmethod hunchentoot:session-cookie-name ((acceptor own-sessions))
  "own-session")

(defmethod hunchentoot:session-db ((acceptor own-sessions))
  (own-session-db acceptor))

(defmethod (setf hunchentoot:session-db) (new (acceptor own-sessions))
  (setf (own-session-db acceptor) new))

(defmethod hunchentoot:next-session-id ((acceptor own-sessions))
  (+ 1000 (length (own-session-db acceptor))))

(defmethod hunchentoot:session-created ((acceptor own-sessions) session)
  (record (created-sessions acceptor) (hunchentoot:session-id session)))

(defmethod hunchentoot:acceptor-remove-session ((acceptor own-sessions) session)
  (record (removed-sessions acceptor) (hunchentoot:session-id session)))

(defmacro serving-own-sessions (&body body)
  "Evaluates BODY while an acceptor with sessions of its own serves /visit, which counts
visits, and /leave, which ends the session."
  `(serving (:mixin 'own-sessions)
       (("/visit" (setf (hunchentoot:session-value :visits)
                        (1+ (or (hunchentoot:session-value :visits) 0)))
                  (shown (hunchentoot:session-id hunchentoot:*session*)
                         (hunchentoot:session-value :visits)))
        ("/leave" (hunchentoot:remove-session hunchentoot:*session*) "left"))
     ,@body))

(define-server-test an-acceptor-may-name-and-number-its-sessions
  (serving-own-sessions
    (let* ((response (ask "/visit"))
           (cookie (session-cookie response)))
      (is (uiop:string-prefix-p "own-session=1000:" cookie))
      (is (string= (shown 1000 1) (response-text response)))
      (is (string= (shown 1000 2) (ask-in-session cookie "/visit")))
      (is (string= (shown 1001 1) (ask-text "/visit"))))))

(define-server-test an-acceptor-may-keep-its-sessions-to-itself
  (serving-own-sessions
    (ask "/visit")
    (is (= 1 (length (own-session-db *server*))))))

(define-server-test an-acceptor-is-told-when-sessions-come-and-go
  (serving-own-sessions
    (let ((cookie (session-cookie (ask "/visit"))))
      (is (equal '(1000) (recorded (created-sessions *server*))))
      (is (null (recorded (removed-sessions *server*))))
      (ask-in-session cookie "/leave")
      (is (equal '(1000) (recorded (removed-sessions *server*))))
      (is (null (own-session-db *server*))))))

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
