(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A transport that is TLS by OpenSSL on a non-blocking descriptor.
;;;;
;;;;   maker of the TLS-SESSION             its end
;;;;   ENCRYPT-IO                           TRANSPORT-END; otherwise the end of the connection,
;;;;                                        see END-ENCRYPTION; after a program has taken the
;;;;                                        connection away, a finalizer
;;;;   CL+SSL, in a stream of a program     that stream, when it is closed
;;;;
;;;; OpenSSL returns one record at a time, and may have more: TLS-DRAINED-P tells.

(defstruct (tls-transport (:include transport)
                          (:constructor make-tls-transport (source base &optional stream)))
  "TLS by the TLS-SESSION in SOURCE, on the descriptor of BASE."
  (stream nil :read-only t))            ; the stream of CL+SSL, if that has made the session

(defun transport-session (transport)
  "The TLS-SESSION of TRANSPORT; without a handle after its end."
  (let ((session (transport-source transport))
        (stream (tls-transport-stream transport)))
    (if stream (follow-tls-stream session stream) session)))

(defmethod transport-receive ((transport tls-transport) octets start end wanted)
  (declare (ignore wanted))
  (receive-tls (transport-session transport) octets start end))

(defmethod transport-send ((transport tls-transport) octets start end)
  (send-tls (transport-session transport) octets start end))

(defmethod transport-awaits ((transport tls-transport))
  (tls-awaits (transport-session transport)))

(defmethod transport-drained-p ((transport tls-transport) count)
  (if (would-block-p count)
      (eq :input (transport-awaits transport)) ; otherwise OpenSSL may have read nothing
      (tls-drained-p (transport-session transport))))

(defmethod transport-handshake ((transport tls-transport))
  (shake-hands (transport-session transport)))

(defmethod transport-end ((transport tls-transport) abort)
  (let ((stream (tls-transport-stream transport)))
    (cond (stream (close stream :abort abort))
          (t
           (end-tls-session (transport-source transport))
           (close (io-stream (transport-base transport)) :abort abort)))))

(defmethod end-transport-when-forgotten ((transport tls-transport) object)
  (unless (tls-transport-stream transport)
    (let ((session (transport-source transport)))
      (call-when-forgotten object (lambda () (abandon-tls-session session))))))

(defmethod transport-for ((stream cl+ssl::ssl-stream) base)
  ;; A program may have put TLS around a stream other than the descriptor's.
  (if (and base (tls-on-descriptor-p stream (io-descriptor base)))
      (make-tls-transport (adopt-tls-stream stream (io-descriptor base)) base stream)
      (call-next-method)))

(defmethod encrypt-io (base context)
  (setf (io-encrypted base)
        (make-transport-io
         (make-tls-transport (make-tls-session context (io-descriptor base)) base))))

(defmethod transport-tls-handle ((transport tls-transport))
  (tls-session-pointer (transport-session transport)))
