(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The thread of a journal, which writes the gathered lines; see journal.lisp for its phases.

(defun await-lines (journal)
  "Waits until it is time to write: without limit for the first line, and then for at most
*FLUSH-SECONDS* for more."
  (flet ((something-p ()
           (or (eq :ending (journal-phase journal))
               (plusp (lines-kept journal))))
         (urgent-p ()
           (or (eq :ending (journal-phase journal))
               (and (zerop (journal-batch-lines journal)) ; otherwise the next try comes later
                    (or (journal-urgent-p journal)
                        (> (output-fill (journal-gathered journal)) *batch-octets*))))))
    (await-journal journal (journal-wanted journal) nil #'something-p)
    (await-journal journal (journal-wanted journal) *flush-seconds* #'urgent-p)))

(defun leave-journal (journal)
  "Makes each thread that appends a line to JOURNAL write it from now on.  The caller holds the
lock."
  (setf (journal-phase journal) :off)
  (bt:condition-notify (journal-done journal))
  t)

(defun keep-journal (journal &aux (ended-p nil))
  "The main function of the thread of JOURNAL."
  (uninterruptibly
    (unwind-protect
        (progn
          ;; At the end, lines that could not be written wait for the next start.
          (loop do (interruptibly (await-lines journal))
                until (let ((written-p (interruptibly (flush-journal journal))))
                        (with-journal (journal)
                          (when (and (eq :ending (journal-phase journal))
                                     (or (not written-p) (zerop (journal-lines journal))))
                            (leave-journal journal)))))
          (setf ended-p t)
          (when (plusp (lines-kept journal))
            (funcall (journal-complain journal) :error "~A did not take the last ~D line~:P."
                     (journal-destination journal) (lines-kept journal))))
      (unless ended-p                   ; destroyed, as all threads are when a Lisp exits
        (with-journal (journal)
          (leave-journal journal))
        ;; If it was destroyed during a write, the destination may be one that blocks.
        (unless (journal-broken-p journal)
          (interruptibly (flush-journal journal)))))))

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
          (leave-journal journal))
        (funcall (journal-complain journal) :warning "~A has no thread: ~A"
                 (journal-name journal) condition)))))

(defun stop-journal (journal seconds)
  "Has the thread of JOURNAL write its lines and end, and waits for that up to SECONDS, a real.  NIL
when it takes longer: the thread ends later.  Does nothing when there is no thread."
  (with-journal (journal)
    (when (eq :running (journal-phase journal))
      (setf (journal-phase journal) :ending)
      (bt:condition-notify (journal-wanted journal))))
  (let ((end (end-after seconds)))
    (when (await-journal journal (journal-done journal) seconds
                         (lambda () (eq :off (journal-phase journal))))
      (let ((thread (with-journal (journal) (shiftf (journal-thread journal) nil))))
        (or (null thread)
            (eq thread (bt:current-thread))
            ;; A destroyed thread still writes the lines that are left.
            (join-thread thread (/ (milliseconds-left end) 1000)))))))

(defparameter *log-patience* 5
  "How many seconds, a real, END-JOURNAL waits until the last lines were written.")

(defun end-journal (journal)
  "Stops JOURNAL as STOP-JOURNAL does, and complains when its destination takes too long."
  (unless (stop-journal journal *log-patience*)
    (funcall (journal-complain journal) :warning
             "~A still takes the last lines of a log; they were left to it."
             (journal-destination journal))))
