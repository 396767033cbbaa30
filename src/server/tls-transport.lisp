(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; TLS by OpenSSL on a non-blocking descriptor, after the handshake, as transport.
;;;;
;;;; OpenSSL hands out a record at a time, and may have more: so only what would block tells that all
;;;; was read.

(defstruct (tls-transport (:include transport) (:constructor make-tls-transport (source base)))
  "TLS, of CL+SSL's stream SOURCE, on the descriptor of BASE.")

(defmethod transport-receive ((transport tls-transport) octets start end wanted)
  (declare (ignore wanted))
  (receive-tls (transport-source transport) octets start end))

(defmethod transport-send ((transport tls-transport) octets start end)
  (send-tls (transport-source transport) octets start end))

(defmethod transport-awaits ((transport tls-transport))
  (tls-awaits (transport-source transport)))

(defmethod transport-for ((stream cl+ssl::ssl-stream) base)
  ;; A program may have put TLS around another stream than the descriptor's.
  (if (and base (tls-on-descriptor-p stream (wire-descriptor base)))
      (make-tls-transport (prepare-tls stream) base)
      (call-next-method)))
