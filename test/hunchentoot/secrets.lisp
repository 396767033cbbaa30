(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* secrets :in acceptors
  :description "What clients send stands in no log, backtrace or error page of another.")

;;; Requests that fail

(defparameter *secret* "xyzzy")

(defun secret-request (target type)
  (octets (format nil "POST ~A?query=~A HTTP/1.1" target *secret*) :crlf "Host: localhost" :crlf
          "Authorization: Bearer " *secret* :crlf "Cookie: session=" *secret* :crlf
          "X-Unknown: " *secret* :crlf "Content-Type: " type :crlf
          "Transfer-Encoding: chunked" :crlf :crlf
          "c;extension=" *secret* :crlf "field=" *secret* "1" :crlf
          "0" :crlf "Trailer: " *secret* :crlf :crlf))

(defun secrets-in (text)
  "What TEXT, a string, tells of *SECRET*, as characters or as numbers."
  (let ((numbers (format nil "~{~D~^ ~}" (map 'list #'char-code *secret*))))
    (loop for form in (list *secret* numbers)
          for position = (search form text)
          when position
            collect (subseq text (max 0 (- position 60)) (min (length text) (+ position 20))))))

(define-server-test (failing-requests-tell-nothing-of-what-was-sent :needs :our-engine)
  (with-globals ((hunchentoot:*show-lisp-errors-p* t)
                 (hunchentoot:*show-lisp-backtraces-p* t)
                 (hunchentoot:*log-lisp-backtraces-p* t))
    (with-directory (directory)
      (let ((log (merge-pathnames "messages" directory)))
        (serving (:message-log-destination log :error-template-directory nil)
            (("/before" (error "A reason."))
             ("/raw" (hunchentoot:raw-post-data :force-binary t) (error "A reason."))
             ("/form" (hunchentoot:post-parameters*) (error "A reason."))
             ("/stream" (read-byte (hunchentoot:raw-post-data :want-stream t)) (error "A reason.")))
          (dolist (target '("/before" "/raw" "/form" "/stream"))
            (dolist (type '("text/plain" "application/x-www-form-urlencoded"))
              (with-connection (connection)
                (send connection (secret-request target type))
                (let ((response (read-response connection)))
                  (is (= 500 (response-status response)))
                  (is (search "A reason." (response-text response)) "~A" target)
                  (is (equal '() (secrets-in (response-text response))) "~A" target))))))
        (let ((text (uiop:read-file-string log)))
          (is (or (search "HANDLE-REQUEST" text)
                  (search "backtrace output unavailable" text)) ; trivial-backtrace, on ECL
              "There is no backtrace.")
          (is (equal '() (secrets-in text))))))))


;;; The session's cookie

(defun cookie-attributes (headers &rest initargs)
  "What stands after the value in the cookie of a session that a server, made with INITARGS, starts
for a request with HEADERS."
  (with-routes (("/" (hunchentoot:set-cookie "own" :value "1")
                     (hunchentoot:start-session)
                     "body"))
    (call-with-acceptor (list* :trusted-proxies '("127.0.0.1") initargs)
                        (lambda ()
                          (let* ((cookies (set-cookies (ask "/" :headers headers)))
                                 (cookie (find "session" cookies :test #'search)))
                            (is (member "own=1" cookies :test #'string=))
                            (subseq cookie (position #\; cookie)))))))

(define-server-test (other-sites-and-plain-connections-do-not-get-a-session :needs :our-http)
  (let ((by-https '(("X-Forwarded-Proto" . "https"))))
    (is (equal "; Path=/; HttpOnly; SameSite=Lax" (cookie-attributes '())))
    (is (equal "; Path=/; HttpOnly; Secure; SameSite=Lax" (cookie-attributes by-https)))
    (is (equal "; Path=/; HttpOnly; SameSite=Strict"
               (cookie-attributes by-https :session-cookie-attributes "; SameSite=Strict")))
    (is (equal "; Path=/; HttpOnly" (cookie-attributes '() :session-cookie-attributes "")))))

(define-server-test (a-session-over-tls-is-for-tls-alone :needs :tls-client)
  (over-tls
    (is (equal "; Path=/; HttpOnly; Secure; SameSite=Lax" (cookie-attributes '())))))

;;; Processes of one executable

(defun secrets-of (program)
  "The session secret of PROGRAM, once it serves, a random number of Hunchentoot's, the beginning of
its requests' identifiers, and a session's cookie."
  (let ((*server* program))
    (await-serving program)
    (append (log-lines (ask-text "/secrets"))
            (list (session-cookie (ask "/session"))))))

(defun secret-pages ()
  (concatenate 'string
               (page-form "/secrets"
                          "(format nil \"~A~%~A~%~A\" hunchentoot:*session-secret*
                                   (random (ash 1 64) hunchentoot::*the-random-state*)
                                   (subseq (hunchentoot-recycling-taskmaster:request-id) 0 16))")
               (page-form "/session" "(hunchentoot:start-session) \"body\"")))

(define-server-test (processes-of-one-executable-have-secrets-of-their-own :needs :our-engine)
  (if (core)
      (with-program (first (secret-pages) (signalled-acceptor))
        (with-program (second (secret-pages) (signalled-acceptor))
          (is (every #'string/= (secrets-of first) (secrets-of second)))))
      (skip "This Lisp cannot save a core.")))

(define-server-test (a-secret-that-a-program-has-set-stays :needs :our-engine)
  (if (core)
      (with-program (program "(setf hunchentoot:*session-secret* \"chosen\")"
                             (secret-pages) (signalled-acceptor))
        (is (equal "chosen" (first (secrets-of program)))))
      (skip "This Lisp cannot save a core.")))
