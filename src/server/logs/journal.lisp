(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A journal: lines for a file or a stream, written by a thread of its own, so that whoever has
;;;; a line never waits for a disk, nor for the reader of a pipe.
;;;;
;;;;   phase     a line that is appended        becomes     by
;;;;   :off      is written by who appends it   :running    START-JOURNAL
;;;;   :running  is written by the thread,      :ending     STOP-JOURNAL
;;;;             within *FLUSH-SECONDS*
;;;;   :ending   is written by the thread       :off        the thread, when no line is left
;;;;                                            :running    START-JOURNAL
;;;;
;;;; So no line is refused, and none is lost by stopping, however late it comes.
;;;;
;;;; A file is opened for each batch and closed after it: a file that was renamed gets nothing more
;;;; from the next batch on.
;;;;
;;;; A batch is written by the thread that has the turn; see turns.lisp.  Invariants:
;;;; - GATHERED, LINES, KEPT, LOST, UNMADE-P, URGENT-P and PHASE change under the lock, which is
;;;;   held for a few instructions.
;;;; - BATCH, BATCH-LINES, BROKEN-P and TROUBLE-P belong to the thread that has the turn.
;;;; - The lines of BATCH are older than those of GATHERED, and both are whole lines.

(defparameter *batch-octets* (* 64 1024)
  "How many octets may gather before they are written without waiting for that.")

(defparameter *journal-octets* (* 8 1024 1024)
  "How many octets may gather while the destination takes none; further lines are lost, and
counted.  As many again may be in the batch that is being written.")

(defstruct (journal (:include opaque)
                    (:constructor make-journal (destination name complain)))
  "Writes lines to DESTINATION.  NAME, a string, is that of its thread.  COMPLAIN, a function of a
level, a control string and its arguments, tells people what went wrong, and must not signal."
  (destination nil :read-only t)        ; a pathname designator or a stream of characters
  (name "" :type string :read-only t)
  (complain nil :type function :read-only t)
  (sink (sink-of destination) :read-only t) ; for which it has its turn
  (lock (bt:make-lock "journal") :read-only t)
  (wanted (bt:make-condition-variable) :read-only t) ; its thread has something to do
  (done (bt:make-condition-variable) :read-only t)   ; the phase has ended
  (phase :off :type (member :off :running :ending))
  (thread nil)
  (gathered (make-output) :type output)
  (lines 0 :type fixnum)                ; in GATHERED
  (kept 0 :type fixnum)                 ; lines in GATHERED and BATCH
  (lost 0 :type integer)                ; lines that nobody will write
  (unmade-p nil)                        ; a line could not be made, and that was told
  (urgent-p nil)                        ; a line in GATHERED is not to wait for more
  (batch (make-output) :type output)
  (batch-lines 0 :type fixnum)
  (broken-p nil)                        ; the last line of the file may lack its end
  (trouble-p nil))                      ; it cannot be written, and that was told

(setf (documentation 'make-journal 'function)
      "A journal for DESTINATION, a pathname designator or a stream of characters.  NAME, a string,
is that of its thread; COMPLAIN, a function of a level, a control string and its arguments, tells
people what went wrong, and must not signal."
      (documentation 'journal-destination 'function)
      "Where the lines of JOURNAL go."
      (documentation 'journal-lost 'function)
      "How many lines nobody will write, because the destination of JOURNAL did not take them.")

(defmacro with-journal ((journal) &body body)
  "Runs BODY, which is short and waits for nothing, under the lock of JOURNAL, whole."
  `(with-lock-briefly ((journal-lock ,journal))
     ,@body))

(defun await-journal (journal condition-variable seconds predicate)
  "Waits for CONDITION-VARIABLE of JOURNAL as WAIT-UNTIL does for PREDICATE, up to SECONDS."
  (wait-until predicate condition-variable (journal-lock journal) seconds
              ;; Only the journal's own thread waits for WANTED: nobody else takes its notification.
              (unless (eq condition-variable (journal-wanted journal))
                *flush-seconds*)))

;;; Appending

(defun gather (journal line)
  "Adds LINE to what has gathered, or counts it as lost.  True when its arrival should be told to
the thread.  Under the lock."
  (let* ((gathered (journal-gathered journal))
         (before (output-fill gathered)))
    (cond ((> (+ before (output-fill line)) *journal-octets*)
           (incf (journal-lost journal))
           nil)
          (t
           (encode-octets gathered (output-octets line) 0 (output-fill line))
           (incf (journal-lines journal))
           (incf (journal-kept journal))
           (or (zerop before)
               (<= before *batch-octets* (1- (output-fill gathered))))))))

(defun append-line (journal line &optional urgent-p)
  "Has LINE, an OUTPUT that ends in a line feed, written by JOURNAL: before long by its thread,
as soon as that can
where URGENT-P, or at once where that does not run.  Never waits for the destination in the
former case."
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
  "Counts a line that could not be made, for the reason CONDITION, as lost by JOURNAL; tells it of
the first one."
  (unless (with-journal (journal)
            (incf (journal-lost journal))
            (shiftf (journal-unmade-p journal) t))
    (funcall (journal-complain journal) :error "A line for ~A could not be made: ~A"
             (journal-destination journal) condition)))

(defun lose-lines (journal count)
  "Counts COUNT lines, an integer, as lost by JOURNAL."
  (with-journal (journal)
    (incf (journal-lost journal) count)))

(defun journal-unwritten (journal)
  "How many lines JOURNAL has lost, or has although it has ended: those are written only if it is
started again, or gets another line, and its destination takes them then."
  (with-journal (journal)
    (+ (journal-lost journal)
       (if (eq :off (journal-phase journal)) (journal-kept journal) 0))))

;;; Batches

(defun take-batch (journal)
  "Makes what has gathered the batch, unless there is one left that could not be written.  True
when there is something to be written.  By who has the turn."
  (when (zerop (journal-batch-lines journal))
    (with-journal (journal)
      (rotatef (journal-gathered journal) (journal-batch journal))
      (rotatef (journal-lines journal) (journal-batch-lines journal))
      (setf (journal-urgent-p journal) nil)))
  (plusp (journal-batch-lines journal)))

(defun drop-batch (journal)
  "Forgets the batch, which was written or lost.  By who has the turn."
  (with-journal (journal)
    (decf (journal-kept journal) (journal-batch-lines journal)))
  (reset-output (journal-batch journal))
  (setf (journal-batch-lines journal) 0))

;;; Writing

(defun call-with-destination (journal function)
  "Calls FUNCTION with the stream that JOURNAL writes to."
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
           ;; To close it in order would be to write again what could not be written.
           (close stream :abort (not written-p))))))))

(defun batch-text (journal)
  (let ((batch (journal-batch journal)))
    (utf-8-text (output-octets batch) 0 (output-fill batch))))

(defun write-lines (journal stream)
  "Writes the batch of JOURNAL to STREAM.  Where half a line may stand there, it is kept apart."
  (let ((batch (journal-batch journal)))
    (cond ((streamp (journal-destination journal)) ; of characters
           (when (journal-broken-p journal)
             (write-char #\Newline stream))
           (write-string (batch-text journal) stream))
          (t
           (when (journal-broken-p journal)
             (write-byte 10 stream))
           (write-sequence (output-octets batch) stream :end (output-fill batch))))
    (finish-output stream)))

(defun lose-batch (journal)
  (uninterruptibly
    (lose-lines journal (journal-batch-lines journal))
    (drop-batch journal)))

(defun write-batch (journal)
  "Writes the batch of JOURNAL; true when that succeeded.  Else it is kept, to be tried again, or
lost where some of it may have been written, as by a thread that was destroyed meanwhile: a line is
not written twice."
  (let ((begun-p nil) (written-p nil))
    (handler-case
        (unwind-protect-whole
            (progn
              (call-with-destination journal (lambda (stream)
                                               (setf begun-p t)
                                               (write-lines journal stream)))
              (uninterruptibly
                (setf written-p t
                      (journal-broken-p journal) nil)
                (drop-batch journal)))
          (when (and begun-p (not written-p))
            (setf (journal-broken-p journal) t)
            (lose-batch journal)))
      (error (condition)
        (note-trouble journal condition)
        nil)
      (:no-error (&rest values)
        (declare (ignore values))
        (note-recovery journal)
        t))))

(defun note-trouble (journal condition)
  "Tells that JOURNAL cannot be written because of CONDITION, unless that was told and lasts."
  (unless (shiftf (journal-trouble-p journal) t)
    (funcall (journal-complain journal) :error "~A cannot be written: ~A"
             (journal-destination journal) condition)))

(defun note-recovery (journal)
  (when (shiftf (journal-trouble-p journal) nil)
    (funcall (journal-complain journal) :warning "~A is written again; lines lost so far: ~D."
             (journal-destination journal) (journal-lost journal))))

(defvar *written-journals* '()
  "The journals for which the current thread writes, a list.")

(defun flush-journal (journal)
  "Writes the lines that JOURNAL was given so far.  True when all could be written.  Waits for the
destination.  Does nothing where the caller writes for JOURNAL already, as a complaint about
its destination does."
  (unless (member journal *written-journals*)
    (call-with-turn (journal-sink journal)
                    (lambda (&aux (*written-journals* (cons journal *written-journals*)))
                      ;; A batch that was left, and what has gathered since.
                      (loop repeat 2
                            always (or (not (take-batch journal))
                                       (write-batch journal)))))))
