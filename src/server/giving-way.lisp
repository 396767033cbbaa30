(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Memory that is reserved for what a connection has sent, and that waits for more without a worker.  When there is no
;;;; memory left for the next one, the engine takes some back from those that have it for longest:
;;;;
;;;;   the connection waits with                     and then
;;;;   a part of a head                              is answered 503, and closed
;;;;   requests of its next turn                     is closed
;;;;   a part of content in memory                   has it in a file; where there can be none, or the head has more, is
;;;;                                                 answered 503, and closed
;;;;   requests behind one whose reply comes later   loses them, and is closed after that reply
;;;;   a large request whose reply comes later       is answered 503; where it is a stream that has begun, closed
;;;;   a part of a message of a WebSocket            is closed

(defgeneric continuation-keeps-since (continuation wire)
  (:documentation "Since when memory is reserved for what has come for CONTINUATION, or NIL, over WIRE, in MILLISECONDS; NIL
when none is.")
  (:method (continuation wire)
    (declare (ignore continuation))
    (and (plusp (wire-reserved wire))
         (wire-reserved-since wire)))
  (:method ((socket websocket) wire)
    (let ((account (websocket-memory socket)))
      (if (plusp (account-size account))
          (account-since account)
          (call-next-method))))
  (:method ((deferral deferral) wire)
    (declare (ignore wire))
    (and (not (deferral-evicted-p deferral))
         (call-next-method))))

(defmethod keep-unread-input ((application http-service) engine connection)
  (let ((link (connection-data connection)))
    (or (null link)
        (null (link-wire link))
        (input-kept-p engine link))))

(defmethod input-kept-since ((application http-service) connection)
  (let* ((link (connection-data connection))
         (wire (and link (link-wire link)))
         (body-prefetch (and link (link-body-prefetch link))))
    (cond ((null wire) nil)
          ((and body-prefetch (plusp (memory-received body-prefetch)))
           (body-prefetch-began body-prefetch))
          (t
           (continuation-keeps-since (link-continuation link) wire)))))

(defun drop-kept-input (wire &optional (more 0))
  "Drops what WIRE has received and not read, and releases the memory that is reserved for it, but for MORE octets."
  (setf (wire-kept wire) 0
        (wire-start wire) (wire-end wire))
  (lend-no-buffers wire)
  (release-input wire more))

(defgeneric give-input-up (continuation wire)
  (:documentation "Releases the memory that is reserved for what has come for CONTINUATION over WIRE.  Returns what
RELEASE-KEPT-INPUT does.")
  (:method (continuation wire)
    (declare (ignore continuation wire))
    :close)                             ; what was read of the head is told, and then released
  (:method ((socket websocket) wire)
    (close-account (websocket-memory socket))
    (drop-kept-input wire)
    :broken)
  (:method ((deferral deferral) wire)
    (cond ((input-left-p wire)
           (drop-kept-input wire (continuation-memory deferral))
           (note-event (deferral-exchange deferral) :close) ; the next request has lost its beginning
           :park)
          ((evict-deferral deferral)    ; its memory is released when a worker has seen to it
           (visit deferral)
           :park)
          (t
           :broken))))

(defmethod release-kept-input ((application http-service) connection)
  (let* ((link (connection-data connection))
         (body-prefetch (link-body-prefetch link)))
    (if (and body-prefetch
             (>= (memory-received body-prefetch) (wire-reserved (link-wire link)))
             (move-received-to-file body-prefetch))
        :park
        (give-input-up (link-continuation link) (link-wire link)))))
