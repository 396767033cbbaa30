(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A journal writes lines to a file or a stream in a thread of its own, so that no other thread
;;;; waits for a disk, or for the reader of a pipe.
;;;;
;;;;   phase     an appended line is written by   becomes     by
;;;;   :off      the thread that appends it        :running    START-JOURNAL
;;;;   :running  the thread of the journal,        :ending     END-JOURNAL
;;;;             within *FLUSH-SECONDS*
;;;;   :ending   the thread of the journal         :off        that thread, when no line is left
;;;;                                               :running    START-JOURNAL
;;;;
;;;; So no line is refused, and stopping loses none, however late it comes.
;;;;
;;;; A file is opened for each batch and closed after it, so that the next batch after a rotation
;;;; goes to the new file.  Threads that write to one destination take its lock.
;;;;
;;;; GATHERED, LINES, LOST, TROUBLE-P and PHASE change under the lock of the journal; that is held
;;;; for a few instructions.  WRITER, BATCH and BROKEN-P change under that of the destination.
(defparameter *batch-octets* (* 64 1024)
  "When more than this many octets have gathered, they are written without a pause.")

(defparameter *journal-octets* (* 8 1024 1024)
  "How many octets may gather while the destination blocks.  Further lines are lost, and counted.
As many octets again may be in the batch that is being written.")

(defparameter *flush-seconds* 1/2
  "How many seconds, a real, lines gather between two batches.")

(defparameter *log-patience* 5
  "How many seconds, a real, END-JOURNAL waits until the last lines were written.")

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
                    (:constructor make-journal
                        (destination name complain
                         &aux (writing (lock-of-destination (sink-of destination))))))
  "A writer of lines to DESTINATION.  NAME, a string, is the name of its thread.  COMPLAIN, a
function of a level, a control string and its arguments, reports failures, and must not signal."
  (destination nil :read-only t)        ; a pathname designator or a stream of characters
  (name "" :type string :read-only t)
  (complain nil :type function :read-only t)
  (writing nil :read-only t)
  (lock (bt:make-lock "journal") :read-only t)
  (wanted (bt:make-condition-variable) :read-only t) ; its thread has work
  (phase :off :type (member :off :running :ending))
  (thread nil)
  (gathered (make-output) :type output)
  (lines 0 :type fixnum)                ; in GATHERED
  (lost 0 :type integer)                ; lines that are lost
  (trouble-p nil)                       ; writing fails or blocks, and that is to be told or was
  (writer nil)                          ; the thread that writes the batch
  (batch (make-output) :type output)    ; what it writes
  (broken-p nil))                       ; the last line of the destination may lack its end

