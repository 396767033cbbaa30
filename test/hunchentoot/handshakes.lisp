(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* handshakes :in acceptors
  :description "TLS handshakes that come in pieces, stall, fail or are none.")

;;; Clients

(defclass octet-by-octet (trivial-gray-streams:fundamental-binary-input-stream
                          trivial-gray-streams:fundamental-binary-output-stream
                          trivial-gray-streams:trivial-gray-stream-mixin)
  ((stream :initarg :stream :reader carried-stream)
   (written :initform (make-array 0 :element-type '(unsigned-byte 8) :adjustable t :fill-pointer t)
            :reader octets-written))
  (:documentation "A stream that sends each octet by itself, and remembers it."))

(defmethod stream-element-type ((stream octet-by-octet))
  '(unsigned-byte 8))

(defmethod trivial-gray-streams:stream-write-byte ((stream octet-by-octet) octet)
  (vector-push-extend octet (octets-written stream))
  (write-byte octet (carried-stream stream))
  (finish-output (carried-stream stream))
  octet)

(defmethod trivial-gray-streams:stream-read-byte ((stream octet-by-octet))
  (or (read-byte (carried-stream stream) nil nil) :eof))

(defun encrypt-octet-by-octet (connection &optional (class 'octet-by-octet))
  "A stream of TLS on CONNECTION whose records are sent octet by octet, and the stream, of CLASS,
that does that."
  (setf (usocket:socket-option (connection-socket connection) :tcp-no-delay) t)
  (let ((carrier (make-instance class :stream (connection-stream connection))))
    (values (cl+ssl:make-ssl-client-stream carrier :verify nil :unwrap-stream-p nil) carrier)))

(defun client-hello ()
  "The octets that a client begins its handshake with."
  (with-connection (connection)
    (let ((carrier (nth-value 1 (encrypt-octet-by-octet connection))))
      ;; A record has a header of five octets, with its length (RFC 8446, section 5.1).
      (let* ((octets (octets-written carrier))
             (size (+ 5 (* 256 (aref octets 3)) (aref octets 4))))
        (coerce (subseq octets 0 size) 'octet-vector)))))

(defun cuts-of (hello)
  "Numbers of octets after which HELLO, of CLIENT-HELLO, may be cut."
  (loop for cut from 1 to (length hello) by 5 collect cut))

(defun send-while-new (connection octets seconds)
  "Sends OCTETS to CONNECTION, which was just made, unless the server has closed it.  NIL when that
came so late that the server, which waits for SECONDS, may have given up before."
  (let ((deadline (deadline-after (/ seconds 2))))
    (try-to-send connection octets)
    (plusp (seconds-until deadline))))

(defun read-to-the-end (connection)
  "Returns when the server has closed CONNECTION; signals PATIENCE-LOST when it does not."
  (loop while (next-octet connection)))

;;; In pieces

(define-server-test (a-handshake-that-comes-octet-by-octet-is-done :needs (:our-http :tls-client))
  (serving-tls ()
    (with-connection (connection)
      (let ((stream (encrypt-octet-by-octet connection)))
        (loop repeat 2
              do (send-encrypted stream "/yo")
                 (is (search "Hey!" (read-until stream "Hey!"))))))
    (is (zerop (figure :failed)))
    (is (zerop (figure :stalls)))))

(define-server-test (a-handshake-cut-at-any-octet-holds-no-thread :needs (:parking :tls-client))
  (serving-tls (:handshake-timeout nil)
    (let* ((hello (client-hello))
           (cuts (cuts-of hello))
           (threads (figure :threads)))
      (with-connections (connections (length cuts))
        (loop for connection in connections
              for cut in cuts
              do (send connection (subseq hello 0 cut)))
        (is (search "Hey!" (ask-tls)))
        ;; A few more may be made on a busy machine.
        (is (< (figure :threads) (+ threads (floor (length cuts) 2))))))
    (is (zerop (figure :failed)))))

(define-server-test (a-handshake-cut-at-any-octet-is-given-up :needs (:parking :tls-client))
  (serving-tls (:handshake-timeout nil)
    (let* ((hello (client-hello))
           (cuts (cuts-of hello))
           (late 0))
      (reinitialize-instance *server* :handshake-timeout 1)
      (with-connections (connections 0)
        (dolist (cut cuts)
          (push (connect) connections)
          (unless (send-while-new (first connections) (subseq hello 0 cut) 1)
            (incf late)))
        (eventually ("the cut handshakes to be given up")
          (zerop (figure :open))))
      (is (<= (- (length cuts) late)
              (getf (figure :expired-by) :handshake)
              (length cuts))))
    (is (zerop (figure :failed)))))

(defclass looking-around ()
  ()
  (:documentation "A mixin for an acceptor of a program that binds something for each connection."))

(defmethod hunchentoot:process-connection :around ((acceptor looking-around) socket)
  (declare (ignore socket))
  (let ((*print-base* 10))
    (call-next-method)))

;;; None at all

(define-server-test (a-client-that-speaks-plain-http-to-a-tls-port-is-told-so
                     :needs (:parking :tls))
  (serving-tls ()
    (let ((answer (decode (ask-raw "GET /yo HTTP/1.1" :crlf "Host: localhost" :crlf :crlf))))
      (is (uiop:string-prefix-p "HTTP/1.1 400 " answer))
      (is (search "https" answer)))
    (is (= 1 (getf (figure :rejected-by-status) 400)))
    (is (search "Hey!" (ask-tls)))))

(define-server-test (octets-that-are-no-handshake-end-the-connection :needs (:parking :tls))
  (serving-tls ()
    (dolist (octets '((22 3 1 0 5 1 0 0 1 0)  ; a ClientHello of one octet
                      (22 3 1 255 255)        ; a record that is too long
                      (0 0 0 0 0 0 0 0)
                      (21 3 3 0 2 2 40)))     ; an alert
      (with-connection (connection)
        (send connection (coerce octets 'octet-vector))
        (read-to-the-end connection)))
    (eventually ("the connections to be closed") (zerop (figure :open)))
    (is (zerop (figure :failed)))
    (is (search "Hey!" (ask-tls)))))

;;; What OpenSSL has

(define-server-test (openssl-keeps-nothing-of-connections-that-ended :needs (:parking :tls-client))
  (let ((before (sessions-of-openssl)))
    (serving-tls (:handshake-timeout nil)
      (let ((hello (client-hello)))
        (ask-tls)
        (with-connection (connection)
          (send connection hello))
        (with-connection (connection)
          (send connection hello (coerce '(1 2 3 4 5 6 7) 'octet-vector)))
        (with-connection (connection)
          (send connection hello)
          (reset connection))
        (ask-raw "GET /yo HTTP/1.1" :crlf :crlf)
        (reinitialize-instance *server* :handshake-timeout 1)
        (with-connection (stalled)
          (try-to-send stalled hello)
          (read-to-the-end stalled)))
      (eventually ("the connections to be closed") (zerop (figure :open))))
    (is (<= (sessions-of-openssl) before))))

;;; Files
