(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/session-urls :in conformance
  :description "Sessions without cookies, and the hooks for an application's own sessions.")

;;; Rewritten URLs

(defparameter *page-with-links*
  "<html><body><a href=\"/get\">a</a> <a href='http://else.where/'>b</a></body></html>"
  "What the rewriter has to work on.")

(defun session-identifier (cookie)
  "The value of COOKIE, a string \"name=value\"."
  (subseq cookie (1+ (position #\= cookie))))

(defmacro serving-links ((&key (content-type "text/html")) &body body)
  "Evaluates BODY while /links starts a session and shows a page with links."
  `(serving-sessions (("/links" (setf (hunchentoot:session-value :kept) "linked"
                                      (hunchentoot:content-type*) ,content-type)
                                *page-with-links*))
     ,@body))

(define-server-test links-carry-the-session-for-clients-without-its-cookie
  (serving-links ()
    (let* ((response (ask "/links"))
           (identifier (hunchentoot:url-encode
                        (session-identifier (session-cookie response)))))
      (is (search (format nil "/get?hunchentoot-session=~A" identifier)
                  (response-text response)))
      (is (string= (shown "linked")
                   (ask-text (format nil "/get?hunchentoot-session=~A" identifier)))))))

(define-server-test links-to-other-sites-are-not-rewritten
  (serving-links ()
    (is (search "href='http://else.where/'" (ask-text "/links")))))

(define-server-test links-are-not-rewritten-for-clients-with-the-cookie
  (serving-links ()
    (is (string= *page-with-links* (ask-in-session (new-session) "/links")))))

(define-server-test links-are-rewritten-only-in-html
  (serving-links (:content-type "text/plain")
    (is (string= *page-with-links* (ask-text "/links")))))

(define-server-test rewriting-of-links-can-be-switched-off
  (with-globals ((hunchentoot:*rewrite-for-session-urls* nil))
    (serving-links ()
      (is (string= *page-with-links* (ask-text "/links"))))))

(define-server-test the-length-tells-the-rewritten-page
  (serving-links ()
    (let ((response (ask "/links")))
      (is (< (length *page-with-links*) (length (response-body response))))
      (is (string= (princ-to-string (length (response-body response)))
                   (response-header response "content-length"))))))

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
