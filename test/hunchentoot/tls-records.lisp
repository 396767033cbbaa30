(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* tls-records :in acceptors
  :description "Requests over TLS, however their records come.")

(defclass by-record (octet-by-octet)
  ((withholding-p :initform nil :accessor withholding-p))
  (:documentation "A stream that sends each octet by itself, or remembers it while it is
WITHHOLDING-P."))

(defmethod trivial-gray-streams:stream-write-byte ((stream by-record) octet)
  (cond ((withholding-p stream)
         (vector-push-extend octet (octets-written stream))
         octet)
        (t (call-next-method))))

(defun begin-by-record (connection)
  "A stream of TLS on CONNECTION, after its first request, whose records are withheld from now on;
and the stream that withholds them."
  (setf (usocket:socket-option (connection-socket connection) :tcp-no-delay) t)
  (let* ((carrier (make-instance 'by-record :stream (connection-stream connection)))
         (stream (cl+ssl:make-ssl-client-stream carrier :verify nil :unwrap-stream-p nil)))
    (send-encrypted stream "/yo")
    (read-until stream "Hey!")
    (setf (withholding-p carrier) t)
    (values stream carrier)))

(defun record-of (stream carrier target)
  "The octets of a record with a request for TARGET by STREAM, see BEGIN-BY-RECORD."
  (setf (fill-pointer (octets-written carrier)) 0)
  (send-encrypted stream target)
  (coerce (octets-written carrier) 'octet-vector))

(defun send-in-two (connection octets cut)
  "Sends OCTETS on CONNECTION, those before CUT so early that they are read before the others come."
  (send connection (subseq octets 0 cut))
  (poll (constantly nil) 1/50)
  (send connection (subseq octets cut)))

(defun read-in-time (stream end)
  "What READ-UNTIL returns for STREAM and END, unless that does not come for long.  The server looks
for what waits unseen when a connection has been idle for too long: so connections must be allowed
to be idle for ever."
  (task-result (in-background ("reading") (read-until stream end))))

(defun check-records-in-pieces ()
  "Checks that *SERVER*, whose connections may be idle for ever, answers two requests, each in a
record, however what carries both is cut."
  (with-connection (connection)
    (multiple-value-bind (stream carrier) (begin-by-record connection)
      (dolist (cut '(1 4 5 6 20 -20 -1 0 1))
        (let ((first (record-of stream carrier "/yo"))
              (second (record-of stream carrier "/yo")))
          (send-in-two connection (concatenate 'octet-vector first second)
                       (if (plusp cut) cut (+ (length first) cut)))
          (loop repeat 2
                do (is (search "Hey!" (read-in-time stream "Hey!"))))))))
  (is (zerop (figure :failed)))
  (is (zerop (figure :stalls))))

(define-server-test (a-request-behind-the-rest-of-a-record-is-seen :needs (:parking :tls-client))
  "Of a record whose beginning it has OpenSSL reads just the rest, and leaves what came with that."
  (serving-tls (:idle-timeout nil)
    (check-records-in-pieces)))

(define-server-test (a-request-behind-what-openssl-has-room-for-is-seen
                     :needs (:parking :tls-client))
  "What it reads at once ends amid a record, of which it reads just the rest then."
  (let ((entered (make-gate)) (release (make-gate)) (count 500))
    (with-routes (("/held" (open-gate entered) (await release) "Hey!"))
      (serving-tls (:idle-timeout nil)
        (with-connection (connection)
          (multiple-value-bind (stream carrier) (begin-by-record connection)
            (send connection (record-of stream carrier "/held"))
            (await entered)
            (setf (fill-pointer (octets-written carrier)) 0)
            (loop repeat count do (send-encrypted stream "/yo"))
            (send connection (coerce (octets-written carrier) 'octet-vector))
            (open-gate release)
            (is (= (1+ count)
                   (task-result (in-background ("reading")
                                  (loop repeat (1+ count)
                                        do (read-until stream "Hey!")
                                        count t)))))))))))

;;; New keys

(defun ask-for-keys (connection count)
  "Asks COUNT times on CONNECTION, of TLS 1.3, that the server change its keys (RFC 8446, section
4.6.3), and reads nothing.  Returns how many times that was sent."
  (let ((handle (tls-handle connection)))
    (loop repeat count
          count (and (= 1 (cffi:foreign-funcall "SSL_key_update" :pointer handle :int 1 :int))
                     (= 1 (cffi:foreign-funcall "SSL_do_handshake" :pointer handle :int))))))

(define-server-test (a-client-that-asks-for-keys-and-does-not-read-is-answered-when-it-reads
                     :needs (:parking :tls-client))
  "OpenSSL reads no further before it could send what it was asked for."
  (with-routes (("/word" "word"))
    (over-tls
      (with-acceptor (acceptor)
        (setf (sb-bsd-sockets:sockopt-send-buffer ; and that of who connects
               (usocket:socket (hunchentoot::acceptor-listen-socket acceptor)))
              4096)
        (with-open-connection (connection (connect-with-small-buffer
                                           (hunchentoot:acceptor-port acceptor)))
          (is (equal "word" (exchange-text connection "/word")))
          (is (= 12000 (ask-for-keys connection 12000)))
          (send-request connection "/word")
          (await-held-up 1)
          (is (equal "word" (response-text (read-response connection))))
          (is (equal "word" (exchange-text connection "/word"))))
        (is (zerop (figure :failed)))
        (is (zerop (figure :stalls)))))))
