(in-package #:hunchentoot-recycling-taskmaster)

;;;; Channels.  A channel sends each published message to all its subscribers, which are event
;;;; streams and WebSockets.  It encodes a message once for each format, and all subscribers share
;;;; the octets.
;;;;
;;;;   a subscriber       gets a message as
;;;;   an event stream    an event
;;;;   a WebSocket        a text message, with the data only
;;;;
;;;; A channel with a broker has its messages carried to the channels of the same name in all
;;;; processes, this one among them.
;;;;
;;;;   :WHEN-FULL         a subscriber whose client is slow
;;;;   :DROP              is ended; its client may connect again
;;;;   :SKIP              does not get this message
;;;;
;;;; Invariants:
;;;; - All subscribers get messages in the order of publication.  The channel puts them into the
;;;;   shared send queues under its lock, and has them sent after it has released the lock.
;;;; - A subscriber leaves the channel when its connection ends, at the latest.  Nothing global
;;;;   refers to a channel or a subscriber, except that a broker refers to a channel with
;;;;   subscribers.

;;; Brokers carry what is published on channels to other processes.  A broker knows octets and the
;;; names of channels, and nothing of events and subscribers.
;;;
;;;   PUBLISH  ->  PUBLISH-MESSAGE (the broker)  ->  another process, or this one
;;;   another process, or this one  ->  DELIVER-MESSAGE  ->  the channel's subscribers
;;;
;;; Invariants:
;;; - A channel with a broker sends its subscribers only what the broker delivers, also if this
;;;   process has published it.  So subscribers in all processes see one order.
;;; - A broker refers to a channel only while that has subscribers.  So channels that a program
;;;   makes for a while, for a room of a chat say, do not gather in the broker.

(defclass broker ()
  ((channels :initform (make-hash-table :test 'equal) :reader broker-channels
             :documentation "From names to lists of those with subscribers; guarded by LOCK.")
   (lock :initform (bt:make-lock "broker") :reader broker-lock))
  (:documentation "Carries what is published on channels to the processes that have subscribers.
Make an instance of a subclass for an engine, such as POSTGRESQL-BROKER.  To support another engine,
define methods of OPEN-BROKER, CLOSE-BROKER, PUBLISH-MESSAGE and BROKER-STATS, and call
DELIVER-MESSAGE for each message that arrives."))

(defgeneric open-broker (broker &key timeout)
  (:documentation "Begins to carry messages by BROKER, and returns it.  Waits up to TIMEOUT seconds,
a real, for the first connection to the engine.  Without one, BROKER goes on trying."))

(defgeneric close-broker (broker &key timeout)
  (:documentation "Ends BROKER.  Waits up to TIMEOUT seconds, a real, until the engine has what was
published before, and until the threads of BROKER have ended.  True if they have.  Reports messages
that the engine did not get."))

(defgeneric publish-message (broker name octets)
  (:documentation "Has BROKER deliver OCTETS, a vector of octets that nobody changes any more, on
the channels called NAME, a string, in all processes.  Never waits.  Called in any thread.  Returns
NIL if BROKER does not take the message, else true."))

(defgeneric broker-stats (broker)
  (:documentation "The statistics of BROKER, a plist for people and for monitors.  Counts begin when
BROKER is made.  Every engine has these:

  :CONNECTED-P    true while messages can be published and received
  :PUBLISHED      messages of this process that the engine has
  :DELIVERED      messages, of all processes, that have arrived
  :LATE           those of them that were published, or would have arrived, while the engine was
                  away
  :LOST           messages, of all processes, that are known to have been lost for this one
  :REFUSED        messages that BROKER did not take
  :QUEUED         messages of this process that wait for the engine
  :QUEUED-OCTETS  their octets"))

;;; Messages as octets: four lines in UTF-8, of which the last may contain further line ends.  A
;;; field that is not NIL begins with an equals sign.

(defun message-octets (data event id retry)
  "The octets of a message with these fields, as ENCODE-EVENT takes them.  Signals MALFORMED-EVENT
as that does."
  (encode-event data :event event :id id :retry retry)
  (utf-8-octets (format nil "~@[=~D~]~%~@[=~A~]~%~@[=~A~]~%~@[=~A~]" retry event id data)))

(defun message-fields (octets)
  "The fields of the message OCTETS, a list of keywords and values; the reverse of MESSAGE-OCTETS.
Signals an error if OCTETS are no message."
  (let ((text (utf-8-text octets)) (start 0))
    (flet ((next-field (last-p)
             (let ((end (if last-p (length text) (position #\Newline text :start start))))
               (prog1 (and (< start end)
                           (subseq text (1+ start) end))
                 (setf start (1+ end))))))
      (let ((retry (next-field nil)))
        (list :retry (and retry (parse-integer retry))
              :event (next-field nil) :id (next-field nil) :data (next-field t))))))

;;; Channels

(defstruct (channel (:include opaque) (:constructor %make-channel (when-full name broker))
                    (:copier nil))
  "A set of subscribers that get the same messages."
  (when-full :drop :type (member :drop :skip) :read-only t)
  (name nil :type (or null string) :read-only t)
  (broker nil :type (or null broker) :read-only t)
  (lock (bt:make-lock "channel") :read-only t)
  (subscribers (make-hash-table :test 'eq) :read-only t)) ; of the functions that their ends call

(setf (documentation 'channel-p 'function)
      "True when OBJECT, the argument, is a CHANNEL; see MAKE-CHANNEL."
      (documentation 'channel-name 'function)
      "The name of CHANNEL, a string, or NIL.")

(defun make-channel (&key (when-full :drop) name broker)
  "Makes a channel without subscribers.  WHEN-FULL says what happens to a subscriber with more
unsent octets than its high-water mark: :DROP ends its connection; :SKIP leaves out messages until
there is room.  With BROKER, a BROKER, messages reach the subscribers of all channels called NAME, a
string, in all processes whose brokers have the same engine."
  (check-type when-full (member :drop :skip))
  (when broker
    (check-type name string))
  (%make-channel when-full (and name (coerce name 'simple-string)) broker))

(defmacro with-channel ((channel) &body body)
  `(with-lock-briefly ((channel-lock ,channel))
     ,@body))

(defun subscriber-shared-queue (subscriber)
  "The shared send queue of SUBSCRIBER."
  (if (websocket-p subscriber)
      (websocket-shared-queue subscriber)
      subscriber))

(defun put-in-subscriber (subscriber encoder)
  "Puts the message of ENCODER into the shared send queue of SUBSCRIBER.  Returns the value of
PUT-IN-SHARED-QUEUE."
  (if (websocket-p subscriber)          ; it takes nothing behind a close frame
      (put-in-websocket subscriber (funcall encoder :websocket))
      (put-in-shared-queue subscriber
                           (funcall encoder
                                    (if (and (eq :chunked (outgoing-stream-framing subscriber))
                                             (null (outgoing-stream-coding subscriber)))
                                        :event-chunk
                                        :event)))))

;;; Subscribers

(defun follow-subscribers (channel count)
  "Has the broker of CHANNEL, if it has one, deliver to it from the first subscriber on, with a
COUNT of 1, and until the last one has left, with 0.  Call it with the lock of CHANNEL held, after
each change."
  (let ((broker (channel-broker channel))
        (name (channel-name channel)))
    (when (and broker (= count (hash-table-count (channel-subscribers channel))))
      (with-lock-briefly ((broker-lock broker))
        (let* ((others (remove channel (gethash name (broker-channels broker))))
               (channels (if (plusp count) (cons channel others) others)))
          (if channels
              (setf (gethash name (broker-channels broker)) channels)
              (remhash name (broker-channels broker))))))))

(defun subscribe (channel subscriber)
  "Subscribes SUBSCRIBER, an OUTGOING-STREAM of events or a WEBSOCKET, to CHANNEL, until its
connection ends or UNSUBSCRIBE is called.  Returns SUBSCRIBER."
  (let ((function (lambda () (unsubscribe channel subscriber)))
        (shared-queue (subscriber-shared-queue subscriber)))
    ;; First, since another thread may unsubscribe SUBSCRIBER as soon as CHANNEL has it, and then
    ;; has to find the function.
    (call-when-over shared-queue function)
    (cond ((not (with-channel (channel)
                  (unless (gethash subscriber (channel-subscribers channel))
                    (setf (gethash subscriber (channel-subscribers channel)) function)
                    (follow-subscribers channel 1)
                    t)))
           (forget-when-over shared-queue function))
          ((shared-queue-ended-p shared-queue) ; the function may have been called too early
           (unsubscribe channel subscriber))))
  subscriber)

(defun unsubscribe (channel subscriber)
  "Ends the subscription of SUBSCRIBER to CHANNEL.  True when there was one."
  (let ((function (with-channel (channel)
                    (prog1 (gethash subscriber (channel-subscribers channel))
                      (when (remhash subscriber (channel-subscribers channel))
                        (follow-subscribers channel 0))))))
    (when function
      ;; Otherwise a subscriber that comes and goes would gather these functions.
      (forget-when-over (subscriber-shared-queue subscriber) function)
      t)))

(defun channel-size (channel)
  "The number of subscribers of CHANNEL, an integer."
  (with-channel (channel)
    (hash-table-count (channel-subscribers channel))))

;;; Messages

(defun message-encoder (event text)
  "A function that takes a format and returns the octets of a message, which it encodes once for
each format.  EVENT has its octets as an event, and TEXT its data."
  (let ((known '()))
    (lambda (format)
      (or (getf known format)
          (setf (getf known format)
                (ecase format
                  (:event event)
                  (:event-chunk (chunk-of event))
                  (:websocket (encode-frame :text (or text "")))))))))

(defun publish (channel data &key event id retry)
  "Sends DATA, a string, to all subscribers of CHANNEL.  Event streams get EVENT, ID and RETRY too,
as SEND-EVENT takes them.  Does not wait for clients.  May be called in any thread.  Returns how
many subscribers got the message, an integer.  With a broker, it returns true if the broker has
taken the message, which may arrive later, or NIL if not; see BROKER-STATS.  Signals
MALFORMED-EVENT, before it sends anything."
  (if (channel-broker channel)
      (publish-message (channel-broker channel) (channel-name channel)
                       (message-octets data event id retry))
      (publish-encoded channel
                       (message-encoder (encode-event data :event event :id id :retry retry)
                                        data))))

(defun publish-encoded (channel encoder)
  "Sends the message of ENCODER, made by MESSAGE-ENCODER, to all subscribers of CHANNEL.  Returns
how many got it."
  (let ((reached '()) (full '()))
    (with-channel (channel)
      (loop for subscriber being the hash-keys of (channel-subscribers channel)
            do (ecase (put-in-subscriber subscriber encoder)
                 ((:room :full) (push subscriber reached))
                 ((:over :too-long))
                 (:refused
                  (when (eq :drop (channel-when-full channel))
                    (push subscriber full))))))
    (dolist (subscriber full)
      (when (unsubscribe channel subscriber) ; another publisher may have done so
        (end-queue (shared-queue-queue (subscriber-shared-queue subscriber)) t)))
    (dolist (subscriber reached)
      ;; Unless it was sent at once, or the poller sees to it.
      (let ((shared-queue (subscriber-shared-queue subscriber)))
        (when (owner-wanted-p shared-queue)
          (have-sent shared-queue))))
    (length reached)))

(defun deliver-message (broker name octets)
  "Sends OCTETS, what PUBLISH-MESSAGE of some process got, to the subscribers of the channels of
BROKER that are called NAME, a string.  Does not wait for clients.  Returns how many subscribers got
it, an integer.  A method for an engine calls this in one thread for all messages, in their order.
Signals an error if OCTETS are no message."
  (let ((channels (with-lock-briefly ((broker-lock broker))
                    (copy-list (gethash name (broker-channels broker))))))
    (if channels
        (destructuring-bind (&key data event id retry) (message-fields octets)
          (let ((encoder (message-encoder (encode-event data :event event :id id :retry retry)
                                          data)))
            (loop for channel in channels
                  sum (publish-encoded channel encoder))))
        0)))

;;; Heartbeats: comments to event streams.  Without them, proxies would take a silent connection for
;;; a dead one, and the server would not notice a client that has vanished.  One timer serves all
;;; streams of a taskmaster, from the first one to the stop.

(defvar *heartbeat-seconds* 15
  "How often an event stream gets a comment, so that it is not silent for longer: a number of
seconds, a real above 0, or NIL for never.  A new value counts from the next comment on.")

(defun begin-heartbeat (taskmaster stream)
  "Has comments sent to STREAM, an event stream of TASKMASTER."
  (let ((channel (silent-streams taskmaster))
        (engine (application-engine taskmaster)))
    (labels ((await-beat ()
               (let ((seconds *heartbeat-seconds*))
                 (schedule engine (if (typep seconds '(real (0))) seconds 5) #'beat)))
             (beat ()
               (await-beat)             ; first, so that a failure here does not end the heartbeat
               (when *heartbeat-seconds*
                 (publish-encoded channel (message-encoder (encode-comment) nil)))))
      (subscribe channel stream)
      (unless (eq engine (with-channel (channel)
                           (shiftf (heart-engine taskmaster) engine)))
        (await-beat)))))
