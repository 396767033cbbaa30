(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; What both threads of an opening do.  The publisher moves messages from the queue to the
;;;; database.  The listener delivers the messages that the database has, in the order of their
;;;; numbers.

(defun settle-position (opening connection)
  "Lets OPENING begin to read after the last message that there is when it is first connected."
  (let ((last-id (ask-value connection "last")))
    (with-state ((opening-broker opening))
      (unless (opening-position opening)
        (setf (opening-position opening) last-id)))))

;;; Publishing

(defparameter *batch-octets* (* 1024 1024)
  "The maximum number of octets in a transaction of several messages.")

(defun publish-batch (opening connection)
  "Moves the first messages of the queue of OPENING to the database.  NIL if there are none."
  (let* ((broker (opening-broker opening))
         (messages (with-state (broker)
                     (loop for message in (opening-messages opening)
                           for count from 1 to 200
                           sum (message-size message) into octets
                           while (or (= count 1) (<= octets *batch-octets*))
                           collect message)))
         (count (length messages)))
    (when messages
      (insert-messages connection (opening-name opening) messages)
      (with-state (broker)
        (loop repeat count
              do (decf (opening-octets opening) (message-size (pop (opening-messages opening)))))
        (count-messages broker :published count)))))

(defun run-publisher (opening connection)
  "Publishes by CONNECTION until OPENING ends."
  (settle-position opening connection)  ; before the first message of our own
  (let* ((broker (opening-broker opening))
         (keep-seconds (broker-keep-seconds broker))
         (period (min 60 (/ keep-seconds 4)))
         (next-deletion (end-after period)))
    (loop until (with-state (broker)
                  (or (closed-p opening)
                      (and (eq :draining (opening-phase opening))
                           (null (opening-messages opening)))))
          do (unless (publish-batch opening connection)
               (wait-until (lambda ()
                             (or (opening-messages opening)
                                 (not (eq :open (opening-phase opening)))))
                           (link-changed (opening-publisher opening)) (broker-state-lock broker)
                           (/ (milliseconds-left next-deletion) 1000) nil))
             (when (zerop (milliseconds-left next-deletion))
               (delete-old-messages connection keep-seconds)
               (setf next-deletion (end-after period))))))

;;; Delivering

(defparameter *look-seconds* 10
  "After so many seconds without a notification a listener asks the database, so that it finds out
when its connection has died.")

(defun catch-up (opening connection)
  "Delivers all messages that OPENING has not read."
  (setf *notified-p* nil)
  (let ((broker (opening-broker opening))
        (last-id (ask-value connection "last")))
    (when (< last-id (opening-position opening))
      (setf (opening-position opening) last-id)
      (report-loss broker :reset nil))
    (loop while (and (< (opening-position opening) last-id)
                     (not (closed-p opening)))
          do (let* ((rows (ask connection "read" (opening-position opening) last-id
                               100 *batch-octets*))
                    (end (if rows (first (first (last rows))) last-id))
                    (missing (- end (opening-position opening) (length rows))))
               (when (plusp missing)
                 (report-loss broker :deleted missing))
               (loop for (id channel payload) in rows
                     until (closed-p opening)
                     do (setf (opening-position opening) id)
                        (handler-case (deliver-message broker (utf-8-text channel) payload)
                          (error (condition)
                            (report broker "A message cannot be read: ~A" condition)
                            (report-loss broker :malformed 1)))
                        (with-state (broker)
                          (count-messages broker :delivered))
                     finally (unless rows
                               (setf (opening-position opening) end)))))))

(defun run-listener (opening connection)
  "Delivers what CONNECTION reads until OPENING ends."
  (execute connection "listen recycling_messages")
  (settle-position opening connection)
  (catch-up opening connection)
  (loop until (closed-p opening)
        ;; A statement may have taken a notification, and yet not have seen its message: PostgreSQL
        ;; sends the notification at the end of a statement whose snapshot is from its beginning.
        do (loop with end = (end-after *look-seconds*)
                 until (or *notified-p*
                           (closed-p opening)
                           (zerop (milliseconds-left end))
                           (await-notification connection *slice-seconds*)))
           (catch-up opening connection)))
