(in-package #:hunchentoot-recycling-taskmaster)

;;;; A channel: what is published on it goes to all that subscribe to it, event streams and
;;;; WebSockets alike.  A message is encoded once for each way in which it leaves, and all
;;;; subscribers share the octets.
;;;;
;;;;   a subscriber             gets a message                        when its client is slow, and :WHEN-FULL is
;;;;   an event stream          as an event                           :DROP  it is ended, and may come again
;;;;   a WebSocket              as a text, its data only              :SKIP  it does not get this message
;;;;
;;;; Invariants: all subscribers get messages in the order in which they were published: they are
;;;; put into the shared send queues under the lock of the channel, and sent after it was given up.
;;;; A subscriber leaves the channel when its connection ends, at the latest; nothing global refers
;;;; to either of them.

(defstruct (channel (:include opaque) (:constructor %make-channel (when-full)) (:copier nil))
  "Subscribers, and what becomes of the slow ones."
  (when-full :drop :type (member :drop :skip) :read-only t)
  (lock (bt:make-lock "channel") :read-only t)
  (subscribers (make-hash-table :test 'eq) :read-only t) ; of the functions that their ends call
  (skipped 0 :type unsigned-byte)       ; messages that a subscriber did not get
  (dropped 0 :type unsigned-byte))      ; subscribers

(setf (documentation 'channel-p 'function)
      "True when the argument is a channel, as MAKE-CHANNEL returns it."
      (documentation 'channel-skipped 'function)
      "How many messages of CHANNEL subscribers did not get, since their clients were slow, an
integer; each counts once for each of them."
      (documentation 'channel-dropped 'function)
      "How many subscribers of CHANNEL were ended, since their clients were slow, an integer.")

(defun make-channel (&key (when-full :drop))
  "A new channel, which has no subscribers.  WHEN-FULL says what becomes of a subscriber whose
client does not take as much as its high-water mark: :DROP, its connection is ended; :SKIP, it does
not get what is published meanwhile."
  (check-type when-full (member :drop :skip))
  (%make-channel when-full))

(defmacro with-channel ((channel) &body body)
  `(with-lock-briefly ((channel-lock ,channel))
     ,@body))

(defgeneric subscriber-shared-queue (subscriber)
  (:documentation "The shared send queue of SUBSCRIBER."))

(defgeneric put-in-subscriber (subscriber octets)
  (:documentation "Puts OCTETS, which nobody changes any more, into the shared send queue of
SUBSCRIBER, and returns what PUT-IN-SHARED-QUEUE does.")
  (:method (subscriber octets)
    (put-in-shared-queue (subscriber-shared-queue subscriber) octets)))

(defgeneric message-format (subscriber)
  (:documentation "How messages leave to SUBSCRIBER: a keyword that ENCODE-MESSAGE knows."))

(defgeneric drop-subscriber (subscriber)
  (:documentation "Has SUBSCRIBER, whose client is too slow, ended when GO-ON-WITH is called next.")
  (:method (subscriber)
    (end-shared-queue (subscriber-shared-queue subscriber))))

(defgeneric go-on-with (subscriber)
  (:documentation "Has what is in the shared send queue of SUBSCRIBER sent."))

(defmethod subscriber-shared-queue ((stream outgoing-stream))
  (outgoing-stream-shared-queue stream))

(defmethod message-format ((stream outgoing-stream))
  (if (eq :chunked (outgoing-stream-framing stream)) :event-chunk :event))

(defmethod drop-subscriber ((stream outgoing-stream))
  (drop-shared-queue (outgoing-stream-shared-queue stream)))

(defmethod go-on-with ((stream outgoing-stream))
  (resume (outgoing-stream-deferred-response stream)))

;;; Subscribers

(defun subscribe (channel subscriber)
  "Lets SUBSCRIBER, an OUTGOING-STREAM of events or a WEBSOCKET, get what is published on CHANNEL,
until it ends or is UNSUBSCRIBEd.  Returns SUBSCRIBER."
  (let ((function (lambda () (unsubscribe channel subscriber)))
        (shared-queue (subscriber-shared-queue subscriber)))
    ;; A thread destroyed between the two would leave one of them for ever.
    (uninterruptibly
      ;; Others may unsubscribe SUBSCRIBER as soon as CHANNEL has it, and then forget the function.
      (call-when-over shared-queue function)
      (cond ((not (with-channel (channel)
                    (unless (gethash subscriber (channel-subscribers channel))
                      (setf (gethash subscriber (channel-subscribers channel)) function))))
             (forget-when-over shared-queue function))
            ((shared-queue-broken-p shared-queue) ; and the function was called, perhaps too early
             (unsubscribe channel subscriber)))))
  subscriber)

(defun unsubscribe (channel subscriber)
  "Lets SUBSCRIBER get nothing more that is published on CHANNEL.  True when it was subscribed."
  (let ((function (with-channel (channel)
                    (prog1 (gethash subscriber (channel-subscribers channel))
                      (remhash subscriber (channel-subscribers channel))))))
    (when function
      ;; Clients that come and go often would accumulate them.
      (forget-when-over (subscriber-shared-queue subscriber) function)
      t)))

(defun channel-size (channel)
  "How many subscribers CHANNEL has, an integer."
  (with-channel (channel)
    (hash-table-count (channel-subscribers channel))))

;;; Messages

(defun encode-message (format event text)
  "The octets that leave for a message in FORMAT; EVENT is its octets as an event, and TEXT its
data."
  (ecase format
    (:event event)
    (:event-chunk (chunk-of event))
    (:websocket (encode-frame :text (or text "")))))

(defun message-encoder (event text)
  "A function of a format that returns the octets of a message, and encodes it once for each; see
ENCODE-MESSAGE."
  (let ((known '()))
    (lambda (format)
      (or (getf known format)
          (setf (getf known format) (encode-message format event text))))))

(defun publish (channel data &key event id retry)
  "Sends DATA, a string, to all subscribers of CHANNEL; streams of events get EVENT, ID and RETRY as
SEND-EVENT takes them.  Does not wait for any client.  May be called in any thread.  Returns how
many subscribers got it.  Signals MALFORMED-EVENT, before anybody gets anything."
  (publish-encoded channel (message-encoder (encode-event data :event event :id id :retry retry) data)))

(defun publish-encoded (channel encoder &optional (wanted-p (constantly t)))
  "Sends the message of ENCODER, of MESSAGE-ENCODER, to all subscribers of CHANNEL for which
WANTED-P, a function that waits for nothing, is true; returns how many got it."
  (uninterruptibly                      ; who is destroyed amid it would leave some of them unsent
    (multiple-value-bind (reached full) (put-in-all channel encoder wanted-p)
      (dolist (subscriber full)
        (when (unsubscribe channel subscriber) ; others may publish, too
          (with-channel (channel)
            (incf (channel-dropped channel)))
          (drop-subscriber subscriber)
          (go-on-with subscriber)))
      (when reached
        (call-with-spare-worker-buffers
         (lambda ()
           (call-for-all #'go-on-with reached))))
      (length reached))))

(defun put-in-all (channel encoder wanted-p)
  "Puts the message of ENCODER into the shared send queues of all subscribers of CHANNEL for which
WANTED-P is true.  Returns those that got it, and those that are too slow for CHANNEL."
  (let ((reached '()) (full '()))
    (with-channel (channel)
      (loop for subscriber being the hash-keys of (channel-subscribers channel)
            when (funcall wanted-p subscriber)
              do (ecase (put-in-subscriber subscriber
                                           (funcall encoder (message-format subscriber)))
                   ((:room :full) (push subscriber reached))
                   ((:over :too-long))
                   (:refused
                    (ecase (channel-when-full channel)
                      (:skip (incf (channel-skipped channel)))
                      (:drop (push subscriber full)))))))
    (values reached full)))
