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

(define-server-test (certificates-can-be-replaced-while-the-server-runs :needs :our-engine)
  (serving-tls ()
    (flet ((renew (key certificate)
             (reinitialize-instance *server* :ssl-privatekey-file key
                                             :ssl-certificate-file certificate)
             (is (uiop:string-prefix-p "HTTP/1.1 200" (ask-tls)))))
      (with-directory (another)
        (multiple-value-bind (key certificate) (make-certificate another)
          (renew key certificate)
          (renew (pathname key) (pathname certificate))
          (signals hunchentoot:parameter-error
            (reinitialize-instance *server* :ssl-certificate-file (pathname key)))
          (signals hunchentoot:parameter-error
            (reinitialize-instance *server* :ssl-certificate-file "/nowhere/c.pem"))
          (is (uiop:string-prefix-p "HTTP/1.1 200" (ask-tls))))))))

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

(defun fail-in-openssl ()
  "Leaves an error in the queue that OpenSSL has for this thread, as a program may."
  (let ((handle (cl+ssl::ssl-new cl+ssl::*ssl-global-context*)))
    (cl+ssl::ssl-use-certificate-file handle "/nowhere" cl+ssl::+ssl-filetype-pem+)
    (cl+ssl::ssl-free handle)))

;; Elsewhere CL+SSL calls OpenSSL, and takes what failed before for a failure of its next call.
(define-server-test (what-failed-in-openssl-before-ends-no-connection :needs :our-http)
  (with-routes (("/fail" (fail-in-openssl) "failed"))
    (serving-tls (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 1))
      (with-connection (connection)
        (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection) :verify nil)))
          (loop repeat 2
                do (send-encrypted stream "/fail")
                   (is (search "200" (read-until stream "failed"))))
          (send-encrypted stream "/yo")
          (is (search "Hey!" (read-until stream "Hey!")))
          (close stream))))))

(define-server-test (a-thread-that-waits-in-a-handshake-can-be-destroyed
                     :needs (:our-engine :ends-amid-c))
  (let ((before (sessions-of-openssl)))
    (serving-tls (:handshake-timeout nil)
      (with-connection (stalled)
        (send stalled (coerce '(22 3 1) 'octet-vector))
        (eventually ("the handshake to begin") (= 1 (figure (if *parking-p* :parked :busy))))
        (is (eq *server* (recycling:abandon-acceptor *server*)))))
    (when before
      (eventually ("the session to be ended") (<= (sessions-of-openssl) before)))))

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

(define-server-test (over-tls-what-comes-after-a-refusal-resets-nobody :needs :our-http)
  (with-patient-closing
    (serving-tls ()
      (with-connection (connection)
        (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection) :verify nil)))
          (write-sequence (octets (format nil "nonsense~C~C" #\Return #\Newline)) stream)
          (finish-output stream)
          (is (search "400" (read-everything stream)))
          (is (not (poll (lambda () (octets-refused-p connection)) 1/5))))))))

