(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A connection that waits for more input without a worker keeps memory for its earlier input.
;;;; When no memory is left for another one, the engine takes some back from those that have kept
;;;; theirs for longest:
;;;;
;;;;   the connection keeps                          action
;;;;   a part of a head                              answer 503, and close
;;;;   requests for its next turn                    close
;;;;   a part of content in memory                   move it to a file; where that fails, or the
;;;;                                                 head takes more, answer 503, and close
;;;;   requests behind a deferred reply              drop them, and close after that reply
;;;;   a large request with a deferred reply         answer 503; close a stream that has begun
;;;;   a part of a message of a WebSocket            close

(defgeneric suspended-exchange-keeps-since (suspended-exchange io)
  (:documentation "The time, in MILLISECONDS, since which memory is reserved for the input of
SUSPENDED-EXCHANGE, or NIL, over IO; NIL when none is reserved.")
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
         (io (and http (http-io http))))
    (cond ((null io) nil)
          ((and (content-pending-p http) (plusp (content-reserved (http-content http))))
           (content-began (http-content http)))
          (t
           (suspended-exchange-keeps-since (http-suspended-exchange http) io)))))

(defun drop-kept-input (io &optional (more 0))
  "Drops the unread input of IO, and reduces its reservation to MORE octets."
  (setf (io-kept io) 0
        (io-start io) (io-end io))
  (lend-no-buffers io)
  (release-input io more))

(defgeneric give-input-up (suspended-exchange io)
  (:documentation "Releases the memory for the input of SUSPENDED-EXCHANGE over IO.  Returns the
same as RELEASE-KEPT-INPUT.")
  (:method (suspended-exchange io)
    (declare (ignore suspended-exchange io))
    :close)                             ; the head so far is logged, and then released
  (:method ((socket websocket) io)
    (drop-incomplete-message socket)
    (drop-kept-input io)
    :broken)
  (:method ((deferred-response deferred-response) io)
    (cond ((input-left-p io)
           (drop-kept-input io (suspended-exchange-memory deferred-response))
           ;; The next request has lost its beginning.
           (note-event (deferred-response-exchange deferred-response) :close)
           :park)
          ;; Its memory is released when a worker has ended it.
          ((evict-deferred-response deferred-response)
           (resume deferred-response)
           :park)
          (t
           :broken))))

(defmethod release-kept-input ((application http-service) connection)
  (let ((http (connection-data connection)))
    (if (and (content-pending-p http)
             (>= (content-reserved (http-content http)) (io-reserved (http-io http)))
             (move-to-file (http-content http)))
        :park
        (give-input-up (http-suspended-exchange http) (http-io http)))))
