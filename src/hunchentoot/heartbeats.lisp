(in-package #:hunchentoot-recycling-taskmaster)

;;;; Comments to streams of events on which nothing happens: what stands between takes a silent
;;;; connection for a dead one, and a client that has vanished without a word is found out.  One
;;;; timer serves all streams of a taskmaster, while there are any.  It comes twice in the time that
;;;; a stream may be silent:
;;;;
;;;;   since the last time, the stream got    it gets a comment
;;;;   anything, be it a comment              no
;;;;   nothing                                yes
;;;;
;;;; So it is silent for that time at most, and comments to many do not delay the events that they
;;;; get.

(defvar *heartbeat-seconds* 15
  "How many seconds, a real above 0, a stream of events is silent at most: then it is sent a
comment, or up to half that time earlier.  NIL for any time.  Counts from the next stream on, or the
next comment.")

(defstruct (heart (:include opaque) (:constructor make-heart ()) (:copier nil))
  "The streams of events of a taskmaster."
  (channel (make-channel :when-full :skip) :read-only t)
  ;; The one whose timer is pending; guarded by the lock of the channel.
  (engine nil))

(defun begin-heartbeat (taskmaster stream)
  "Has comments sent to STREAM, one of events of TASKMASTER, now and then."
  (let ((heart (taskmaster-heart taskmaster))
        (engine (application-engine taskmaster)))
    (subscribe (heart-channel heart) stream)
    ;; A round that has begun without a timer would keep others from beginning.
    (uninterruptibly
      (unless (eq engine (with-channel ((heart-channel heart))
                           (shiftf (heart-engine heart) engine)))
        (await-heartbeat heart engine)))))

(defun await-heartbeat (heart engine)
  "Has the next comments sent to the streams of HEART by ENGINE; by nobody where *HEARTBEAT-SECONDS*
is NIL, or no number: then the next stream begins anew."
  (let ((planned-p nil))
    (unwind-protect
         (let ((seconds *heartbeat-seconds*))
           (when seconds
             (schedule engine (/ seconds 2) (lambda () (beat heart engine)))
             (setf planned-p t)))
      (unless planned-p
        (rest-heart heart engine)))))

(defun rest-heart (heart engine)
  "Lets the next stream begin anew, unless it has done so with another engine than ENGINE."
  (with-channel ((heart-channel heart))
    (when (eq engine (heart-engine heart))
      (setf (heart-engine heart) nil))))

(defun beats-p (heart engine)
  "True when ENGINE is to send comments to the streams of HEART, which has some; else the next
stream begins anew."
  (with-channel ((heart-channel heart))
    (and (eq engine (heart-engine heart))
         (or (plusp (hash-table-count (channel-subscribers (heart-channel heart))))
             (setf (heart-engine heart) nil)))))

(defun beat (heart engine)
  "Sends a comment to the silent streams of HEART, and has that done again while it has streams."
  ;; Planned before it is done: whatever befalls those who send, there is a next time.
  (when (uninterruptibly
          (when (beats-p heart engine)
            (await-heartbeat heart engine)
            t))
    (send-heartbeats heart)))

(defun send-heartbeats (heart)
  "Sends a comment to those streams of HEART that got nothing since this was called before; returns
how many got it."
  (publish-encoded (heart-channel heart) (message-encoder (encode-comment) nil)
                   (lambda (stream) (silent-again-p (outgoing-stream-shared-queue stream)))))