(defmacro with-journal ((journal) &body body)
  "Evaluates BODY, which is short and does not wait, uninterrupted and under the lock of JOURNAL."
  `(with-lock-briefly ((journal-lock ,journal))
     ,@body))

;;; Appending

(defun append-line (journal line)
  "Has JOURNAL write LINE, an OUTPUT that ends in a line feed.  Its thread does so soon; then this
function does not wait for the destination.  If there is no thread, writes LINE at once."
  (declare (type journal journal) (type output line) #.*plain-policy*)
  (when (eq :off (with-journal (journal)
                   (let* ((gathered (journal-gathered journal))
                          (before (output-fill gathered))
                          (after (+ before (output-fill line))))
                     (cond ((> after (the fixnum *journal-octets*))
                            (incf (journal-lost journal))
                            (setf (journal-trouble-p journal) t))
                           (t
                            (encode-octets gathered (output-octets line) 0 (output-fill line))
                            (incf (journal-lines journal))))
                     (when (or (zerop before)
                               (<= before (the fixnum *batch-octets*) (1- after)))
                       (bt:condition-notify (journal-wanted journal)))
                     (journal-phase journal))))
    (flush-journal journal))
  (values))

(defun lose-line (journal condition)
  "Counts a line that could not be made because of CONDITION as lost by JOURNAL, and complains."
  (with-journal (journal)
    (incf (journal-lost journal)))
  (funcall (journal-complain journal) :error "A line for ~A could not be made: ~A"
           (journal-destination journal) condition))

(defun journal-unwritten (journal)
  "How many lines JOURNAL has lost, or keeps after its end.  The latter are written only if it is
started again, or gets another line, and its destination takes them then."
  (with-journal (journal)
    (+ (journal-lost journal)
       (if (eq :off (journal-phase journal)) (journal-lines journal) 0))))

;;; Writing

(defun write-batch (journal)
  "Writes what JOURNAL has gathered, after a line end where the last line may be incomplete.  If
that cannot begin, the lines stay.  If some may have been written, all of them are lost, so that no
line is written twice."
  (let* ((destination (journal-destination journal))
         (stream (if (streamp destination)
                     destination
                     (open destination :direction :output :element-type 'octet
                                       :if-exists :append :if-does-not-exist :create)))
         (broken-p (shiftf (journal-broken-p journal) t))
         (lines (with-journal (journal)
                  (rotatef (journal-gathered journal) (journal-batch journal))
                  (shiftf (journal-lines journal) 0)))
         (batch (journal-batch journal)))
    (unwind-protect
         (progn
           (cond ((streamp destination)
                  (when broken-p
                    (write-char #\Newline stream))
                  (write-string (utf-8-text (output-octets batch) 0 (output-fill batch)) stream)
                  (finish-output stream))
                 (t
                  (when broken-p
                    (write-byte 10 stream))
                  (write-sequence (output-octets batch) stream :end (output-fill batch))
                  (close stream)))
           (setf (journal-broken-p journal) nil))
      (when (journal-broken-p journal)
        (with-journal (journal)
          (incf (journal-lost journal) lines))
        (unless (streamp destination)
          (close stream :abort t)))     ; or it would try to write the same octets again
      (reset-output batch))))

(defun flush-journal (journal)
  "Writes all lines that JOURNAL has.  True when all could be written.  Waits for the destination.
Does nothing if the caller is writing JOURNAL already, as when a complaint is about the destination
of the log itself."
  (flet ((complain (&rest arguments)
           (apply (journal-complain journal) arguments)
           nil))
    (unless (eq (bt:current-thread) (journal-writer journal))
      (bt:with-recursive-lock-held ((journal-writing journal))
        (setf (journal-writer journal) (bt:current-thread))
        (unwind-protect
             (handler-case
                 (unless (zerop (journal-lines journal))
                   (write-batch journal)
                   (when (with-journal (journal)
                           (shiftf (journal-trouble-p journal) nil))
                     (complain :warning "~A is written again; lines lost so far: ~D."
                               (journal-destination journal) (journal-lost journal))))
               (serious-condition (condition)
                 (unless (with-journal (journal)
                           (shiftf (journal-trouble-p journal) t))
                   (complain :error "~A cannot be written: ~A"
                             (journal-destination journal) condition)))
               (:no-error (&rest values)
                 (declare (ignore values))
                 t))
          (setf (journal-writer journal) nil))))))

;;; Its thread

(defun keep-journal (journal)
  "The main function of the thread of JOURNAL."
  (flet ((await (seconds predicate)
           (wait-until (lambda () (or (eq :ending (journal-phase journal)) (funcall predicate)))
                       (journal-wanted journal) (journal-lock journal) seconds nil)))
    (unwind-protect
         (loop
           (await nil (lambda () (plusp (journal-lines journal))))
           (let ((written-p (flush-journal journal)))
             (when (with-journal (journal)
                     ;; At the end, lines that could not be written wait for the next start.
                     (when (and (eq :ending (journal-phase journal))
                                (or (not written-p) (zerop (journal-lines journal))))
                       (setf (journal-phase journal) :off)))
               (return))
             (await *flush-seconds*
                    (lambda ()
                      (and written-p    ; or the next try comes later
                           (> (output-fill (journal-gathered journal)) *batch-octets*))))))
      (unless (eq :off (journal-phase journal)) ; destroyed, as all threads are when a Lisp exits
        (with-journal (journal)
          (setf (journal-phase journal) :off))
        ;; If it was destroyed during a write, the destination may be one that blocks.
        (unless (journal-broken-p journal)
          (flush-journal journal))))
    (when (plusp (journal-lines journal))
      (funcall (journal-complain journal) :error "~A did not take the last ~D line~:P."
               (journal-destination journal) (journal-lines journal)))))

(defun start-journal (journal)
  "Starts a thread that writes the lines of JOURNAL, unless there is one.  If no thread can be made,
each thread writes the lines that it appends.  The same holds for a string stream, which never
blocks, and must not be used by two threads."
  (when (and (not (typep (sink-of (journal-destination journal)) 'string-stream))
             (with-journal (journal)
               (eq :off (shiftf (journal-phase journal) :running))))
    (handler-case (setf (journal-thread journal)
                        (call-making-thread
                         (lambda ()
                           (bt:make-thread (lambda () (keep-journal journal))
                                           :name (journal-name journal)))))
      (error (condition)
        (with-journal (journal)
          (setf (journal-phase journal) :off))
        (funcall (journal-complain journal) :warning "~A has no thread: ~A"
                 (journal-name journal) condition)))))

(defun end-journal (journal)
  "Has the thread of JOURNAL, if there is one, write its lines and end, and waits for that.
Complains when it takes too long: then it ends later."
  (with-journal (journal)
    (when (eq :running (journal-phase journal))
      (setf (journal-phase journal) :ending)
      (bt:condition-notify (journal-wanted journal))))
  (let ((thread (journal-thread journal)))
    (unless (or (null thread)
                (eq thread (bt:current-thread))
                (join-thread thread *log-patience*))
      (funcall (journal-complain journal) :warning
               "~A still takes the last lines of a log; they were left to it."
               (journal-destination journal)))))
