(in-package #:hunchentoot-recycling-taskmaster)

;;;; Brokers carry what is published on channels to other processes.  A broker knows octets and the
;;;; names of channels, and nothing of events and subscribers.
;;;;
;;;;   PUBLISH  ->  PUBLISH-MESSAGE (the broker)  ->  another process, or this one
;;;;   another process, or this one  ->  DELIVER-MESSAGE  ->  the channel's subscribers
;;;;
;;;; Invariants:
;;;; - A channel with a broker sends its subscribers only what the broker delivers, also if this
;;;;   process has published it.  So subscribers in all processes see one order.
;;;; - A broker refers to a channel only while that has subscribers.  So channels that a program
;;;;   makes for a while, for a room of a chat say, do not gather in the broker.

(defclass broker ()
  ((channels
    :initform (make-hash-table :test 'equal)
    :reader broker-channels
    :documentation "From names to lists of the channels with subscribers; guarded by LOCK.")
   (lock
    :initform (bt:make-lock "broker")
    :reader broker-lock))
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

;;; The channels of a broker

(defun attach-channel (broker name channel)
  "Has BROKER deliver what is published as NAME to CHANNEL."
  (with-lock-briefly ((broker-lock broker))
    (push channel (gethash name (broker-channels broker)))))

(defun detach-channel (broker name channel)
  "Undoes ATTACH-CHANNEL of BROKER, NAME and CHANNEL."
  (with-lock-briefly ((broker-lock broker))
    (let ((others (delete channel (gethash name (broker-channels broker)) :count 1)))
      (if others
          (setf (gethash name (broker-channels broker)) others)
          (remhash name (broker-channels broker))))))

(defun channels-named (broker name)
  "A fresh list of the channels of BROKER that are called NAME and have subscribers."
  (with-lock-briefly ((broker-lock broker))
    (copy-list (gethash name (broker-channels broker)))))

(defun deliver-message (broker name octets)
  "Sends OCTETS, what PUBLISH-MESSAGE of some process got, to the subscribers of the channels of
BROKER that are called NAME, a string.  Does not wait for clients.  Returns how many subscribers got
it, an integer.  A method for an engine calls this in one thread for all messages, in their order.
Signals an error if OCTETS are no message."
  (let ((channels (channels-named broker name)))
    (if channels
        (destructuring-bind (&key data event id retry) (message-fields octets)
          (let ((encoder (message-encoder (encode-event data :event event :id id :retry retry)
                                          data)))
            (loop for channel in channels
                  sum (publish-encoded channel encoder))))
        0)))
