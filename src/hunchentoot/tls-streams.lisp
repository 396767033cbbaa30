(in-package #:hunchentoot-recycling-taskmaster)

;;;; The streams of TLS connections.

(defmethod handshake-context ((taskmaster recycling-taskmaster))
  "The TLS context of the acceptor; NIL where the program has a method that may read before the
handshake, or make a TLS stream of its own."
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (and (typep acceptor 'parallel-ssl-acceptor)
         (slot-value acceptor 'own-handshakes-p)
         (tls-context-for-connection acceptor))))

(defmethod hunchentoot:initialize-connection-stream ((acceptor parallel-ssl-acceptor) stream)
  "Completes a TLS handshake over STREAM.  Returns a stream that reads and writes the decrypted
octets.  Hunchentoot's method would read certificates and keys anew for each connection."
  (let ((context (tls-context-for-connection acceptor)))
    (or (encrypted-stream stream context)
        (make-tls-stream context stream))))
