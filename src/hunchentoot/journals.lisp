(in-package #:hunchentoot-recycling-taskmaster)

;;;; The journals of an acceptor, which write the access log and the message log.
;;;;
;;;; A journal writes the lines for one destination, of both logs where these have the same.  It has
;;;; a thread while the acceptor runs.  When the destination blocks, as a full disk or a pipe
;;;; without a reader does, lines are lost and counted, but no reply and no worker waits.

(defun log-destination (acceptor log)
  "The destination of LOG, :ACCESS or :MESSAGES, of ACCEPTOR: a pathname designator, a stream, or
NIL."
  (ecase log
    (:access (hunchentoot:acceptor-access-log-destination acceptor))
    (:messages (hunchentoot:acceptor-message-log-destination acceptor))))

(declaim (inline log-journal))
(defun log-journal (acceptor log)
  "The current or last journal of LOG, :ACCESS or :MESSAGES, of ACCEPTOR, or NIL."
  (ecase log
    (:access (acceptor-journal acceptor))
    (:messages (acceptor-message-journal acceptor))))

(defun (setf log-journal) (journal acceptor log)
  (ecase log
    (:access (setf (acceptor-journal acceptor) journal))
    (:messages (setf (acceptor-message-journal acceptor) journal))))

(defun all-journals (acceptor)
  "A list of the journals of ACCEPTOR, at most two."
  (remove-duplicates (remove nil (list (acceptor-journal acceptor)
                                       (acceptor-message-journal acceptor)))))

(defun complain (acceptor level control &rest arguments)
  "Logs the message of CONTROL and ARGUMENTS, at LEVEL, for ACCEPTOR.  Never signals."
  (let ((engine (server-engine acceptor)))
    (if engine
        (apply #'log-message engine level control arguments)
        (handler-case
            (apply #'hunchentoot:acceptor-log-message acceptor level control arguments)
          (error () nil)))))            ; there is no other place to report it

(defun make-log-journal (acceptor destination)
  "A journal for DESTINATION, the destination of a log of ACCEPTOR."
  (make-journal destination
                (format nil "log of ~A" (place-of acceptor))
                (lambda (&rest complaint)
                  (apply #'complain acceptor complaint))))

(declaim (inline writes-to-p))
(defun writes-to-p (journal destination)
  (and journal (eq destination (journal-destination journal))))

(defun replace-journal (acceptor log destination)
  "Gives LOG of ACCEPTOR a journal for DESTINATION, unless it has one, and returns it.  The old
journal still writes its lines."
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
      ;; Lines that it could not write at its end are lost.
      (let ((lost (journal-unwritten predecessor)))
        (with-lock-briefly ((journal-lock acceptor))
          (incf (acceptor-lines-lost acceptor) lost))))
    (log-journal acceptor log)))

(defun journal-for (acceptor log destination)
  "The journal of LOG, :ACCESS or :MESSAGES, of ACCEPTOR, for DESTINATION."
  (let ((journal (log-journal acceptor log)))
    (if (writes-to-p journal destination)
        journal
        (prog1 (replace-journal acceptor log destination)
          (settle-logs acceptor)))))

(defun lines-lost (acceptor)
  "How many lines of the logs of ACCEPTOR were lost; NIL where they are not counted."
  (when (typep acceptor 'parallel-acceptor)
    (reduce #'+ (all-journals acceptor)
            :key #'journal-unwritten :initial-value (acceptor-lines-lost acceptor))))

(defun journals-wanted (acceptor)
  "A list of the journals that ACCEPTOR needs while it is started.  Replaces those for other
destinations."
  (remove-duplicates
   (loop for log in '(:access :messages)
         for destination = (log-destination acceptor log)
         when destination
           collect (replace-journal acceptor log destination))))

(defgeneric settle-logs (acceptor)
  (:documentation "Starts the journals of ACCEPTOR if that is started, and ends those that it does
not need.")
  (:method ((acceptor hunchentoot:acceptor))
    nil)                                ; it has no journals
  (:method ((acceptor parallel-acceptor))
    (let ((wanted (and (hunchentoot:started-p acceptor) (journals-wanted acceptor))))
      (mapc #'start-journal wanted)
      (mapc #'end-journal (set-difference (all-journals acceptor) wanted)))))

(defun check-access-log-folder (acceptor)
  "Complains if the access log of ACCEPTOR is to be in a folder that does not exist."
  (let ((destination (hunchentoot:acceptor-access-log-destination acceptor)))
    (unless (or (typep destination '(or null stream))
                (uiop:directory-exists-p (uiop:pathname-directory-pathname destination)))
      (complain acceptor :error "The folder of the access log, ~A, does not exist." destination))))

(defmethod (setf hunchentoot:acceptor-access-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-logs acceptor))

(defmethod (setf hunchentoot:acceptor-message-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-logs acceptor))

(defgeneric reopen-logs (acceptor)
  (:documentation "Writes the pending lines of the logs of ACCEPTOR, and returns ACCEPTOR.  Call it
after a log file was renamed, as logrotate does: lines of later requests, and all lines after the
return, go to the new file of that name.  Since log files are not kept open, lines go there without
this call too, after about half a second.  Waits for the disk.")
  (:method ((acceptor hunchentoot:acceptor))
    acceptor)                           ; it opens its log for each line
  (:method ((acceptor parallel-acceptor))
    (mapc #'flush-journal (all-journals acceptor))
    acceptor))
