(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite tls :in acceptors
  :description "HTTPS.")

(in-suite tls)

(defmacro serving-tls ((&rest initargs) &body body)
  "Evaluates BODY with a started HTTPS acceptor of /yo as *SERVER*."
  `(with-directory (directory)
     (multiple-value-bind (key certificate) (make-certificate directory)
       (let ((*acceptor-class* 'recycling:parallel-easy-ssl-acceptor))
         (serving (:ssl-privatekey-file key :ssl-certificate-file certificate ,@initargs)
             (("/yo" (if (hunchentoot:ssl-p) "Hey!" "not secure")))
           ,@body)))))

(defun encrypt (connection)
  "CONNECTION, after a handshake, as a connection whose octets are encrypted."
  (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection) :verify nil)))
    (write-sequence (request-octets "/yo" :headers '(("Connection" . "close"))) stream)
    (finish-output stream)
    stream))

(defun next-clear-octet (stream)
  "The next octet of STREAM, or NIL at its end."
  ;; cl+ssl on ABCL takes the end of the connection for this error with OpenSSL 3.5.
  (handler-case (read-byte stream nil nil)
    (cl+ssl::ssl-error-syscall () nil)))

(defun read-everything (stream)
  "The text of all that comes from STREAM."
  (decode (coerce (loop for octet = (next-clear-octet stream)
                        while octet collect octet)
                  'octet-vector)))

(defun ask-tls ()
  "The whole answer to a request for /yo over TLS."
  (with-connection (connection)
    (let ((stream (encrypt connection)))
      (unwind-protect (read-everything stream)
        (close stream)))))

(define-server-test (https-is-served :needs :our-engine)
  (serving-tls ()
    (loop repeat 5
          do (let ((answer (ask-tls)))
               (is (uiop:string-prefix-p "HTTP/1.1 200" answer))
               (is (uiop:string-suffix-p answer "Hey!"))))
    (eventually ("the connections to be closed")
      (zerop (getf (recycling:stats *server*) :open)))
    (is (zerop (getf (recycling:stats *server*) :failed)) "Closing is no failure.")))

(defun read-until (stream end)
  "The text of what comes from STREAM up to the text END."
  (loop with text = ""
        until (search end text)
        do (setf text (format nil "~A~C" text (code-char (read-byte stream))))
        finally (return text)))

(defun send-encrypted (stream target)
  (write-sequence (request-octets target) stream)
  (finish-output stream))

(define-server-test (a-tls-connection-is-kept :needs :our-engine)
  (serving-tls ()
    (with-connection (connection)
      (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection) :verify nil)))
        (loop repeat 3
              do (send-encrypted stream "/yo")
                 (is (search "Hey!" (read-until stream "Hey!"))))
        (close stream))
      (is (= 1 (getf (recycling:stats *server*) :accepted))))))

(defun sessions-of-openssl ()
  "How many TLS connections of servers OpenSSL has; NIL where we do not drive it."
  (and (uiop:featurep '(:and :sbcl :linux :64-bit)) (platform:tls-session-count)))

(define-server-test (a-client-that-breaks-off-over-tls-is-no-failure :needs :our-engine)
  (let ((entered (make-gate)) (release (make-gate)))
    (with-routes (("/held" (open-gate entered) (await release) "held"))
      (serving-tls ()
        (with-connection (connection)
          (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection)
                                                       :verify nil)))
            (send-encrypted stream "/held"))
          (await entered))
        (open-gate release)
        (eventually ("the connection to be closed") (zerop (figure :open)))
        (is (zerop (figure :failed)))))))

(define-server-test (a-client-that-leaves-over-tls-breaks-no-pipe :needs :our-http)
  (let ((entered (make-gate)) (release (make-gate)) (signals 0))
    (with-routes (("/held" (let ((stream (hunchentoot:send-headers)))
                             (open-gate entered)
                             (await release)
                             (loop repeat 3
                                   do (ignore-errors
                                       (write-sequence (octets "more") stream)
                                       (finish-output stream))))))
      (serving-tls ()
        (calling-on-broken-pipes ((lambda () (incf signals)))
          (let ((connection (connect)))
            (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection)
                                                         :verify nil)))
              (send-encrypted stream "/held"))
            (await entered)
            (reset connection))
          (open-gate release)
          (eventually ("the connection to be closed") (zerop (figure :open))))
        (is (zerop signals))))))

(define-server-test (a-stalled-handshake-holds-up-nobody-else :needs :our-engine)
  (serving-tls (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 2))
    (with-connection (stalled)
      (send stalled (coerce '(22 3 1) 'octet-vector))
      (is (search "Hey!" (ask-tls)))
      (is (search "Hey!" (ask-tls))))))

(define-server-test (a-stalled-handshake-is-ended-by-its-deadline :needs :our-engine)
  (serving-tls (:read-timeout 1/2 :write-timeout 1/2)
    (with-connection (stalled)
      (send stalled (coerce '(22 3 1) 'octet-vector))
      (is (closed-by-server-p stalled)))))

(define-server-test (over-tls-who-is-refused-is-told-nothing :needs :our-engine)
  (let ((entered (make-gate)) (release (make-gate)))
    (with-routes (("/slow" (open-gate entered) (await release) "slow"))
      (serving-tls (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 1
                                            :max-accept-count nil))
        (with-connections (connections 2)
          (destructuring-bind (first second) connections
            (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream first) :verify nil)))
              (write-sequence (request-octets "/slow" :headers '(("Connection" . "close"))) stream)
              (finish-output stream)
              (await entered)
              (try-to-send second (request-octets "/yo"))
              (let ((silent-p (handler-case (closed-by-server-p second)
                                (stream-error () t)))) ; a reset: it was closed before this came
                (is-true silent-p))
              (open-gate release)
              (is (search "slow" (read-everything stream)))
              (close stream))))
        (eventually ("the refusal to be counted")
          (= 1 (getf (recycling:stats *server*) :refused)))))))

(test the-default-port-of-tls-is-no-other-place-than-a-path
  (with-path (path)
    (let* ((directory (uiop:pathname-directory-pathname path))
           (both (multiple-value-call #'join-files directory "both.pem"
                   (issue directory "localhost"))))
      (flet ((complaint (&rest initargs)
               (error-of (lambda ()
                           (apply #'make-instance 'recycling:parallel-ssl-acceptor
                                  :ssl-certificate-file both :ssl-privatekey-file both
                                  :listen-path path initargs)))))
        (is (null (complaint)))
        (is (report-p (complaint :port 80) "LISTEN-PATH"))))))
