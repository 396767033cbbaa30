(in-package #:hunchentoot-recycling-taskmaster)

;;;; The streams of TLS connections.  The code here replaces Hunchentoot's method of
;;;; INITIALIZE-CONNECTION-STREAM, which reads certificates and keys anew for each connection.
;;;;
;;;; As with Hunchentoot, methods of the program that come before its method get the stream of the
;;;; socket, and those after it the encrypted stream.

(defstruct (stream-methods (:include opaque)
                           (:constructor make-stream-methods (hidden rest first-p)))
  "The methods of INITIALIZE-CONNECTION-STREAM for an acceptor."
  (hidden '() :type list :read-only t)  ; the program's, after ours and before Hunchentoot's for TLS
  (rest '() :type list :read-only t)    ; those after that; () if all are Hunchentoot's
  ;; True when no method of the program may read before the handshake.
  (first-p nil :read-only t))

(defmethod stream-user-methods ((acceptor parallel-ssl-acceptor))
  (let* ((function #'hunchentoot:initialize-connection-stream)
         (required (list acceptor nil))
         (all (compute-applicable-methods function required)))
    (flet ((on (&rest classes)
             (methods-on classes function '() required))
           (after (methods list)
             (rest (member (first methods) list))))
      (let* ((primaries (remove-if-not #'primary-p all))
             (theirs (on 'hunchentoot:ssl-acceptor))
             (own (on 'parallel-ssl-acceptor 'hunchentoot:ssl-acceptor 'hunchentoot:acceptor 't))
             (rest (after theirs primaries))
             (late (remove-if-not (lambda (method) (equal '(:after) (method-qualifiers method)))
                                  all)))
        (make-stream-methods
         (ldiff (after (on 'parallel-ssl-acceptor) primaries) (member (first theirs) primaries))
         (and (set-difference rest own) rest)
         (null (set-difference all (append own rest late))))))))

(defun stream-methods-of (acceptor)
  (user-methods-streams (user-methods-of acceptor)))

(defmethod handshake-context ((taskmaster recycling-taskmaster))
  "The TLS context of the acceptor; NIL if a method of the program comes before ours, since that may
read, or make a TLS stream of its own."
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (and (typep acceptor 'parallel-ssl-acceptor)
         (stream-methods-first-p (stream-methods-of acceptor))
         (tls-context-for-connection acceptor))))

(defun encrypt-stream (acceptor stream)
  "Completes a TLS handshake over STREAM, of a connection of ACCEPTOR.  Returns a stream that reads
and writes the decrypted octets."
  (let ((context (tls-context-for-connection acceptor)))
    (or (encrypted-stream stream context)
        (make-tls-stream context stream))))

(defvar *encrypting* nil
  "While our method calls hidden methods of the program: a function that encrypts a stream.")

(defparameter *encrypting-method*
  (make-calling-method (lambda (acceptor stream)
                         (declare (ignore acceptor))
                         (funcall *encrypting* stream)))
  "A method that calls *ENCRYPTING* with its stream; NIL where methods cannot be called.")

(defmethod hunchentoot:initialize-connection-stream ((acceptor parallel-ssl-acceptor) stream)
  (let* ((methods (stream-methods-of acceptor))
         (hidden (stream-methods-hidden methods))
         (rest (stream-methods-rest methods)))
    (flet ((encrypted (stream)
             (let ((encrypted (encrypt-stream acceptor stream)))
               (if rest
                   (call-methods rest (list acceptor encrypted))
                   encrypted))))
      (cond ((not (or hidden rest))
             (encrypted stream))
            ((method-calls-supported-p)
             (let ((*encrypting* #'encrypted))
               (call-methods (append hidden (list *encrypting-method*)) (list acceptor stream))))
            ;; Without calls of method objects, only Hunchentoot's method can follow.
            (t
             (call-next-method))))))
