(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; An opening: the time from OPEN-BROKER to the end of CLOSE-BROKER.  It has a queue, a position,
;;;; a name in the database and two threads of its own, each with a connection.  The publisher moves
;;;; messages from the queue to the database.  The listener reads the messages of all processes, its
;;;; own among them, and delivers them.
;;;;
;;;;   OPENING-PHASE   PUBLISH-MESSAGE   the publisher                    the listener
;;;;   :open           queues            publishes                        delivers
;;;;   :draining       refuses           publishes the rest, then ends    delivers
;;;;   :closed         refuses           ends                             ends
;;;;
;;;; A thread may wait for the database for a while after its opening was closed, and the broker may
;;;; be opened again meanwhile.  The threads of the next opening first wait for the end of those of
;;;; the last one, so that only one listener delivers.

(defparameter *slice-seconds* 1/2
  "How long a listener waits before it looks whether its broker was closed.")

(defstruct (link (:include opaque) (:copier nil) (:constructor make-link (name)))
  "A thread of an opening, and its connection.  The lock of the broker guards the slots."
  (name nil :type string :read-only t)
  (thread nil)
  (changed (bt:make-condition-variable) :read-only t) ; notified when the thread has to look
  (connected-p nil)
  (away-since nil))                     ; a moment of MILLISECONDS while it was reported as away

(defstruct (opening (:include opaque) (:copier nil) (:constructor make-opening (broker)))
  "What BROKER has from OPEN-BROKER to the end of CLOSE-BROKER.  Its lock guards the slots."
  (broker nil :read-only t)
  (name (format nil "~36R" (random (expt 2 128) (make-random-state t))) ; in the database
   :read-only t)
  (publisher (make-link "publisher") :read-only t)
  (listener (make-link "listener") :read-only t)
  (messages '() :type list)             ; those that wait for the database, the oldest first
  (last '() :type list)                 ; the last cons of MESSAGES
  (octets 0 :type unsigned-byte)        ; of MESSAGES
  (phase :open :type (member :open :draining :closed))
  (sequence 0 :type unsigned-byte)      ; the number of the last message
  (position nil :type (or null integer))) ; the last message that was delivered; NIL at first

;;; These may be called with and without the lock.

(defun closed-p (opening)
  (eq :closed (opening-phase opening)))

(defun connected-p (opening)
  "True if both connections of OPENING are there, as far as is known."
  (and (link-connected-p (opening-publisher opening))
       (link-connected-p (opening-listener opening))))

;;; Its end

(defun close-opening (opening timeout)
  "Closes OPENING as CLOSE-BROKER does with TIMEOUT."
  (let ((end (end-after timeout))
        (publisher (opening-publisher opening))
        (listener (opening-listener opening)))
    (flet ((enter (phase)               ; and have the threads look
             (with-state ((opening-broker opening))
               (unless (closed-p opening)
                 (setf (opening-phase opening) phase)
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

;;; The connections of both threads, which come and go with the database

(defun keep-connected (opening link run)
  "The life of the thread of LINK of OPENING: connects it, and calls RUN with OPENING and the
connection; again after each error, a while later, until RUN returns or OPENING is closed.  The
while is random, so that many processes do not come at the same time."
  (let ((broker (opening-broker opening)))
    (flet ((run-connected (connection)
             (let ((since (with-state (broker)
                            (setf (link-connected-p link) t)
                            (shiftf (link-away-since link) nil))))
               (when since
                 (report broker "The ~A is connected again after ~,1F seconds." (link-name link)
                         (/ (- (milliseconds) since) 1000))))
             (funcall run opening connection)
             (return-from keep-connected)))
      (loop until (closed-p opening)
            do (handler-case
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
                     (report broker "The ~A has no database: ~A" (link-name link) condition))))
               (wait-until (lambda () (closed-p opening))
                           (link-changed link) (broker-state-lock broker)
                           (+ 1/10 (random 1.0)) nil)))))

(defun start-link (opening link run earlier)
  "Makes the thread of LINK of OPENING, which calls RUN.  EARLIER is the opening before, or NIL."
  (flet ((live ()
           (when earlier
             (dolist (link (list (opening-publisher earlier) (opening-listener earlier)))
               (when (link-thread link)
                 (join-thread (link-thread link) nil))))
           (unwind-protect (keep-connected opening link run)
             (with-state ((opening-broker opening))
               (setf (link-connected-p link) nil))
             (when (eq link (opening-publisher opening))
               (let ((lost (with-state ((opening-broker opening))
                             (setf (opening-octets opening) 0)
                             (length (shiftf (opening-messages opening) '())))))
                 (when (plusp lost)
                   (report-loss (opening-broker opening) :closed lost)))))))
    (setf (link-thread link)
          (call-making-thread
           (lambda ()
             (bt:make-thread #'live :name (format nil "broker-~A" (link-name link))))))))

;;; What a program calls

(defmethod publish-message ((broker postgresql-broker) name octets)
  (let* ((channel (utf-8-octets name))
         (payload (coerce octets '(simple-array octet (*))))
         (loss (with-state (broker)
                 (let* ((opening (broker-opening broker))
                        (message (make-message (if opening (incf (opening-sequence opening)) 0)
                                               channel payload))
                        (new (list message)))
                   (cond ((not (and opening (eq :open (opening-phase opening))))
                          :closed)
                         ((> (+ (opening-octets opening) (message-size message))
                             (broker-queue-octets broker))
                          :refused)
                         (t
                          (if (opening-messages opening)
                              (setf (cdr (opening-last opening)) new)
                              (setf (opening-messages opening) new))
                          (setf (opening-last opening) new)
                          (incf (opening-octets opening) (message-size message))
                          (bt:condition-notify (link-changed (opening-publisher opening)))
                          nil))))))
    (when loss
      (report-loss broker loss 1))
    (null loss)))

(defmethod open-broker ((broker postgresql-broker) &key (timeout 5))
  (let* ((new (make-opening broker))
         (old nil)
         (opening (with-state (broker)
                    (setf old (broker-opening broker))
                    (if (and old (eq :open (opening-phase old)))
                        old
                        (setf (broker-opening broker) new)))))
    (when (eq new opening)
      (unless-returned (progn
                         (start-link new (opening-publisher new) 'run-publisher old)
                         (start-link new (opening-listener new) 'run-listener old))
        (close-opening new 5)))         ; there are no threads to be had
    (wait-until (lambda () (and (opening-position opening) (connected-p opening)))
                (bt:make-condition-variable) (broker-state-lock broker) timeout 1/50))
  broker)

(defmethod close-broker ((broker postgresql-broker) &key (timeout 5))
  (let ((opening (broker-opening broker)))
    (or (null opening)
        (close-opening opening timeout))))

(defmethod broker-stats ((broker postgresql-broker))
  (with-state (broker)
    (let ((opening (broker-opening broker)))
      (list* :connected-p (and opening (connected-p opening) t)
             :queued (if opening (length (opening-messages opening)) 0)
             :queued-octets (if opening (opening-octets opening) 0)
             (copy-list (broker-counts broker))))))
