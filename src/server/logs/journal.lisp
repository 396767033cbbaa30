(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A journal writes lines to a file or a stream in a thread of its own, so that no other thread
;;;; waits for a disk, or for the reader of a pipe.
;;;;
;;;;   phase     an appended line is written by   becomes     by
;;;;   :off      the thread that appends it        :running    START-JOURNAL
;;;;   :running  the thread of the journal,        :ending     END-JOURNAL
;;;;             within half a second
;;;;   :ending   the thread of the journal         :off        that thread, when no line is left
;;;;                                               :running    START-JOURNAL
;;;;
;;;; So no line is refused, and stopping loses none, however late it comes.
;;;;
;;;; A file is opened for each batch and closed after it, so that the next batch after a rotation
;;;; goes to the new file.  Threads that write to one destination take its lock.
;;;;
;;;; GATHERED, LOST, TROUBLE-P and PHASE change under the lock of the journal, which is held for a
;;;; few instructions.

(defparameter *log-patience* 5
  "How many seconds, a real, END-JOURNAL waits until the last lines were written.")

(defvar *destination-locks* '()
  "An alist of destinations and locks, which threads of this process hold while they write there.")

(defvar *destination-locks-lock* (bt:make-lock "destinations of logs"))

(defun lock-of-destination (destination)
  (with-lock-briefly (*destination-locks-lock*)
    (cdr (or (assoc destination *destination-locks* :test #'equal)
             (first (push (cons destination (bt:make-lock "log")) *destination-locks*))))))

(defstruct (journal (:include opaque) (:constructor make-journal (destination application)))
  "A writer of lines to DESTINATION.  The log of APPLICATION gets failures."
  (destination nil :read-only t)        ; a pathname designator or a stream of characters
  (application nil :read-only t)
  (writing (lock-of-destination destination) :read-only t)
  (lock (bt:make-lock "journal") :read-only t)
  (wanted (bt:make-condition-variable) :read-only t) ; its thread has work
  (phase :off :type (member :off :running :ending))
  (thread nil)
  (gathered (make-output) :type output) ; what is to be written
  (lost 0 :type integer)                ; lines that are lost
  (trouble-p nil))                      ; writing fails or blocks, and that is to be told or was

(defun lines-in (output)
  (count 10 (the octets (output-octets output)) :end (output-fill output)))

(defun append-line (journal line)
  "Has JOURNAL write LINE, an OUTPUT that ends in a line feed.  Its thread does so soon; then this
function does not wait for the destination.  If there is no thread, writes LINE at once."
  (declare (type journal journal) (type output line) #.*plain-policy*)
  (when (eq :off (with-lock-briefly ((journal-lock journal))
                   (let* ((gathered (journal-gathered journal))
                          (before (output-fill gathered)))
                     (cond ((> (+ before (output-fill line)) (* 8 1024 1024)) ; and as many octets
                            (incf (journal-lost journal) (lines-in line))     ; may be on their way
                            (setf (journal-trouble-p journal) t))
                           (t
                            (encode-octets gathered (output-octets line) 0 (output-fill line))))
                     (when (zerop before)
                       (bt:condition-notify (journal-wanted journal)))
                     (journal-phase journal))))
    (flush-journal journal))
  (values))

(defun journal-unwritten (journal)
  "How many lines JOURNAL has lost, or keeps after its end.  The latter are written only if it is
started again, or gets another line, and its destination takes them then."
  (with-lock-briefly ((journal-lock journal))
    (+ (journal-lost journal)
       (if (eq :off (journal-phase journal)) (lines-in (journal-gathered journal)) 0))))

(defun write-batch (journal)
  "Writes what JOURNAL has gathered.  If that cannot begin, the lines stay.  If some may have been
written, all of them are lost, so that no line is written twice."
  (let* ((destination (journal-destination journal))
         (file-p (not (streamp destination)))
         (stream (if file-p
                     (open destination :direction :output :element-type 'octet
                                       :if-exists :append :if-does-not-exist :create)
                     destination))
         (batch (with-lock-briefly ((journal-lock journal))
                  (shiftf (journal-gathered journal) (make-output))))
         (written-p nil))
    (unwind-protect
         (progn
           (cond (file-p
                  (write-sequence (output-octets batch) stream :end (output-fill batch))
                  (close stream))
                 (t
                  (write-string (utf-8-text (output-octets batch) 0 (output-fill batch)) stream)
                  (finish-output stream)))
           (setf written-p t))
      (unless written-p
        (with-lock-briefly ((journal-lock journal))
          (incf (journal-lost journal) (lines-in batch)))
        (when file-p
          (close stream :abort t))))))  ; or it would try to write the same octets again

(defun flush-journal (journal)
  "Writes all lines that JOURNAL has.  True when all could be written.  Waits for the destination."
  (multiple-value-bind (written-p condition)
      (bt:with-lock-held ((journal-writing journal))
        (handler-case (or (zerop (output-fill (journal-gathered journal)))
                          (progn (write-batch journal)
                                 :anew))
          (serious-condition (condition) (values nil condition))))
    ;; Out of the lock, since what is told may go to the same destination.
    (unless (eq t written-p)            ; there was nothing to write
      (let ((trouble-p (with-lock-briefly ((journal-lock journal))
                         (shiftf (journal-trouble-p journal) (not written-p)))))
        (cond ((and trouble-p written-p)
               (tell (journal-application journal) :warning
                     "~A is written again; lines lost so far: ~D."
                     (journal-destination journal) (journal-lost journal)))
              ((not (or trouble-p written-p))
               (tell (journal-application journal) :error "~A cannot be written: ~A"
                     (journal-destination journal) condition)))))
    written-p))

(defun keep-journal (journal)
  "The main function of the thread of JOURNAL."
  (flet ((await (seconds lines-p)
           (wait-until (lambda ()
                         (or (eq :ending (journal-phase journal))
                             (and lines-p (plusp (output-fill (journal-gathered journal))))))
                       (journal-wanted journal) (journal-lock journal) seconds nil)))
    (loop
      (await nil t)
      (let ((written-p (flush-journal journal)))
        (when (with-lock-briefly ((journal-lock journal))
                ;; At the end, lines that could not be written wait for the next start.
                (when (and (eq :ending (journal-phase journal))
                           (or (not written-p)
                               (zerop (output-fill (journal-gathered journal)))))
                  (setf (journal-phase journal) :off)))
          (return)))
      (await 1/2 nil))))

(defun start-journal (journal)
  "Starts a thread that writes the lines of JOURNAL, unless there is one.  Not for a string stream,
which never blocks, and must not be used by two threads: each thread writes the lines that it
appends."
  (when (and (not (typep (journal-destination journal) 'string-stream))
             (with-lock-briefly ((journal-lock journal))
               (eq :off (shiftf (journal-phase journal) :running))))
    (unless-returned (setf (journal-thread journal)
                           (call-making-thread
                            (lambda ()
                              (bt:make-thread (lambda () (keep-journal journal)) :name "log"))))
      (setf (journal-phase journal) :off))))

(defun end-journal (journal)
  "Has the thread of JOURNAL, if there is one, write its lines and end.  Waits for that a while."
  (with-lock-briefly ((journal-lock journal))
    (when (eq :running (journal-phase journal))
      (setf (journal-phase journal) :ending)
      (bt:condition-notify (journal-wanted journal))))
  (when (journal-thread journal)
    (join-thread (journal-thread journal) *log-patience*)))
