(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Memory that is reserved for what a connection has sent, and that waits for more without a
;;;; worker.  When there is no memory left for the next one, the engine takes some back from those
;;;; that have it for longest:
;;;;
;;;;   the connection waits with                     and then
;;;;   a part of a head                              is answered 503, and closed
;;;;   requests of its next turn                     is closed
;;;;   a part of content in memory                   has it in a file; where there can be none, or the head has more, is
;;;;                                                 answered 503, and closed
;;;;   requests behind one whose reply comes later   loses them, and is closed after that reply
;;;;   a large request whose reply comes later       is answered 503; where it is a stream that has begun, closed
;;;;   a part of a message of a WebSocket            is closed

(defgeneric suspended-exchange-keeps-since (suspended-exchange io)
  (:documentation "Since when memory is reserved for what has come for SUSPENDED-EXCHANGE, or NIL,
over IO, in MILLISECONDS; NIL when none is.")
  (:method (suspended-exchange io)
    (declare (ignore suspended-exchange))
    (and (plusp (io-reserved io))
         (io-reserved-since io)))
  (:method ((socket websocket) io)
    (let ((account (websocket-memory socket)))
      (if (plusp (account-size account))
          (account-since account)
          (call-next-method))))
  (:method ((deferred-response deferred-response) io)
    (declare (ignore io))
    (and (not (deferred-response-evicted-p deferred-response))
         (call-next-method))))

(defmethod keep-unread-input ((application http-service) engine connection)
  (let ((http (connection-data connection)))
    (or (null http)
        (null (http-io http))
        (keep-waiting-input engine http))))

(defmethod input-kept-since ((application http-service) connection)
  (let* ((http (connection-data connection))
         (io (and http (http-io http)))
         (body-prefetch (and http (http-body-prefetch http))))
    (cond ((null io) nil)
          ((and body-prefetch (plusp (memory-received body-prefetch)))
           (body-prefetch-began body-prefetch))
          (t
           (suspended-exchange-keeps-since (http-suspended-exchange http) io)))))

(defun drop-kept-input (io &optional (more 0))
  "Drops what IO has received and not read, and releases the memory that is reserved for it, but for
MORE octets."
  (setf (io-kept io) 0
        (io-start io) (io-end io))
  (lend-no-buffers io)
  (release-input io more))

(defgeneric give-input-up (suspended-exchange io)
  (:documentation "Releases the memory that is reserved for what has come for SUSPENDED-EXCHANGE
over IO.  Returns what RELEASE-KEPT-INPUT does.")
  (:method (suspended-exchange io)
    (declare (ignore suspended-exchange io))
    :close)                             ; what was read of the head is told, and then released
  (:method ((socket websocket) io)
    (close-account (websocket-memory socket))
    (drop-kept-input io)
    :broken)
  (:method ((deferred-response deferred-response) io)
    (cond ((input-left-p io)
           (drop-kept-input io (suspended-exchange-memory deferred-response))
           ;; The next request has lost its beginning.
           (note-event (deferred-response-exchange deferred-response) :close)
           :park)
          ;; Its memory is released when a worker has seen to it.
          ((evict-deferred-response deferred-response)
           (resume deferred-response)
           :park)
          (t
           :broken))))

(defmethod release-kept-input ((application http-service) connection)
  (let* ((http (connection-data connection))
         (body-prefetch (http-body-prefetch http)))
    (if (and body-prefetch
             (>= (memory-received body-prefetch) (io-reserved (http-io http)))
             (move-received-to-file body-prefetch))
        :park
        (give-input-up (http-suspended-exchange http) (http-io http)))))
