(in-package #:hunchentoot-recycling-taskmaster)

;;;; Who writes the access log and the message log.
;;;;
;;;; The lines for a destination are written by a journal, one for both logs where these go to the
;;;; same.  It has a thread, which lives while the acceptor runs: a destination that takes nothing,
;;;; a full disk or the pipe of a reader who has stopped, costs lines, which are counted, and never
;;;; a reply or a worker.

(defun log-destination (acceptor log)
  "Where the LOG of ACCEPTOR, :ACCESS or :MESSAGES, goes: a pathname designator, a stream, or NIL."
  (ecase log
    (:access (hunchentoot:acceptor-access-log-destination acceptor))
    (:messages (hunchentoot:acceptor-message-log-destination acceptor))))

(declaim (inline log-journal))
(defun log-journal (acceptor log)
  "What writes the LOG of ACCEPTOR, :ACCESS or :MESSAGES, or wrote it last; or NIL."
  (ecase log
    (:access (acceptor-journal acceptor))
    (:messages (acceptor-message-journal acceptor))))

(defun (setf log-journal) (journal acceptor log)
  (ecase log
    (:access (setf (acceptor-journal acceptor) journal))
    (:messages (setf (acceptor-message-journal acceptor) journal))))

(defun all-journals (acceptor)
  "The journals of ACCEPTOR, a list of no, one or two."
  (remove-duplicates (remove nil (list (acceptor-journal acceptor)
                                       (acceptor-message-journal acceptor)))))

(defun complain (acceptor level control &rest arguments)
  "Tells in the message log of ACCEPTOR what is wrong.  Never signals."
  (let ((engine (acceptor-engine acceptor)))
    (if engine
        (apply #'log-message engine level control arguments)
        (handler-case
            (apply #'hunchentoot:acceptor-log-message acceptor level control arguments)
          (error () nil)))))            ; there is nobody else to be told

(defun make-log-journal (acceptor destination)
  "A journal that writes to DESTINATION, of a log of ACCEPTOR."
  (make-journal destination
                (format nil "log of ~A" (place-of acceptor))
                (lambda (&rest complaint)
                  (apply #'complain acceptor complaint))))

(declaim (inline writes-to-p))
(defun writes-to-p (journal destination)
  (and journal (eq destination (journal-destination journal))))

(defun replace-journal (acceptor log destination)
  "Makes the journal of the LOG of ACCEPTOR, unless it is, one for DESTINATION; what the last one
has is still written.  Returns the journal."
  (let ((predecessor nil))
    (with-lock-briefly ((journal-lock acceptor))
      (let ((journal (log-journal acceptor log)))
        (unless (writes-to-p journal destination)
          (setf (log-journal acceptor log)
                (or (find-if (lambda (other) (writes-to-p other destination))
                             (all-journals acceptor))
                    (make-log-journal acceptor destination)))
          (unless (member journal (all-journals acceptor))
            (setf predecessor journal)))))
    (when predecessor
      (end-journal predecessor)
      ;; What it could not write at the end nobody will.
      (let ((lost (journal-unwritten predecessor)))
        (with-lock-briefly ((journal-lock acceptor))
          (incf (acceptor-lines-lost acceptor) lost))))
    (log-journal acceptor log)))

(defun journal-for (acceptor log destination)
  "The journal of the LOG of ACCEPTOR, :ACCESS or :MESSAGES, which writes to DESTINATION."
  (let ((journal (log-journal acceptor log)))
    (if (writes-to-p journal destination)
        journal
        (prog1 (replace-journal acceptor log destination)
          (settle-logs acceptor)))))

(defun lines-lost (acceptor)
  "How many lines of the logs of ACCEPTOR were lost; NIL when nobody counts them."
  (when (typep acceptor 'parallel-acceptor)
    (reduce #'+ (all-journals acceptor)
            :key #'journal-unwritten :initial-value (acceptor-lines-lost acceptor))))

(defun journals-wanted (acceptor)
  "The journals that write for ACCEPTOR while it is started, a list; replaces those of other
destinations."
  (remove-duplicates
   (loop for log in '(:access :messages)
         for destination = (log-destination acceptor log)
         when destination
           collect (replace-journal acceptor log destination))))

(defgeneric settle-logs (acceptor)
  (:documentation "Lets the journals of ACCEPTOR run exactly while ACCEPTOR is started and has a
destination for them.")
  (:method ((acceptor hunchentoot:acceptor))
    nil)                                ; it has none
  (:method ((acceptor parallel-acceptor))
    (let ((wanted (and (hunchentoot:started-p acceptor) (journals-wanted acceptor))))
      (mapc #'start-journal wanted)
      (mapc #'end-journal (set-difference (all-journals acceptor) wanted)))))

(defmethod (setf hunchentoot:acceptor-access-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-logs acceptor))

(defmethod (setf hunchentoot:acceptor-message-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-logs acceptor))

(defgeneric reopen-logs (acceptor)
  (:documentation "Writes what the logs of ACCEPTOR have gathered, and returns ACCEPTOR: to be
called after a log file was renamed, as logrotate does.  Every line of a later request, and every
line at all once this has returned, goes to the file that has the name then.  No log file is kept
open, so without this call lines go there too, within about half a second.  Waits for the disk.")
  (:method ((acceptor hunchentoot:acceptor))
    acceptor)                           ; it opens its log for each line
  (:method ((acceptor parallel-acceptor))
    (mapc #'flush-journal (all-journals acceptor))
    acceptor))
