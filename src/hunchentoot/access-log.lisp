(in-package #:hunchentoot-recycling-taskmaster)

;;;; The access log: which requests get a line, when, and who writes it.
;;;;
;;;; In the format :COMBINED a request has its line when its reply begins, as with Hunchentoot.  In
;;;; the others it tells how long the request took, so it is made at the end.
;;;;
;;;; The lines of one destination are written by a journal.  For a file it has a thread, which lives
;;;; while the acceptor runs; what goes to a stream is written at once, in order with what the program
;;;; itself writes there.

(defun check-access-log-function (acceptor)
  "Checks that the format of ACCEPTOR, if it is the name of a function, names one by now."
  (let ((format (access-log-format acceptor)))
    (when (and (symbolp format)
               (not (keywordp format))
               (or (not (fboundp format)) (macro-function format) (special-operator-p format)))
      (hunchentoot:parameter-error "ACCESS-LOG-FORMAT is ~S, which names no function." format))))

;;; The journal

(defparameter *log-patience* 5
  "For how many seconds STOP waits for the last lines of the access log to be written.")

(defun complain (acceptor level control &rest arguments)
  "Tells in the message log of ACCEPTOR what is wrong.  Never signals."
  (let ((engine (acceptor-engine acceptor)))
    (if engine
        (apply #'log-message engine level control arguments)
        (handler-case
            (apply #'hunchentoot:acceptor-log-message acceptor level control arguments)
          (error () nil)))))            ; there is nobody else to be told

(defun make-access-journal (acceptor destination lost)
  "A journal that writes the access log of ACCEPTOR to DESTINATION, where LOST lines are lost
already."
  (make-journal destination
                (format nil "access log ~A" (place-of acceptor))
                (lambda (&rest complaint)
                  (apply #'complain acceptor complaint))
                lost))

(defun writes-to-p (journal destination)
  (and journal (eq destination (journal-destination journal))))

(defun replace-journal (acceptor destination)
  "Makes the journal of ACCEPTOR, unless it is, one for DESTINATION; what the last one has is still
written.  Returns the journal."
  (let ((predecessor nil) (lost 0))
    (bt:with-lock-held ((journal-lock acceptor))
      (let ((journal (acceptor-journal acceptor)))
        (unless (writes-to-p journal destination)
          (setf predecessor journal
                lost (if journal (journal-unwritten journal) 0)
                (acceptor-journal acceptor) (make-access-journal acceptor destination lost)))))
    (when predecessor
      (end-journal acceptor predecessor)
      ;; What it could not write at the end nobody will.
      (lose-lines (acceptor-journal acceptor) (- (journal-unwritten predecessor) lost)))
    (acceptor-journal acceptor)))

(defun end-journal (acceptor journal)
  "Stops JOURNAL, of ACCEPTOR, and tells when it takes too long."
  (unless (stop-journal journal *log-patience*)
    (complain acceptor :warning
              "~A still takes the last lines of the access log; they were left to it."
              (journal-destination journal))))

(defun journal-for (acceptor destination)
  "The journal of ACCEPTOR, which writes to DESTINATION."
  (let ((journal (acceptor-journal acceptor)))
    (if (writes-to-p journal destination)
        journal
        (prog1 (replace-journal acceptor destination)
          (settle-access-log acceptor)))))

(defun lines-lost (acceptor)
  "How many lines of the access log of ACCEPTOR were lost; NIL when nobody counts them."
  (when (typep acceptor 'parallel-acceptor)
    (let ((journal (acceptor-journal acceptor)))
      (if journal (journal-unwritten journal) 0))))

(defgeneric settle-access-log (acceptor)
  (:documentation "Lets the journal of ACCEPTOR run exactly while ACCEPTOR is started and has a
destination.")
  (:method ((acceptor hunchentoot:acceptor))
    nil)                                ; it has none
  (:method ((acceptor parallel-acceptor))
    (let ((destination (hunchentoot:acceptor-access-log-destination acceptor))
          (journal (acceptor-journal acceptor)))
      (cond ((and destination (hunchentoot:started-p acceptor))
             (let ((journal (replace-journal acceptor destination)))
               ;; A stream may be others' too: a line is written to it by who appends it, at once.
               (unless (streamp destination)
                 (start-journal journal))))
            (journal
             (end-journal acceptor journal))))))

(defmethod (setf hunchentoot:acceptor-access-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-access-log acceptor))

(defgeneric reopen-logs (acceptor)
  (:documentation "Writes what the access log of ACCEPTOR has gathered, and returns ACCEPTOR: to be
called after a log file was renamed, as logrotate does.  Every line of a later request, and every
line at all once this has returned, goes to the file that has the name then.  No log file is kept
open, so without this call lines go there too, within about half a second.  Waits for the disk.")
  (:method ((acceptor hunchentoot:acceptor))
    acceptor)                           ; it opens its log for each line
  (:method ((acceptor parallel-acceptor))
    (let ((journal (acceptor-journal acceptor)))
      (when journal
        (flush-journal journal))
      acceptor)))

;;; A request

(defun write-access-line (acceptor destination encode)
  "Writes a line to the access log of ACCEPTOR, at DESTINATION.  ENCODE, a function of an OUTPUT,
appends it to that, and returns NIL when there is to be none.  What goes wrong is counted and told, and
never harms the request."
  (let ((journal (journal-for acceptor destination)))
    (handler-case
        (with-line (line)
          (when (funcall encode line)
            (append-line journal line)))
      (error (condition)
        (lose-line journal condition)))))

(defun log-access (acceptor destination request reply status duration)
  "Writes a line about REQUEST to the access log of ACCEPTOR, at DESTINATION."
  (flet ((encode (line)
           (encode-access line (access-log-format acceptor) request reply status duration)))
    (declare (dynamic-extent #'encode))
    (write-access-line acceptor destination #'encode)))

(defmethod hunchentoot:acceptor-log-access ((acceptor parallel-acceptor) &key return-code)
  "Writes the line that Hunchentoot would write, or one in another :ACCESS-LOG-FORMAT: to a stream at
once, to a file by way of a thread of its own; see REOPEN-LOGS."
  (in-place-of-hunchentoots ((call-next-method)
                             (surroundings-loggers (surroundings-of acceptor))
                             #'hunchentoot:acceptor-log-access (acceptor) :return-code return-code)
    (let ((destination (hunchentoot:acceptor-access-log-destination acceptor)))
      (cond ((null destination))
            ((and *exchange* (exchange-access *exchange*))
             (note-access (exchange-access *exchange*) return-code))
            (t
             (log-access acceptor destination hunchentoot:*request* hunchentoot:*reply*
                         return-code nil))))))

;;; Requests whose line is made at their end

(defstruct (access (:include opaque) (:constructor make-access (began)))
  "A request that is to be logged at its end."
  (began 0 :type integer)               ; in MICROSECONDS
  (request nil)                         ; NIL while its reply has not begun
  (reply nil)
  (status nil))

(defun note-access (access status)
  (setf (access-request access) hunchentoot:*request*
        (access-reply access) hunchentoot:*reply*
        (access-status access) status))

(defun timed-p (acceptor)
  "True when the log of ACCEPTOR tells how long a request took."
  (and (hunchentoot:acceptor-access-log-destination acceptor)
       (typep acceptor 'parallel-acceptor)
       (not (eq :combined (access-log-format acceptor)))))

(defun call-timed (acceptor exchange thunk)
  "Calls THUNK, which serves the request of EXCHANGE.  Where the log of ACCEPTOR tells how long that took,
writes the line about it afterwards, however it ended."
  (if (timed-p acceptor)
      (let ((access (or (and (exchange-deferral exchange) (exchange-access exchange))
                        (make-access (microseconds)))))
        (setf (exchange-access exchange) access)
        (unwind-protect-whole (funcall thunk)
          (unless (or (deferred-p exchange)
                      (not (eq access (exchange-access exchange)))) ; a call within this one has written it
            (setf (exchange-access exchange) nil)
            (finish-access acceptor access))))
      (funcall thunk)))

(defun finish-access (acceptor access)
  "Writes the line of ACCESS, once, if its reply has begun."
  (let ((destination (hunchentoot:acceptor-access-log-destination acceptor))
        (request (shiftf (access-request access) nil)))
    (when (and destination request)
      (log-access acceptor destination request (access-reply access)
                  (access-status access) (- (microseconds) (access-began access))))))
