(in-package #:hunchentoot-recycling-taskmaster)

;;;; Heartbeats: comments to silent event streams.  Without them, proxies would take a silent
;;;; connection for a dead one, and the server would not notice a client that has vanished.  One
;;;; timer serves all streams of a taskmaster while there are any.  It rings twice in the time for
;;;; which a stream may be silent:
;;;;
;;;;   since the last ring, the stream got    it gets a comment
;;;;   an event or a comment                  no
;;;;   nothing                                yes

(defvar *heartbeat-seconds* 15
  "How many seconds an event stream may be silent, a real above 0, or NIL for no limit.  A comment
is sent then, or up to half that time earlier.  A new value counts from the next stream or comment
on.")

(defstruct (heart (:include opaque) (:constructor make-heart ()) (:copier nil))
  "The event streams of a taskmaster that get comments."
  (channel (make-channel :when-full :skip) :read-only t)
  ;; The engine whose timer is pending, or NIL; guarded by the lock of the channel.
  (engine nil))

(defun begin-heartbeat (taskmaster stream)
  "Has comments sent to STREAM, an event stream of TASKMASTER, while it is silent."
  (let ((heart (taskmaster-heart taskmaster))
        (engine (application-engine taskmaster)))
    (subscribe (heart-channel heart) stream)
    (unless (eq engine (with-channel ((heart-channel heart))
                         (shiftf (heart-engine heart) engine)))
      (await-heartbeat heart engine))))

(defun await-heartbeat (heart engine)
  "Schedules the next comments to the streams of HEART, on ENGINE.  Where *HEARTBEAT-SECONDS* is NIL
or not a number, schedules none; the next stream tries again."
  (let ((planned-p nil))
    (unwind-protect
         (let ((seconds *heartbeat-seconds*))
           (when seconds
             (schedule engine (/ seconds 2) (lambda () (beat heart engine)))
             (setf planned-p t)))
      (unless planned-p
        (rest-heart heart engine)))))

(defun rest-heart (heart engine)
  "Notes that HEART has no pending timer, unless another engine than ENGINE has one."
  (with-channel ((heart-channel heart))
    (when (eq engine (heart-engine heart))
      (setf (heart-engine heart) nil))))

(defun beats-p (heart engine)
  "True when HEART has streams and ENGINE is to send comments to them.  Otherwise notes that ENGINE
has no pending timer."
  (with-channel ((heart-channel heart))
    (and (eq engine (heart-engine heart))
         (or (plusp (hash-table-count (channel-subscribers (heart-channel heart))))
             (setf (heart-engine heart) nil)))))

(defun beat (heart engine)
  "Sends a comment to the silent streams of HEART, and schedules the next call while it has
streams."
  ;; Schedules first, so that a failure here does not end the heartbeat.
  (when (beats-p heart engine)
    (await-heartbeat heart engine)
    (send-heartbeats heart)))

(defun send-heartbeats (heart)
  "Sends a comment to those streams of HEART that got nothing since the last call.  Returns how many
got it."
  (publish-encoded (heart-channel heart) (message-encoder (encode-comment) nil)
                   (lambda (stream) (silent-again-p (outgoing-stream-shared-queue stream)))))