(define-server-test (over-tls-a-handler-may-flush-although-nothing-was-written :needs :our-http)
  (with-routes (("/flushing" (let ((stream (hunchentoot:send-headers)))
                               (loop repeat 3 do (finish-output stream))
                               (write-part stream "part")
                               (loop repeat 3 do (finish-output stream)))))
    (serving-tls ()
      (with-connection (connection)
        (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection)
                                                     :verify nil)))
          (loop repeat 2
                do (send-encrypted stream "/flushing")
                   (is (search "part" (read-until stream "part")))
                   (read-until stream (format nil "0~C~C" #\Return #\Newline))
                   (read-until stream (format nil "~C~C" #\Return #\Newline)))))
      (is (zerop (figure :failed))))))

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

(defclass counting-at-the-end ()
  ((opens :initform (make-recorder) :reader opens-at-the-end))
  (:documentation "A mixin for an acceptor that records how many connections are open when a call of
PROCESS-CONNECTION is done."))

(defmethod hunchentoot:process-connection :after ((acceptor counting-at-the-end) socket)
  (declare (ignore socket))
  (record (opens-at-the-end acceptor) (getf (recycling:stats acceptor) :open)))

(define-server-test (a-detached-tls-connection-is-the-programs-at-once :needs :our-http)
  (let ((stream nil))
    (with-routes (("/take" (hunchentoot:detach-socket hunchentoot:*acceptor*)
                           (setf stream hunchentoot::*hunchentoot-stream*)
                           "taken over"))
      (serving-tls (:mixin 'counting-at-the-end)
        (with-connection (connection)
          (let ((client (cl+ssl:make-ssl-client-stream (connection-stream connection) :verify nil)))
            (send-encrypted client "/take")
            (is (search "taken over" (read-until client "taken over")))
            (eventually ("the call to be done") (recorded (opens-at-the-end *server*)))
            (is (equal '(0) (recorded (opens-at-the-end *server*))))
            (write-sequence (octets "said later") stream)
            (finish-output stream)
            (is (search "said later" (read-until client "said later")))
            (close stream)
            (is (null (next-clear-octet client)))))
        (is (zerop (figure :failed)))
        (is (zerop (figure :open)))))))

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

(define-server-test (octets-of-a-tls-record-gain-no-time :needs :our-http)
  (serving-tls (:read-timeout nil)
    (with-connection (connection)
      (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection) :verify nil)))
        (send-encrypted stream "/yo")
        (is (search "Hey!" (read-until stream "Hey!")))
        (reinitialize-instance *server* :read-timeout 1)
        ;; The beginning of a record of 16 KiB (RFC 8446, section 5.1), and then octets of that.
        (send connection (coerce '(23 3 3 64 0) 'octet-vector))
        (is-true (loop repeat 50
                       thereis (octets-refused-p connection)
                       do (poll (constantly nil) 1/10)))))))

(define-server-test (a-client-without-tls-harms-nobody :needs :our-engine)
  (serving-tls ()
    (ask-raw "GET /yo HTTP/1.1" :crlf "Host: localhost" :crlf :crlf)
    (is (search "Hey!" (ask-tls)))))

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

(defmacro refuses-files (name path &rest initargs)
  "Checks that a TLS acceptor of INITARGS is refused with a sentence with NAME and PATH."
  `(let ((condition (nth-value 1 (ignore-errors
                                  (make-instance 'recycling:parallel-ssl-acceptor
                                                 :port 0 ,@initargs)))))
     (is (typep condition 'hunchentoot:parameter-error) "~A" condition)
     (is (search ,name (princ-to-string condition)))
     (is (search ,path (princ-to-string condition)))))

(test a-bad-key-or-certificate-is-named-at-once
  (with-directory (directory)
    (let ((text (write-file directory "text.pem" "nothing of the kind"))
          (pem (write-file directory "some.pem" "-----BEGIN CERTIFICATE-----"))
          (key (write-file directory "key.pem" "-----BEGIN RSA PRIVATE KEY-----")))
      (refuses-files "SSL-CERTIFICATE-FILE" "RSA PRIVATE KEY"
                     :ssl-certificate-file key :ssl-privatekey-file pem)
      (refuses-files "SSL-PRIVATEKEY-FILE" "has no PRIVATE KEY, but CERTIFICATE."
                     :ssl-certificate-file pem :ssl-privatekey-file pem)
      (refuses-files "SSL-CERTIFICATE-FILE" "/nowhere/c.pem"
                     :ssl-certificate-file "/nowhere/c.pem" :ssl-privatekey-file pem)
      (refuses-files "SSL-PRIVATEKEY-FILE" "/nowhere/k.pem"
                     :ssl-certificate-file pem :ssl-privatekey-file "/nowhere/k.pem")
      (refuses-files "SSL-PRIVATEKEY-FILE" "text.pem"
                     :ssl-certificate-file pem :ssl-privatekey-file text)
      (refuses-files "SSL-PRIVATEKEY-FILE" "is not in PEM format"
                     :ssl-certificate-file pem :ssl-privatekey-file text)
      (refuses-files "SSL-CERTIFICATE-FILE" "does not name an existing file"
                     :ssl-certificate-file directory :ssl-privatekey-file key)
      (refuses-files "SSL-PRIVATEKEY-FILE" "NIL" :ssl-certificate-file pem))))

(test a-file-that-cannot-be-opened-is-named-at-once
  (with-path (path)
    ;; Not even the superuser can open a socket.
    (let ((listener (path-listener path)))
      (unwind-protect
           (refuses-files "SSL-CERTIFICATE-FILE" "cannot be read"
                          :ssl-certificate-file path :ssl-privatekey-file path)
        (usocket:socket-close listener)))))

(defun fake-ssl-acceptor (&rest initargs)
  "A TLS acceptor of INITARGS, never to be started."
  (apply #'make-instance 'recycling:parallel-ssl-acceptor :port 0 initargs))

(test one-file-may-have-the-key-and-the-certificate
  (with-directory (directory)
    (let ((both (multiple-value-call #'join-files directory "both.pem"
                  (issue directory "localhost"))))
      (is (typep (fake-ssl-acceptor :ssl-certificate-file both :ssl-privatekey-file both)
                 'recycling:parallel-ssl-acceptor)))))

(test keys-and-certificates-are-checked-when-they-are-replaced
  (with-directory (directory)
    (multiple-value-bind (certificate key) (issue directory "localhost")
      (let ((acceptor (fake-ssl-acceptor :ssl-certificate-file certificate
                                         :ssl-privatekey-file key)))
        (loop for (name path) in `((:ssl-certificate-file "/nowhere/c.pem")
                                   (:ssl-certificate-file ,key)
                                   (:ssl-privatekey-file "/nowhere/k.pem")
                                   (:ssl-privatekey-file ,certificate))
              do (is (report-p (error-of (lambda () (reinitialize-instance acceptor name path)))
                               (string name) (princ-to-string path))
                     "~S ~A" name path))
        (is (eq 'shop (hunchentoot:acceptor-name (reinitialize-instance acceptor :name 'shop))))))))

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
