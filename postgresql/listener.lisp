(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; The listener delivers the messages that the database has, in the order of their numbers.

;;; Where to begin

(defun opening-moment (opening connection)
  "When OPENING was opened, by the clock of the database, in microseconds; or a bit earlier: by as
long as the fastest of three answers took."
  (loop repeat 3
        maximize (let ((now (ask-value connection "now")))
                   (- now (- (microseconds) (opening-opened-at opening))))))

(defun settle-position (opening connection)
  "Lets OPENING begin to read after the last message before it was opened."
  (unless (opening-position opening)
    (let ((position (ask-value connection "before" (opening-moment opening connection))))
      (with-state ((opening-broker opening))
        (unless (opening-position opening)
          (setf (opening-position opening)
                (max position (opening-earlier-position opening))))))))

;;; Reading and delivering

(defun move-position (opening position)
  "Makes POSITION that of OPENING.  NIL if OPENING delivers no more."
  (with-state ((opening-broker opening))
    (when (delivers-p opening)
      (setf (opening-position opening) position))))

(defun note-delivery (broker late-p)
  (with-state (broker)
    (count-messages broker :delivered)
    (when late-p
      (count-messages broker :late))))

(defun deliver-row (opening row late-p)
  "Delivers the message of ROW, as the statement \"read\" returns it.  NIL if OPENING delivers no
more."
  (destructuring-bind (id channel payload marked-late-p) row
    (when (move-position opening id)    ; before the delivery: a newer opening begins behind it
      (let ((broker (opening-broker opening)))
        (handler-case (deliver-message broker (utf-8-text channel) payload)
          (error (condition)
            (report broker "A message cannot be read: ~A" condition)
            (report-loss broker :malformed 1)))
        (note-delivery broker (or late-p marked-late-p)))
      t)))

(defparameter *rows* 100
  "The maximum number of messages that a process reads at a time.")

(defparameter *read-octets* (* 1024 1024)
  "The maximum number of octets of several messages that a process reads at a time.")

(defun deliver-rows (opening rows late-p end)
  "Delivers the messages of ROWS, which are all up to the number END that the database has."
  (let ((missing (- end (opening-position opening) (length rows))))
    (when (plusp missing)
      (report-loss (opening-broker opening) :deleted missing))
    (when (loop for row in rows
                always (deliver-row opening row late-p))
      (move-position opening end))))

(defun read-messages (opening connection last-id late-p)
  "Delivers some of the messages up to LAST-ID that OPENING has not read."
  (let ((rows (ask connection "read" (opening-position opening) last-id *rows* *read-octets*)))
    (when (delivers-p opening)
      (deliver-rows opening rows late-p (if rows (first (first (last rows))) last-id)))))

(defun catch-up (opening connection late-p)
  "Delivers all messages that OPENING has not read."
  (setf *notified-p* nil)
  (let ((last-id (ask-value connection "last")))
    (when (and (< last-id (opening-position opening))
               (move-position opening last-id))
      (report-loss (opening-broker opening) :reset nil))
    (loop while (and (< (opening-position opening) last-id)
                     (delivers-p opening))
          do (read-messages opening connection last-id late-p))))

;;; Waiting

(defparameter *look-seconds* 10
  "After so many seconds without a notification a listener asks the database, so that it finds out
when its connection has died.")

(defparameter *slice-seconds* 1/2
  "How long a listener waits before it looks whether its broker was closed.")

(defun await-news (opening connection)
  "Waits until CONNECTION has a notification, or it is time to ask without one, or OPENING ends.
A statement may have taken a notification, and yet not have seen its message: PostgreSQL sends the
notification at the end of a statement whose snapshot is from its beginning."
  (loop with end = (end-after *look-seconds*)
        until (or *notified-p*
                  (not (delivers-p opening))
                  (zerop (milliseconds-left end))
                  (await-notification connection *slice-seconds*))))

(defun run-listener (opening connection)
  "Delivers what CONNECTION reads until OPENING ends."
  (execute connection "listen recycling_messages")
  (settle-position opening connection)
  (catch-up opening connection (< 1 (link-connections (opening-listener opening))))
  (loop while (delivers-p opening)
        do (await-news opening connection)
           (catch-up opening connection nil)))
