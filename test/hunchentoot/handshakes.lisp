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

(defclass pausing (octet-by-octet)
  ()
  (:documentation "A stream that pauses once, for a second and more, amid a handshake."))

(defmethod trivial-gray-streams:stream-write-byte :before ((stream pausing) octet)
  (declare (ignore octet))
  (when (= 20 (length (octets-written stream)))
    (poll (constantly nil) 3/2)))

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

(define-server-test (a-handshake-without-a-limit-may-pause :needs (:our-http :tls-client))
  (serving-tls (:read-timeout nil)
    (with-connection (connection)
      (let ((stream (encrypt-octet-by-octet connection 'pausing)))
        (send-encrypted stream "/yo")
        (is (search "Hey!" (read-until stream "Hey!")))))
    (is (zerop (figure :failed)))))

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

(define-server-test (a-method-around-connections-makes-no-handshake-hold-a-thread
                     :needs (:parking :tls-client))
  (serving-tls (:handshake-timeout nil :mixin 'looking-around)
    (let ((hello (client-hello)))
      (with-connection (stalled)
        (send stalled hello)
        (eventually ("the handshake to be parked")
          (and (= 1 (figure :parked)) (zerop (figure :busy))))
        (is (search "Hey!" (ask-tls))))
      (eventually ("the connections to be closed") (zerop (figure :open)))
      (reinitialize-instance *server* :handshake-timeout 1)
      (with-connection (stalled)
        (let ((early-p (send-while-new stalled hello 1)))
          (read-to-the-end stalled)
          (is (<= (if early-p 1 0) (getf (figure :expired-by) :handshake) 1)))))))

(defclass wrapping-streams ()
  ((streams :initform (make-recorder) :reader wrapped-streams))
  (:documentation "A mixin for an acceptor of a program that puts a stream of its own around each
connection's."))

(defclass remembering (octet-by-octet)
  ()
  (:documentation "A stream of a program around another one."))

(defmethod close ((stream remembering) &key abort)
  (close (carried-stream stream) :abort abort))

(defmethod trivial-gray-streams:stream-finish-output ((stream remembering))
  (finish-output (carried-stream stream)))

(defmethod hunchentoot:initialize-connection-stream :around ((acceptor wrapping-streams) stream)
  (declare (ignore stream))
  (record (wrapped-streams acceptor)
          (make-instance 'remembering :stream (call-next-method))))

(define-server-test (a-program-may-wrap-the-stream-of-a-tls-connection
                     :needs (:parking :tls-client))
  (serving-tls (:mixin 'wrapping-streams)
    (is (search "Hey!" (ask-tls)))
    (let ((streams (recorded (wrapped-streams *server*))))
      (is (= 1 (length streams)))
      (is (search "Hey!" (decode (coerce (octets-written (first streams)) 'octet-vector)))))
    (is (zerop (figure :failed)))))

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
  (let ((before (sessions-of-others)))
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

(defun destroy-a-worker ()
  "Destroys one of the threads of *SERVER* that serve, if one does."
  (let ((workers (remove-if-not #'worker-thread-p (bt:all-threads))))
    (when workers
      (ignore-errors (bt:destroy-thread (alexandria:random-elt workers))))))

(defun worker-thread-p (thread)
  (search "http-worker" (bt:thread-name thread)))

(define-server-test (workers-destroyed-over-tls-leave-openssl-to-others
                     :needs (:parking :tls-client :deferred-ends))
  "A thread that is destroyed within OpenSSL leaves its locks taken."
  (let ((before (sessions-of-others)))
    (serving-tls ()
      (let* ((over-p nil)
             (clients (loop repeat 4
                            collect (in-background ("asking over TLS")
                                      (loop until over-p
                                            do (ignore-errors (ask-tls)))))))
        (unwind-protect (loop repeat 40
                              do (destroy-a-worker)
                                 (poll (constantly nil) 1/100))
          (setf over-p t)
          (mapc #'task-result clients)))
      ;; A worker may notice late that it was destroyed.
      (eventually ("an answer") (search "Hey!" (or (ignore-errors (ask-tls)) "")))
      (eventually ("the connections to be closed") (zerop (figure :open))))
    (is (<= (sessions-of-openssl) before))))

(define-server-test (a-worker-destroyed-before-it-ends-a-session-leaves-none-open
                     :needs (:parking :tls-client :deferred-ends))
  (let ((before (sessions-of-others)) (first-p t))
    (with-function (engine::release-connection (original engine connection)
                     (when (shiftf first-p nil)
                       (destroy-here (bt:current-thread)))
                     (funcall original engine connection))
      (serving-tls ()
        (is (search "Hey!" (ask-tls)))
        (eventually ("the connection to be closed") (zerop (figure :open)))
        (is (not first-p))
        (eventually ("the session to be ended") (<= (sessions-of-openssl) before))))))

;;; Files

(define-server-test (files-are-whole-over-tls :needs (:parking :tls-client))
  (let ((octets (coerce (loop for index below 100001 collect (mod (* 7 index) 251)) 'octet-vector)))
    (with-directory (directory)
      (let ((file (merge-pathnames "large" directory)))
        (with-open-file (stream file :direction :output :element-type '(unsigned-byte 8))
          (write-sequence octets stream))
        (with-routes (("/large" (hunchentoot:handle-static-file file)))
          (over-tls
            (with-acceptor (acceptor)
              (is (equalp octets (response-body (ask "/large")))))))))))
