(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; The messages of this process that wait for the database, in their order.  The publisher thread
;;;; copies the first ones, and takes them out once the database has them.

(defstruct (message (:include opaque) (:copier nil)
                    (:constructor make-message (sequence channel payload)))
  "A message for the database, the SEQUENCEth of its publisher."
  (sequence 0 :type unsigned-byte :read-only t)
  (channel nil :type (simple-array octet (*)) :read-only t) ; its name in UTF-8
  (payload nil :type (simple-array octet (*)) :read-only t))

(defparameter *message-overhead* 200
  "What a message takes in memory beside its octets, in octets, about.")

(defun message-size (message)
  (+ (length (message-channel message)) (length (message-payload message)) *message-overhead*))

(defstruct (queue (:include opaque) (:copier nil) (:constructor make-queue (limit)))
  "Messages, the oldest first, with up to LIMIT octets.  The lock of the broker guards it."
  (limit 0 :type unsigned-byte :read-only t)
  (messages '() :type list)
  (last '() :type list)                 ; the last cons of MESSAGES
  (count 0 :type unsigned-byte)
  (octets 0 :type unsigned-byte))

(defun put-in-queue (queue message)
  "Adds MESSAGE to QUEUE.  NIL if there is no room for it."
  (let ((octets (+ (queue-octets queue) (message-size message))))
    (when (<= octets (queue-limit queue))
      (let ((new (list message)))
        (if (queue-messages queue)
            (setf (cdr (queue-last queue)) new)
            (setf (queue-messages queue) new))
        (setf (queue-last queue) new
              (queue-octets queue) octets))
      (incf (queue-count queue)))))

(defun first-in-queue (queue most-messages most-octets)
  "A fresh list of the first messages of QUEUE: up to MOST-MESSAGES, with up to MOST-OCTETS except
for the first."
  (loop for message in (queue-messages queue)
        for octets = (message-size message) then (+ octets (message-size message))
        for count from 1 to most-messages
        while (or (= count 1) (<= octets most-octets))
        collect message))

(defun take-from-queue (queue count)
  "Takes the first COUNT messages out of QUEUE."
  (loop repeat count
        do (decf (queue-octets queue) (message-size (pop (queue-messages queue)))))
  (decf (queue-count queue) count))

(defun keep-in-queue (queue count)
  "Takes out all but the first COUNT messages of QUEUE; returns how many those were."
  (let ((kept (subseq (queue-messages queue) 0 count)))
    (setf (queue-messages queue) kept
          (queue-last queue) (last kept)
          (queue-octets queue) (reduce #'+ kept :key #'message-size))
    (- (shiftf (queue-count queue) count) count)))
