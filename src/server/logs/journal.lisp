(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A journal writes lines to a file or a stream in a thread of its own, so that no other thread
;;;; waits for a disk, or for the reader of a pipe.
;;;;
;;;;   phase     an appended line is written by   becomes     by
;;;;   :off      the thread that appends it        :running    START-JOURNAL
;;;;   :running  the thread of the journal,        :ending     STOP-JOURNAL
;;;;             within *FLUSH-SECONDS*
;;;;   :ending   the thread of the journal         :off        that thread, when no line is left
;;;;                                               :running    START-JOURNAL
;;;;
;;;; So no line is refused, and stopping loses none, however late it comes.
;;;;
;;;; A file is opened for each batch and closed after it, so that the next batch after a rotation
;;;; goes to the new file.
;;;;
;;;; The thread that has the lock of the destination writes a batch.  Invariants:
;;;; - GATHERED, LINES, LOST, FULL-P, UNMADE-P, URGENT-P and PHASE change under the lock, which is
;;;;   held for a few instructions.
;;;; - BATCH, BATCH-LINES, BROKEN-P and TROUBLE-P belong to that thread.
;;;; - The lines of BATCH are older than those of GATHERED, and both are whole lines.

(defparameter *batch-octets* (* 64 1024)
  "When more than this many octets have gathered, they are written without waiting for
*FLUSH-SECONDS*.")

(defparameter *journal-octets* (* 8 1024 1024)
  "How many octets may gather while the destination blocks.  Further lines are lost, and counted.
As many octets again may be in the batch that is being written.")

(defparameter *flush-seconds* 1/2
  "How many seconds, a real, lines may gather before they are written.")

(defvar *destination-locks* '()
  "An alist of destinations and locks, which threads of this process hold while they write there.")

(defvar *destination-locks-lock* (bt:make-lock "destinations of logs"))

(defun lock-of-destination (sink)
  "The lock of SINK."
  (with-lock-briefly (*destination-locks-lock*)
    (or (cdr (assoc sink *destination-locks* :test #'equal))
        (let ((lock (bt:make-recursive-lock "log"))) ; a stream may itself write to a log
          (push (cons sink lock) *destination-locks*)
          lock))))

(defun sink-of (destination)
  "The final destination of output to DESTINATION, a pathname designator or a stream: several
streams may stand for another one."
  (loop
    (typecase destination
      (synonym-stream
       (let ((symbol (synonym-stream-symbol destination)))
         (unless (boundp symbol)
           (return destination))
         (setf destination (symbol-value symbol))))
      (two-way-stream (setf destination (two-way-stream-output-stream destination)))
      (t (return destination)))))

(defstruct (journal (:include opaque)
                    (:constructor make-journal (destination name complain)))
  "A writer of lines to DESTINATION.  NAME, a string, is the name of its thread.  COMPLAIN, a
function of a level, a control string and its arguments, reports failures, and must not signal."
  (destination nil :read-only t)        ; a pathname designator or a stream of characters
  (name "" :type string :read-only t)
  (complain nil :type function :read-only t)
  (sink (sink-of destination) :read-only t)
  (writing (lock-of-destination (sink-of destination)) :read-only t)
  (lock (bt:make-lock "journal") :read-only t)
  (wanted (bt:make-condition-variable) :read-only t) ; its thread has work
  (done (bt:make-condition-variable) :read-only t)   ; the phase has changed
  (phase :off :type (member :off :running :ending))
  (thread nil)
  (gathered (make-output) :type output)
  (lines 0 :type fixnum)                ; in GATHERED
  (lost 0 :type integer)                ; lines that are lost
  (full-p nil)                          ; lines were lost for want of room, which was not reported
  (unmade-p nil)                        ; a line could not be made, and that was reported
  (urgent-p nil)                        ; a line in GATHERED is not to wait for more
  (batch (make-output) :type output)
  (batch-lines 0 :type fixnum)
  (broken-p nil)                        ; the last line of the file may lack its end
  (trouble-p nil))                      ; writing fails, and that was reported

(defmacro with-journal ((journal) &body body)
  "Evaluates BODY, which is short and does not wait, uninterrupted and under the lock of JOURNAL."
  `(with-lock-briefly ((journal-lock ,journal))
     ,@body))

(defun await-journal (journal condition-variable seconds predicate)
  "Waits for CONDITION-VARIABLE of JOURNAL as WAIT-UNTIL does for PREDICATE, up to SECONDS."
  (wait-until predicate condition-variable (journal-lock journal) seconds
              ;; Only the thread of the journal waits for WANTED, so no other thread takes its
              ;; notification.
              (unless (eq condition-variable (journal-wanted journal))
                *flush-seconds*)))

;;; Appending

(defun gather (journal line)
  "Adds LINE to the gathered ones, or counts it as lost.  True when the thread should be notified.
The caller holds the lock."
  (let* ((gathered (journal-gathered journal))
         (before (output-fill gathered)))
    (cond ((> (+ before (output-fill line)) *journal-octets*)
           (incf (journal-lost journal))
           (setf (journal-full-p journal) t)
           nil)
          (t
           (encode-octets gathered (output-octets line) 0 (output-fill line))
           (incf (journal-lines journal))
           (or (zerop before)
               (<= before *batch-octets* (1- (output-fill gathered))))))))

(defun append-line (journal line &optional urgent-p)
  "Has JOURNAL write LINE, an OUTPUT that ends in a line feed.  Its thread does so soon, or as soon
as possible if URGENT-P; then this function does not wait for the destination.  If there is no
thread, writes LINE at once."
  (declare (type journal journal) (type output line) #.*plain-policy*)
  (when (eq :off (with-journal (journal)
                   (when (or (gather journal line)
                             (and urgent-p (not (journal-urgent-p journal))))
                     (bt:condition-notify (journal-wanted journal)))
                   (when urgent-p
                     (setf (journal-urgent-p journal) t))
                   (journal-phase journal)))
    (flush-journal journal))
  (values))

(defun lose-line (journal condition)
  "Counts a line that could not be made because of CONDITION as lost by JOURNAL.  Complains about
the first one."
  (unless (with-journal (journal)
            (incf (journal-lost journal))
            (shiftf (journal-unmade-p journal) t))
    (funcall (journal-complain journal) :error "A line for ~A could not be made: ~A"
             (journal-destination journal) condition)))

(defun lines-kept (journal)
  "How many lines JOURNAL has, which are not lost."
  (+ (journal-lines journal) (journal-batch-lines journal)))

(defun journal-unwritten (journal)
  "How many lines JOURNAL has lost, or keeps after its end.  The latter are written only if it is
started again, or gets another line, and its destination takes them then."
  (with-journal (journal)
    (+ (journal-lost journal)
       (if (eq :off (journal-phase journal)) (lines-kept journal) 0))))

;;; Writing

(defun call-with-destination (journal function)
  "Calls FUNCTION with the stream to which JOURNAL writes."
  (let ((destination (journal-destination journal)))
    (etypecase destination
      (stream (funcall function destination))
      ((or string pathname)
       (let ((stream (open destination :direction :output :element-type 'octet
                                       :if-exists :append :if-does-not-exist :create))
             (written-p nil))
         (unwind-protect
              (progn (funcall function stream)
                     (setf written-p t))
           ;; A normal close would try to write the same octets again.
           (close stream :abort (not written-p))))))))

(defun write-lines (journal stream)
  "Writes the batch of JOURNAL to STREAM.  Puts a line end before it where the last line may be
incomplete."
  (let ((octets (output-octets (journal-batch journal)))
        (size (output-fill (journal-batch journal))))
    (cond ((streamp (journal-destination journal)) ; of characters
           (when (journal-broken-p journal)
             (write-char #\Newline stream))
           (write-string (utf-8-text octets 0 size) stream))
          (t
           (when (journal-broken-p journal)
             (write-byte 10 stream))
           (write-sequence octets stream :end size)))
    (finish-output stream)))

(defun write-batch (journal)
  "Writes the batch of JOURNAL; true when that succeeded.  If it could not begin, the batch is kept
for the next try.  If some of it may have been written (the thread was destroyed, for example), it
is lost, so that no line is written twice."
  (let ((begun-p nil) (written-p nil))
    (handler-case
        (unwind-protect
             (progn
               (call-with-destination journal (lambda (stream)
                                                (setf begun-p t)
                                                (write-lines journal stream)))
               (setf written-p t))
          (when begun-p
            (setf (journal-broken-p journal) (not written-p))
            (unless written-p
              (with-journal (journal)
                (incf (journal-lost journal) (journal-batch-lines journal))))
            (reset-output (journal-batch journal))
            (setf (journal-batch-lines journal) 0)))
      (serious-condition (condition)
        (unless (shiftf (journal-trouble-p journal) t)
          (funcall (journal-complain journal) :error "~A cannot be written: ~A"
                   (journal-destination journal) condition))
        nil)
      (:no-error (&rest values)
        (declare (ignore values))
        (when (or (with-journal (journal) (shiftf (journal-full-p journal) nil))
                  (shiftf (journal-trouble-p journal) nil))
          (funcall (journal-complain journal) :warning "~A is written again; lines lost so far: ~D."
                   (journal-destination journal) (journal-lost journal)))
        t))))

(defvar *written-journals* '()
  "The journals that the current thread is writing, a list.")

(defun flush-journal (journal)
  "Writes all lines that JOURNAL has.  True when all could be written.  Waits for the destination.
Does nothing if the caller is writing JOURNAL already, as when a complaint is about the destination
of the log itself."
  (unless (member journal *written-journals*)
    (bt:with-recursive-lock-held ((journal-writing journal))
      (let ((*written-journals* (cons journal *written-journals*)))
        ;; A batch that was left, and the lines gathered since.
        (loop repeat 2
              do (when (zerop (journal-batch-lines journal))
                   (with-journal (journal)
                     (rotatef (journal-gathered journal) (journal-batch journal))
                     (rotatef (journal-lines journal) (journal-batch-lines journal))
                     (setf (journal-urgent-p journal) nil)))
              always (or (zerop (journal-batch-lines journal))
                         (write-batch journal)))))))
