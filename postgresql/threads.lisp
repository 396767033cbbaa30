(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; From OPEN-BROKER to the end of CLOSE-BROKER, a broker has two threads, each with a connection.
;;;; The publisher moves messages from the queue to the database.  The listener delivers the
;;;; messages of all processes, its own among them, in the order of their numbers.
;;;;
;;;;   BROKER-PHASE   PUBLISH-MESSAGE   the publisher                    the listener
;;;;   :open          queues            publishes                        delivers
;;;;   :draining      refuses           publishes the rest, then ends    delivers
;;;;   :closed        refuses           ends                             ends
;;;;
;;;; A thread may wait for the database for a while after its broker was closed; OPEN-BROKER waits
;;;; for it, so that only one listener delivers.

(defparameter *slice-seconds* 1/2
  "How long a listener waits before it looks whether its broker was closed.")

;;; These may be called with and without the lock.

(defun closed-p (broker)
  (eq :closed (broker-phase broker)))

(defun connected-p (broker)
  "True if both connections of BROKER are there, as far as is known."
  (and (link-connected-p (broker-publisher broker))
       (link-connected-p (broker-listener broker))))

(defun settle-position (broker connection)
  "Lets BROKER begin to read after the last message that there is when it is first connected."
  (let ((last-id (ask-value connection "last")))
    (with-state (broker)
      (unless (broker-position broker)
        (setf (broker-position broker) last-id)))))

;;; Publishing

(defparameter *batch-octets* (* 1024 1024)
  "The maximum number of octets in a transaction of several messages.")

(defun run-publisher (broker connection)
  "Publishes by CONNECTION until BROKER is closed."
  (settle-position broker connection)   ; before the first message of our own
  (let* ((keep-seconds (broker-keep-seconds broker))
         (period (min 60 (/ keep-seconds 4)))
         (next-deletion (end-after period)))
    (loop until (with-state (broker)
                  (or (closed-p broker)
                      (and (eq :draining (broker-phase broker))
                           (null (broker-messages broker)))))
          do (let ((messages (with-state (broker)
                               (loop for message in (broker-messages broker)
                                     for count from 1 to 200
                                     sum (message-size message) into octets
                                     while (or (= count 1) (<= octets *batch-octets*))
                                     collect message))))
               (cond (messages
                      (insert-messages connection (broker-name broker) messages)
                      (with-state (broker)
                        (count-messages broker :published (length messages))
                        (dolist (message messages)
                          (decf (broker-octets broker) (message-size message))
                          (pop (broker-messages broker)))))
                     (t
                      (wait-until (lambda ()
                                    (or (broker-messages broker)
                                        (not (eq :open (broker-phase broker)))))
                                  (link-changed (broker-publisher broker))
                                  (broker-state-lock broker)
                                  (/ (milliseconds-left next-deletion) 1000) nil))))
             (when (zerop (milliseconds-left next-deletion))
               (delete-old-messages connection keep-seconds)
               (setf next-deletion (end-after period))))))

;;; Delivering

(defparameter *look-seconds* 10
  "After so many seconds without a notification a listener asks the database, so that it finds out
when its connection has died.")

(defun catch-up (broker connection)
  "Delivers all messages that BROKER has not read."
  (setf *notified-p* nil)
  (let ((last-id (ask-value connection "last")))
    (when (< last-id (broker-position broker))
      (setf (broker-position broker) last-id)
      (report-loss broker :reset nil))
    (loop while (and (< (broker-position broker) last-id)
                     (not (closed-p broker)))
          do (let* ((rows (ask connection "read" (broker-position broker) last-id
                               100 *batch-octets*))
                    (end (if rows (first (first (last rows))) last-id))
                    (missing (- end (broker-position broker) (length rows))))
               (when (plusp missing)
                 (report-loss broker :deleted missing))
               (loop for (id channel payload) in rows
                     until (closed-p broker)
                     do (setf (broker-position broker) id)
                        (handler-case (deliver-message broker (utf-8-text channel) payload)
                          (error (condition)
                            (report broker "A message cannot be read: ~A" condition)
                            (report-loss broker :malformed 1)))
                        (with-state (broker)
                          (count-messages broker :delivered))
                     finally (unless rows
                               (setf (broker-position broker) end)))))))

(defun run-listener (broker connection)
  "Delivers what CONNECTION reads until BROKER is closed."
  (execute connection "listen recycling_messages")
  (settle-position broker connection)
  (catch-up broker connection)
  (loop until (closed-p broker)
        ;; A statement may have taken a notification, and yet not have seen its message: PostgreSQL
        ;; sends the notification at the end of a statement whose snapshot is from its beginning.
        do (loop with end = (end-after *look-seconds*)
                 until (or *notified-p*
                           (closed-p broker)
                           (zerop (milliseconds-left end))
                           (await-notification connection *slice-seconds*)))
           (catch-up broker connection)))

;;; The connections of both threads, which come and go with the database

(defun start-link (broker link run)
  "Makes the thread of LINK of BROKER.  It connects, and calls RUN with BROKER and the connection;
again after each error, a while later, until RUN returns or BROKER is closed.  The while is random,
so that many processes do not come at the same time."
  (labels ((run-connected (connection)
             (let ((since (with-state (broker)
                            (setf (link-connected-p link) t)
                            (shiftf (link-away-since link) nil))))
               (when since
                 (report broker "The ~A is connected again after ~,1F seconds." (link-name link)
                         (/ (- (milliseconds) since) 1000))))
             (funcall run broker connection)
             t)
           (done-p ()
             (handler-case
                 (call-with-connection (list (broker-database broker) (broker-user broker)
                                             (broker-password broker) (broker-host broker)
                                             (broker-port broker) (broker-use-ssl broker)
                                             "postgres" "hunchentoot-recycling-taskmaster")
                                       #'run-connected)
               (error (condition)
                 (when (with-state (broker)
                         (setf (link-connected-p link) nil)
                         (unless (link-away-since link)
                           (setf (link-away-since link) (milliseconds))))
                   (report broker "The ~A has no database: ~A" (link-name link) condition))
                 nil)))
           (live ()
             (unwind-protect
                  (loop until (or (closed-p broker) (done-p))
                        do (wait-until (lambda () (closed-p broker))
                                       (link-changed link) (broker-state-lock broker)
                                       (+ 1/10 (random 1.0)) nil))
               (let ((lost (with-state (broker)
                             (setf (link-connected-p link) nil)
                             (cond ((eq link (broker-publisher broker))
                                    (setf (broker-octets broker) 0)
                                    (length (shiftf (broker-messages broker) '())))
                                   (t 0)))))
                 (when (plusp lost)
                   (report-loss broker :closed lost))))))
    (setf (link-thread link)
          (call-making-thread
           (lambda ()
             (bt:make-thread #'live :name (format nil "broker-~A" (link-name link))))))))

;;; What a program calls

(defmethod publish-message ((broker postgresql-broker) name octets)
  (let* ((channel (utf-8-octets name))
         (payload (coerce octets '(simple-array octet (*))))
         (loss (with-state (broker)
                 (let* ((message (make-message (incf (broker-sequence broker)) channel payload))
                        (new (list message)))
                   (cond ((not (eq :open (broker-phase broker)))
                          :closed)
                         ((> (+ (broker-octets broker) (message-size message))
                             (broker-queue-octets broker))
                          :refused)
                         (t
                          (if (broker-messages broker)
                              (setf (cdr (broker-last broker)) new)
                              (setf (broker-messages broker) new))
                          (setf (broker-last broker) new)
                          (incf (broker-octets broker) (message-size message))
                          (bt:condition-notify (link-changed (broker-publisher broker)))
                          nil))))))
    (when loss
      (report-loss broker loss 1))
    (null loss)))

(defmethod open-broker ((broker postgresql-broker) &key (timeout 5))
  (let ((publisher (broker-publisher broker))
        (listener (broker-listener broker)))
    (unless (eq :open (broker-phase broker))
      (close-broker broker)
      (dolist (link (list publisher listener))
        (when (link-thread link)
          (join-thread (link-thread link) nil)))
      (when (with-state (broker)
              (when (closed-p broker)   ; another thread may have opened it
                (setf (broker-position broker) nil
                      (broker-phase broker) :open)))
        (unless-returned (progn (start-link broker publisher 'run-publisher)
                                (start-link broker listener 'run-listener))
          (close-broker broker))))      ; there are no threads to be had
    (wait-until (lambda () (and (broker-position broker) (connected-p broker)))
                (bt:make-condition-variable) (broker-state-lock broker) timeout 1/50))
  broker)

(defmethod close-broker ((broker postgresql-broker) &key (timeout 5))
  (let ((end (end-after timeout))
        (publisher (broker-publisher broker))
        (listener (broker-listener broker)))
    (flet ((enter (phase)               ; and have the threads look
             (with-state (broker)
               (unless (closed-p broker)
                 (setf (broker-phase broker) phase)
                 (bt:condition-notify (link-changed publisher))
                 (bt:condition-notify (link-changed listener)))))
           (ended-p (link end)
             (let ((thread (link-thread link)))
               (or (null thread)
                   (join-thread thread (/ (milliseconds-left end) 1000))))))
      (enter :draining)
      (ended-p publisher end)
      (enter :closed)
      ;; A listener that is well needs a moment.
      (let ((end (max end (end-after (* 2 *slice-seconds*)))))
        (and (ended-p publisher end) (ended-p listener end))))))

(defmethod broker-stats ((broker postgresql-broker))
  (with-state (broker)
    (list* :connected-p (and (connected-p broker) t)
           :queued (length (broker-messages broker))
           :queued-octets (broker-octets broker)
           (copy-list (broker-counts broker)))))
