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
;;;; GATHERED, LINES, LOST, TROUBLE-P, URGENT-P and PHASE change under the lock of the journal; that
;;;; is held for a few instructions.  WRITER, BATCH, BATCH-LINES and BROKEN-P change under that of
;;;; the destination.  The lines of BATCH are older than those of GATHERED; both are whole lines.

(defparameter *batch-octets* (* 64 1024)
  "When more than this many octets have gathered, they are written without waiting for
*FLUSH-SECONDS*.")

(defparameter *journal-octets* (* 8 1024 1024)
  "How many octets may gather while the destination blocks.  Further lines are lost, and counted.
As many octets again may be in the batch that is being written.")

(defparameter *flush-seconds* 1/2
  "How many seconds, a real, lines may gather before they are written.")

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
  (phase :off :type (member :off :running :ending))
  (thread nil)
  (gathered (make-output) :type output)
  (lines 0 :type fixnum)                ; in GATHERED
  (lost 0 :type integer)                ; lines that are lost
  (trouble-p nil)                       ; writing fails or blocks, and that is to be told or was
  (urgent-p nil)                        ; a line in GATHERED is not to wait for more
  (writer nil)                          ; the thread that writes the batch
  (batch (make-output) :type output)
  (batch-lines 0 :type fixnum)
  (broken-p nil))                       ; the last line of the destination may lack its end

(defmacro with-journal ((journal) &body body)
  "Evaluates BODY, which is short and does not wait, uninterrupted and under the lock of JOURNAL."
  `(with-lock-briefly ((journal-lock ,journal))
     ,@body))

;;; Appending

(defun append-line (journal line &optional urgent-p)
  "Has JOURNAL write LINE, an OUTPUT that ends in a line feed.  Its thread does so soon, or as soon
as possible if URGENT-P; then this function does not wait for the destination.  If there is no
thread, writes LINE at once."
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
                               (<= before (the fixnum *batch-octets*) (1- after))
                               (and urgent-p (not (journal-urgent-p journal))))
                       (bt:condition-notify (journal-wanted journal)))
                     (when urgent-p
                       (setf (journal-urgent-p journal) t))
                     (journal-phase journal))))
    (flush-journal journal))
  (values))

(defun lose-line (journal condition)
  "Counts a line that could not be made because of CONDITION as lost by JOURNAL, and complains."
  (with-journal (journal)
    (incf (journal-lost journal)))
  (funcall (journal-complain journal) :error "A line for ~A could not be made: ~A"
           (journal-destination journal) condition))

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

(defun write-lines (journal)
  "Writes the batch of JOURNAL, after a line end where the last line may be incomplete.  If that
cannot begin, the batch is kept for the next try.  If some of it may have been written, it is lost,
so that no line is written twice."
  (let* ((destination (journal-destination journal))
         (octets (output-octets (journal-batch journal)))
         (size (output-fill (journal-batch journal)))
         (text (and (streamp destination) (utf-8-text octets 0 size)))
         (stream (if text
                     destination
                     (open destination :direction :output :element-type 'octet
                                       :if-exists :append :if-does-not-exist :create)))
         (broken-p (shiftf (journal-broken-p journal) t)))
    (unwind-protect
         (progn
           (cond (text
                  (when broken-p
                    (write-char #\Newline stream))
                  (write-string text stream))
                 (t
                  (when broken-p
                    (write-byte 10 stream))
                  (write-sequence octets stream :end size)))
           (finish-output stream)
           (unless text
             (close stream))
           (setf (journal-broken-p journal) nil))
      (when (journal-broken-p journal)
        (with-journal (journal)
          (incf (journal-lost journal) (journal-batch-lines journal)))
        (unless text
          (close stream :abort t)))     ; or it would try to write the same octets again
      (reset-output (journal-batch journal))
      (setf (journal-batch-lines journal) 0))))

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
                 (loop repeat 2         ; a batch that was left, and the lines gathered since
                       do (when (zerop (journal-batch-lines journal))
                            (with-journal (journal)
                              (rotatef (journal-gathered journal) (journal-batch journal))
                              (rotatef (journal-lines journal) (journal-batch-lines journal))
                              (setf (journal-urgent-p journal) nil)))
                          (unless (zerop (journal-batch-lines journal))
                            (write-lines journal)
                            (when (with-journal (journal)
                                    (shiftf (journal-trouble-p journal) nil))
                              (complain :warning "~A is written again; lines lost so far: ~D."
                                        (journal-destination journal) (journal-lost journal))))
                       finally (return t))
               (serious-condition (condition)
                 (unless (with-journal (journal)
                           (shiftf (journal-trouble-p journal) t))
                   (complain :error "~A cannot be written: ~A"
                             (journal-destination journal) condition))))
          (setf (journal-writer journal) nil))))))

;;; Its thread

(defun keep-journal (journal)
  "The main function of the thread of JOURNAL."
  (flet ((await (seconds predicate)
           (wait-until predicate (journal-wanted journal) (journal-lock journal) seconds nil))
         (ending-p ()
           (eq :ending (journal-phase journal))))
    (unwind-protect
         (loop
           ;; For a first line, and then for more of them
           (await nil (lambda () (or (ending-p) (plusp (lines-kept journal)))))
           (await *flush-seconds*
                  (lambda ()
                    (or (ending-p)
                        (and (zerop (journal-batch-lines journal)) ; or the next try comes later
                             (or (journal-urgent-p journal)
                                 (> (output-fill (journal-gathered journal)) *batch-octets*))))))
           (let ((written-p (flush-journal journal)))
             (when (with-journal (journal)
                     ;; At the end, lines that could not be written wait for the next start.
                     (when (and (ending-p) (or (not written-p) (zerop (journal-lines journal))))
                       (setf (journal-phase journal) :off)))
               (return))))
      (unless (eq :off (journal-phase journal)) ; destroyed, as all threads are when a Lisp exits
        (with-journal (journal)
          (setf (journal-phase journal) :off))
        ;; If it was destroyed during a write, the destination may be one that blocks.
        (unless (journal-broken-p journal)
          (flush-journal journal))))
    (when (plusp (lines-kept journal))
      (funcall (journal-complain journal) :error "~A did not take the last ~D line~:P."
               (journal-destination journal) (lines-kept journal)))))

(defun start-journal (journal)
  "Starts a thread that writes the lines of JOURNAL, unless there is one.  If no thread can be made,
each thread writes the lines that it appends.  The same holds for a string stream, which never
blocks, and must not be used by two threads."
  (when (and (not (typep (journal-sink journal) 'string-stream))
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
