(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/tls :in fronts
  :description "TLS as octets: handshakes that come in pieces, stall, fail or are none; records.")

;;; The tests of other suites that have the mode :TLS show what is served over it.

(defclass carrier (trivial-gray-streams:fundamental-binary-input-stream
                   trivial-gray-streams:fundamental-binary-output-stream
                   trivial-gray-streams:trivial-gray-stream-mixin)
  ((stream :initarg :stream :reader carried-stream)
   (written :initform (make-array 0 :element-type '(unsigned-byte 8) :adjustable t :fill-pointer t)
            :reader octets-written)
   (withholding-p :initform nil :accessor withholding-p))
  (:documentation "A stream that sends each octet by itself unless it is WITHHOLDING-P, and
remembers it."))

(defmethod stream-element-type ((stream carrier))
  '(unsigned-byte 8))

(defmethod trivial-gray-streams:stream-write-byte ((stream carrier) octet)
  (vector-push-extend octet (octets-written stream))
  (unless (withholding-p stream)
    (write-byte octet (carried-stream stream))
    (finish-output (carried-stream stream)))
  octet)

(defmethod trivial-gray-streams:stream-read-byte ((stream carrier))
  (or (read-byte (carried-stream stream) nil nil) :eof))

(defun encrypt-by-octet (connection)
  "A stream of TLS on CONNECTION, after the handshake, that sends octet by octet, and the
carrier that does that."
  (setf (usocket:socket-option (connection-socket connection) :tcp-no-delay) t)
  (let ((carrier (make-instance 'carrier :stream (connection-stream connection))))
    (values (cl+ssl:make-ssl-client-stream carrier :verify nil :unwrap-stream-p nil) carrier)))

(defmacro with-bare-connection ((connection) &body body)
  "Evaluates BODY with CONNECTION bound to a new connection without TLS."
  `(let ((*make-connection* '%make-connection))
     (with-connection (,connection) ,@body)))

(defun request-word (stream)
  (write-sequence (request-octets "/word") stream)
  (finish-output stream))

(defun word-comes-p (stream)
  "True if what comes from STREAM next is the answer to REQUEST-WORD."
  ;; A server looks for what it has not seen when a connection has been idle for too long: then the
  ;; test has lost patience.
  (task-result (in-background ("reading")
                 (loop with text = ""
                       for octet = (read-byte stream nil)
                       while octet
                       do (setf text (format nil "~A~C" text (code-char octet)))
                       thereis (uiop:string-suffix-p text "word")))))

(defun client-hello ()
  "The octets with which a client begins its handshake."
  (with-bare-connection (connection)
    (let ((octets (octets-written (nth-value 1 (encrypt-by-octet connection)))))
      ;; A record has a header of five octets, with its length (RFC 8446, section 5.1).
      (coerce (subseq octets 0 (+ 5 (* 256 (aref octets 3)) (aref octets 4))) 'octet-vector))))

(defun read-to-the-end (connection)
  "Returns when the server has closed CONNECTION; signals PATIENCE-LOST when it does not."
  (loop while (next-octet connection)))

;;; Handshakes

(define-front-test (a-program-knows-that-a-request-came-over-tls :modes (:tls))
  (telling-ends (:ssl-minimum-protocol :tls-1.3)
    (with-connection (connection)
      (loop repeat 2
            do (is (equal (format nil "127.0.0.1 ~D localhost 443 https" (client-port connection))
                          (exchange-text connection "/")))))))

(define-front-test (a-handshake-that-comes-octet-by-octet-is-done :modes (:tls))
  (with-front (request) nil
    (with-bare-connection (connection)
      (let ((stream (encrypt-by-octet connection)))
        (loop repeat 2
              do (request-word stream)
                 (is-true (word-comes-p stream)))))))

(define-front-test (a-handshake-cut-at-any-octet-holds-no-thread-and-is-given-up
                    :modes (:tls) :needs :parking)
  (with-front (request :worker-num 1 :max-thread-count 1 :handshake-timeout 2) nil
    (let* ((hello (client-hello)) (*make-connection* '%make-connection)
           (cuts (loop for cut from 1 to (length hello) by 5 collect cut)))
      (with-connections (connections (length cuts))
        (loop for connection in connections
              for cut in cuts
              do (try-to-send connection (subseq hello 0 cut)))
        (let ((*make-connection* 'encrypted))
          (is (equal "word" (ask-text "/word"))))
        (mapc #'read-to-the-end connections))
      (is (plusp (getf (figure :expired-by) :handshake))))))

(define-front-test (who-speaks-plain-http-to-a-port-for-tls-is-told-so
                    :modes (:tls) :needs :parking)
  (with-front (request) nil
    (with-bare-connection (connection)
      (send connection (request-octets "/word"))
      (let ((answer (decode (receive-rest connection))))
        (is (eql 0 (search "HTTP/1.1 400 " answer)))
        (is (search "https" answer))))
    (is (equal "word" (ask-text "/word")))))

(define-front-test (over-tls-who-is-refused-is-told-nothing :modes (:tls) :needs :parking)
  (let ((answers (make-recorder)) (release (make-gate)))
    (with-front (request :worker-num 1 :max-thread-count 1 :max-accept-count nil)
        (progn (record answers t) (await release) (reply 200 '() "slow"))
      (with-connection (first)
        (send-request first "/")
        (eventually ("the request") (recorded answers))
        (with-bare-connection (second)
          (try-to-send second (request-octets "/word"))
          (is-true (closed-by-server-p second)))
        (open-gate release)
        (is (equal "slow" (response-text (read-response first))))))))

(define-front-test (who-leaves-is-no-failure-and-breaks-no-pipe :modes (:plain :unparked :tls))
  (let ((answers (make-recorder)))
    (with-deadly-broken-pipes ()
      (with-front (request) (later (answer) (record answers answer))
        (let ((connection (connect)))
          (send-request connection "/")
          (let ((writer (funcall (await-answer answers) 200 '())))
            (reset connection)
            (loop repeat 3
                  do (ignore-errors (funcall writer "more")))
            (ignore-errors (funcall writer nil :close t))))
        (eventually ("the connection to be closed") (zerop (figure :open)))))))

;;; Records

(defun send-in-two (connection octets cut)
  "Sends OCTETS on CONNECTION, those before CUT so early that others are served meanwhile."
  (send connection (subseq octets 0 cut))
  (let ((*make-connection* 'encrypted))
    (is (equal "word" (ask-text "/word"))))
  (send connection (subseq octets cut)))

(define-front-test (a-request-is-seen-however-its-records-are-cut :modes (:tls) :needs :parking)
  "Of a record whose beginning it has OpenSSL reads just the rest, and leaves what came with that."
  (with-front (request :idle-timeout nil) nil
    (with-bare-connection (connection)
      (multiple-value-bind (stream carrier) (encrypt-by-octet connection)
        (flet ((record-of-request ()
                 (setf (withholding-p carrier) t
                       (fill-pointer (octets-written carrier)) 0)
                 (request-word stream)
                 (coerce (octets-written carrier) 'octet-vector)))
          (dolist (cut '(1 4 5 6 20 -20 -1 0 1))
            (let ((first (record-of-request)) (second (record-of-request)))
              (send-in-two connection (octets first second)
                           (if (plusp cut) cut (+ (length first) cut)))
              (loop repeat 2
                    do (is-true (word-comes-p stream) "~D" cut)))))))))

(define-front-test (a-request-behind-what-openssl-has-room-for-is-seen
                    :modes (:tls) :needs :parking)
  "What it reads at once ends amid a record, of which it reads just the rest then."
  (let ((entered (make-gate)) (release (make-gate)) (count 500))
    (with-front (request :idle-timeout nil)
        (progn (open-gate entered) (await release) (reply 200 '() "word"))
      (with-connection (connection)
        (send-request connection "/held")
        (await entered)
        (loop repeat count do (send-request connection "/word"))
        (open-gate release)
        (is (loop repeat (1+ count)
                  always (equal "word" (response-text (read-response connection)))))))))
