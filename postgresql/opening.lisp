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
;;;; be opened again meanwhile, also while its last opening is draining.  So:
;;;; - Only the listener of the newest opening delivers.  The others end.
;;;; - An opening begins to read after the last message that an earlier one has delivered.
;;;; - CLOSE-BROKER leaves the messages that are being committed to their publisher, which knows
;;;;   whether they are lost.

(defstruct (link (:include opaque) (:copier nil) (:constructor make-link (name)))
  "A thread of an opening, and its connection.  The lock of the broker guards the slots."
  (name nil :type string :read-only t)
  (thread nil)
  (changed (bt:make-condition-variable) :read-only t) ; notified when the thread has to look
  (connected-p nil)
  (away-since nil)                      ; a moment of MILLISECONDS while it was reported as away
  (connections 0 :type unsigned-byte))  ; how often it was connected

(defstruct (opening (:include opaque) (:copier nil) (:constructor %make-opening (broker queue)))
  "What BROKER has from OPEN-BROKER to the end of CLOSE-BROKER.  Its lock guards the slots."
  (broker nil :read-only t)
  (name (format nil "~36R" (random (expt 2 128) (make-random-state t))) ; in the database
   :read-only t)
  (opened-at (microseconds) :read-only t)
  (publisher (make-link "publisher") :read-only t)
  (listener (make-link "listener") :read-only t)
  (queue nil :type queue :read-only t)
  (phase :open :type (member :open :draining :closed))
  (sequence 0 :type unsigned-byte)      ; the number of messages that the queue has taken
  (late-through 0 :type unsigned-byte)  ; up to here they were published without a database
  (committing 0 :type unsigned-byte)    ; how many of the queue the database may have already
  (earlier-position 0 :type integer)    ; earlier openings have delivered up to here
  (position nil :type (or null integer))) ; the last message that was delivered; NIL at first

(defun make-opening (broker)
  (%make-opening broker (make-queue (broker-queue-octets broker))))

;;; These may be called with and without the lock.

(defun closed-p (opening)
  (eq :closed (opening-phase opening)))

(defun delivers-p (opening)
  "True if the listener of OPENING may deliver."
  (and (not (closed-p opening))
       (eq opening (broker-opening (opening-broker opening)))))

(defun last-position (opening)
  "The number of the last message that OPENING or an earlier one has delivered, as far as it knows."
  (or (opening-position opening) (opening-earlier-position opening)))

;;; Phases

(defun begin-opening (broker)
  "Makes a new opening of BROKER the newest one, and returns it; NIL if one is open."
  (let ((new (make-opening broker)))
    (with-state (broker)
      (let ((old (broker-opening broker)))
        (unless (and old (eq :open (opening-phase old)))
          (when old
            (setf (opening-earlier-position new) (last-position old)))
          (setf (broker-opening broker) new))))))

(defun enter-phase (opening phase)
  "Makes PHASE that of OPENING unless it is closed, and has its threads look."
  (with-state ((opening-broker opening))
    (unless (closed-p opening)
      (setf (opening-phase opening) phase)
      (bt:condition-notify (link-changed (opening-publisher opening)))
      (bt:condition-notify (link-changed (opening-listener opening))))))

(defun connected-p (opening)
  "True if both connections of OPENING are there, as far as is known."
  (and (link-connected-p (opening-publisher opening))
       (link-connected-p (opening-listener opening))))

;;; The queue

(defun queue-message (opening channel payload)
  "Puts a message, octets, for CHANNEL, octets, into the queue of OPENING; NIL if there is no room.
Call it with the lock held."
  (when (put-in-queue (opening-queue opening)
                      (make-message (1+ (opening-sequence opening)) channel payload))
    (incf (opening-sequence opening))
    (bt:condition-notify (link-changed (opening-publisher opening)))
    t))

(defun begin-commit (opening count)
  "Notes that the first COUNT messages of OPENING are being committed.  NIL if it is closed."
  (with-state ((opening-broker opening))
    (unless (closed-p opening)
      (setf (opening-committing opening) count))))

(defun end-commit (opening count)
  "Notes that the database has the first COUNT messages of OPENING."
  (let ((broker (opening-broker opening)))
    (with-state (broker)
      (take-from-queue (opening-queue opening) count)
      (setf (opening-committing opening) 0)
      (count-messages broker :published count))))

(defun abandon-queue (opening)
  "Empties the queue of OPENING, which is closed, except for messages that are being committed.
Reports those as lost."
  (let* ((broker (opening-broker opening))
         (count (with-state (broker)
                  (keep-in-queue (opening-queue opening) (opening-committing opening)))))
    (when (plusp count)
      (report-loss broker :closed count))))

(defun abandon-commit (opening)
  "Notes that the publisher of OPENING has ended, and commits nothing any more."
  (with-state ((opening-broker opening))
    (setf (opening-committing opening) 0))
  (when (closed-p opening)
    (abandon-queue opening)))
