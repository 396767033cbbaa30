(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The thread of a journal, which writes what has gathered; see journal.lisp for its phases.

(defun await-lines (journal)
  "Waits until it is time to write: for a line as long as it takes, and then for more, for a while."
  (flet ((something-p ()
           (or (eq :ending (journal-phase journal))
               (plusp (journal-lines journal))
               (plusp (journal-batch-lines journal)))) ; that could not be written
         (urgent-p ()
           (or (eq :ending (journal-phase journal))
               (and (zerop (journal-batch-lines journal)) ; else it is tried again after a while
                    (or (journal-urgent-p journal)
                    (> (output-fill (journal-gathered journal)) *batch-octets*))))))
    (await-journal journal (journal-wanted journal) nil #'something-p)
    (await-journal journal (journal-wanted journal) *flush-seconds* #'urgent-p)))

(defun end-when-asked (journal written-p)
  "True when JOURNAL is to end and has nothing more to write, or could not write it, as WRITTEN-P
says: what is left then is for the next start."
  (with-journal (journal)
    (when (and (eq :ending (journal-phase journal))
               (or (not written-p) (zerop (journal-lines journal))))
      (leave-journal journal))))

(defun tell-what-is-left (journal)
  "Tells of the lines that JOURNAL, which has ended, could not write."
  (let ((kept (with-journal (journal) (journal-kept journal))))
    (when (plusp kept)
      (funcall (journal-complain journal) :error "~A did not take the last ~D line~:P."
               (journal-destination journal) kept))))

(defun leave-journal (journal)
  "Makes whoever appends a line to JOURNAL write it.  Under the lock."
  (setf (journal-phase journal) :off)
  (bt:condition-notify (journal-done journal))
  t)

(defun survive-interrupts (journal function)
  "Calls FUNCTION in the thread of JOURNAL where that can be interrupted, and returns its value.  An
error of an interrupt is told, and ends no more than that: NIL then."
  (handler-case (interruptibly (funcall function))
    (serious-condition (condition)
      (funcall (journal-complain journal) :error "An interrupt of the thread of a log failed: ~A"
               condition)
      nil)))

(defun keep-journal (journal &aux (ended-p nil))
  "The life of the thread of JOURNAL."
  (deferring-interrupts
    (unwind-protect-whole
        (progn
          (with-journal (journal)
            (setf (journal-thread journal) (bt:current-thread))
            (bt:condition-notify (journal-done journal)))
          (loop do (survive-interrupts journal (lambda () (await-lines journal)))
                until (end-when-asked
                       journal
                       (survive-interrupts journal (lambda () (flush-journal journal)))))
          (setf ended-p t)
          (tell-what-is-left journal))
      (unless ended-p                   ; destroyed, as all threads are when a Lisp exits
        (with-journal (journal)
          (leave-journal journal))
        ;; Where it was destroyed amid a write, the destination may be one that takes nothing.
        (unless (journal-broken-p journal)
          (survive-interrupts journal (lambda () (flush-journal journal))))))))

(defun start-journal (journal)
  "Lets a thread write the lines of JOURNAL.  Does nothing when there is one; where none can be
made, lines are written by who appends them; and so are those for a string stream, which always
takes them, and may not be used by two threads."
  (when (and (not (typep (journal-sink journal) 'string-stream))
             (with-journal (journal)
               (when (eq :off (shiftf (journal-phase journal) :running))
                 (setf (journal-thread journal) nil) ; one that was destroyed, or not waited for
                 t)))
    (handler-case (call-making-thread (lambda ()
                                        (bt:make-thread (lambda () (keep-journal journal))
                                                        :name (journal-name journal))))
      (error (condition)
        (with-journal (journal)
          (leave-journal journal))
        (funcall (journal-complain journal) :warning "~A has no thread: ~A"
                 (journal-name journal) condition))
      (:no-error (thread)
        (declare (ignore thread))
        ;; From here on its cleanup forms run, whatever becomes of it.
        (await-journal journal (journal-done journal) 1 (lambda () (journal-thread journal)))))))

(defun stop-journal (journal seconds)
  "Has the thread of JOURNAL write what it was given so far and end, and waits for that up to
SECONDS, a real.  NIL when it takes longer: it will end later.  Does nothing when there is none."
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
            ;; One that was destroyed still writes what is left.
            (join-thread thread (/ (milliseconds-left end) 1000)))))))

(defparameter *log-patience* 5
  "For how many seconds, a real, END-JOURNAL waits for the last lines to be written.")

(defun end-journal (journal)
  "Stops JOURNAL as STOP-JOURNAL does, and complains when its destination takes too long."
  (unless (stop-journal journal *log-patience*)
    (funcall (journal-complain journal) :warning
             "~A still takes the last lines of a log; they were left to it."
             (journal-destination journal))))
