(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* failed-handshakes :in acceptors
  :description "TLS handshakes that fail are counted by kind, and told seldom.")

;;; Kinds

;;; Counted

(defun failed-handshakes ()
  "How many handshakes with *SERVER* have failed, a plist of the kinds that occur."
  (loop for (kind count) on (figure :handshakes-failed-by) by #'cddr
        unless (zerop count)
          append (list kind count)))

(defun begin-by-openssl (&rest arguments)
  "Has openssl, as a client with ARGUMENTS, begin a connection to *SERVER*, and leave when it has
one."
  (uiop:run-program (list* "openssl" "s_client" "-connect"
                           (format nil "127.0.0.1:~D" (hunchentoot:acceptor-port *server*))
                           arguments)
                    :input nil :output nil :error-output nil :ignore-error-status t))

(defmacro fails-as (kind &body body)
  "Checks that each client of BODY makes one handshake fail, of KIND, and no other."
  `(progn
     ,@(loop for form in body
             collect `(let ((before (getf (failed-handshakes) ,kind 0))
                            (all (figure :handshakes-failed)))
                        ,form
                        (is-true (poll (lambda ()
                                         (= (1+ before) (getf (failed-handshakes) ,kind 0))))
                                 "~S ~S" ',form (failed-handshakes))
                        (is (= (1+ all) (figure :handshakes-failed)))))))

(define-server-test (failed-handshakes-are-counted-by-kind :needs (:our-engine :tls))
  (with-clients (clients authorities)
    (serving-https (directory :ssl-client-ca-file authorities)
      (let ((known (client-arguments clients "known")))
        (fails-as :cipher
          (begin-by-openssl "-tls1_2" "-cipher" "AES128-SHA"))
        (fails-as :protocol
          (begin-by-openssl "-tls1_1" "-cipher" "ALL:@SECLEVEL=0")
          (ask-raw "nonsense" :crlf))
        (fails-as :application-protocol
          (begin-by-openssl "-alpn" "h2"))
        (fails-as :plain-http
          (ask-raw "GET /yo HTTP/1.1" :crlf "Host: localhost" :crlf :crlf))
        (fails-as :client-certificate
          (begin-by-openssl "-tls1_2")
          (begin-by-openssl "-tls1_3")
          (apply #'begin-by-openssl (client-arguments clients "stranger")))
        (fails-as :certificate
          (apply #'begin-by-openssl "-tls1_2" "-verify_return_error" known)
          (apply #'begin-by-openssl "-tls1_3" "-verify_return_error" known))
        (fails-as :gone
          (with-connection (connection) (send connection (coerce '(22 3 1) 'octet-vector))))
        (fails-as :other
          (ask-raw (coerce '(22 3 1 0 5 1 0 0 1 0) 'octet-vector)))
        (is (zerop (figure :failed)))
        (is-true (served-p (apply #'talk-by-openssl known)))
        (is (= 12 (figure :handshakes-failed)))
        (hunchentoot:stop *server*)
        (start-elsewhere *server*)
        (is (zerop (figure :handshakes-failed)))
        (is (null (failed-handshakes)))))))

(define-server-test (over-plain-http-no-handshake-fails :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (ask-raw "nonsense" :crlf)
    (is (zerop (figure :handshakes-failed)))))

;;; Told

(defmacro with-messages ((messages) (operator (&rest arguments) &rest rest))
  "Evaluates the form of OPERATOR, which makes acceptors, with a further initarg among ARGUMENTS;
MESSAGES is a function that returns what was written to the message log so far."
  (let ((log (gensym "LOG")) (lock (gensym "LOCK")))
    `(with-directory (,lock)
       (let ((,log (merge-pathnames "messages" ,lock)))
         (flet ((,messages ()
                  (if (probe-file ,log) (uiop:read-file-string ,log) "")))
           (,operator (,@arguments :message-log-destination ,log) ,@rest))))))

(define-server-test (failed-handshakes-are-told-once-a-second-for-each-kind
                     :needs (:our-engine :tls))
  (with-messages (messages)
    (serving-https (directory)
      (flet ((expire (kind)
               (setf (server:log-throttle-silent-until
                      (server::log-throttle-of (hunchentoot::acceptor-taskmaster *server*) kind))
                     nil))
             (break-off ()
               (fails-as :protocol (ask-raw "nonsense" :crlf))))
        (loop repeat 3 do (break-off))
        (is (<= (count-of "TLS handshake" (messages)) 3)) ; the machine may be slow
        (expire :protocol)
        (break-off)
        (fails-as :plain-http (ask-raw "GET /yo HTTP/1.1" :crlf :crlf))
        (eventually ("the messages") (search "plain HTTP" (messages)))
        (is (search (concatenate 'string
                                 "[INFO]] A TLS handshake failed: the client does not speak TLS, "
                                 "or no version of it that the server accepts "
                                 "(wrong version number).")
                    (messages)))
        (is (search (concatenate 'string "3 TLS handshakes failed since the last message: "
                                 "the client does not speak TLS, ")
                    (messages)))
        (is (search "A TLS handshake failed: the client speaks plain HTTP (http request)."
                    (messages)))
        (fails-as :gone
          (with-connection (connection)
            (send connection (coerce '(22 3 1) 'octet-vector))))
        (is (not (search "gone" (messages))))
        (is (not (search "ERROR" (messages))))))))

(define-server-test (clients-that-do-not-trust-the-certificate-are-told-as-a-warning
                     :needs (:our-engine :tls))
  (with-messages (messages)
    (serving-https (directory)
      (fails-as :certificate (begin-by-openssl "-verify_return_error"))
      (is (search (concatenate 'string "[WARNING]] A TLS handshake failed: "
                               "the client does not trust the server's certificate (")
                  (eventually ("the message") (and (search "trust" (messages)) (messages))))))))
