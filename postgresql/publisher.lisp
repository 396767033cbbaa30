(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; The publisher moves messages from the queue to the database.

(defparameter *batch-messages* 200
  "The maximum number of messages in a transaction.")

(defparameter *batch-octets* (* 1024 1024)
  "The maximum number of octets in a transaction of several messages.")

(defun await-messages (opening seconds)
  "Waits up to SECONDS, a real, until the queue of OPENING has messages, or OPENING ends."
  (wait-until (lambda ()
                (or (queue-messages (opening-queue opening))
                    (not (eq :open (opening-phase opening)))))
              (link-changed (opening-publisher opening))
              (broker-state-lock (opening-broker opening)) seconds nil))

(defun publisher-done-p (opening)
  "True if the publisher of OPENING has to end."
  (with-state ((opening-broker opening))
    (or (closed-p opening)
        (and (eq :draining (opening-phase opening))
             (null (queue-messages (opening-queue opening)))))))

(defun publish-batch (opening connection)
  "Moves the first messages of the queue of OPENING to the database.  NIL if there are none, or
OPENING is closed."
  (multiple-value-bind (messages late-through)
      (with-state ((opening-broker opening))
        (values (first-in-queue (opening-queue opening) *batch-messages* *batch-octets*)
                (opening-late-through opening)))
    (let ((count (length messages)))
      (when (and messages
                 (insert-messages connection (opening-name opening) messages late-through
                                  (lambda () (begin-commit opening count))))
        (end-commit opening count)))))

(defun run-publisher (opening connection)
  "Publishes by CONNECTION until OPENING ends."
  (settle-position opening connection)  ; before the first message of our own
  (let* ((keep-seconds (broker-keep-seconds (opening-broker opening)))
         (period (min 60 (/ keep-seconds 4)))
         (next-deletion (end-after period)))
    (loop until (publisher-done-p opening)
          do (unless (publish-batch opening connection)
               (await-messages opening (/ (milliseconds-left next-deletion) 1000)))
             (when (zerop (milliseconds-left next-deletion))
               (delete-old-messages connection keep-seconds)
               (setf next-deletion (end-after period))))))
