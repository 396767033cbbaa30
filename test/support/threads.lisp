(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Latches, recorders and background tasks, on version 1 of the bordeaux-threads
;;; API.  Waiting is polling: the timed condition wait of bordeaux-threads makes a
;;; helper thread on ECL, which the leak check would see, and loses the lock there
;;; when the time is out.

;;; Latches

(defstruct (latch (:constructor %make-latch (count what)))
  "Opens for good when it has been counted down to zero."
  count what (lock (bt:make-lock "latch")))

(defun make-latch (count &optional (what "a latch to open"))
  "A latch that opens after COUNT calls of COUNT-DOWN.  WHAT, a noun phrase, goes
into the sentence with which AWAIT fails."
  (%make-latch count what))

(defun make-gate (&optional (what "a gate to open"))
  "A closed latch that one call of OPEN-GATE opens for everybody.  WHAT as in MAKE-LATCH."
  (%make-latch 1 what))

(defun count-down (latch)
  "Takes one from LATCH unless it is open already."
  (bt:with-lock-held ((latch-lock latch))
    (when (plusp (latch-count latch))
      (decf (latch-count latch)))))

(defun open-gate (gate)
  "Opens GATE, whatever its count."
  (bt:with-lock-held ((latch-lock gate))
    (setf (latch-count gate) 0)))

(defun open-p (latch)
  "Whether LATCH has been counted down or opened."
  (zerop (bt:with-lock-held ((latch-lock latch)) (latch-count latch))))

(defun await (latch &optional (patience *patience*))
  "Returns when LATCH is open; signals PATIENCE-LOST after PATIENCE seconds."
  (eventually ((latch-what latch) :patience patience)
    (open-p latch)))

;;; Recorders

(defstruct (recorder (:constructor make-recorder ()))
  "A list to which several threads may add; what handlers tell to tests."
  (entries '()) (lock (bt:make-lock "recorder")))

(defun record (recorder entry)
  "Adds ENTRY to RECORDER and returns it."
  (bt:with-lock-held ((recorder-lock recorder))
    (push entry (recorder-entries recorder)))
  entry)

(defun recorded (recorder)
  "What RECORDER was told, the oldest entry first."
  (bt:with-lock-held ((recorder-lock recorder))
    (reverse (recorder-entries recorder))))

(defun recorded-count (recorder &optional (entry nil entry-p))
  "How many entries RECORDER has; how many EQUAL to ENTRY where that is given."
  (if entry-p
      (count entry (recorded recorder) :test #'equal)
      (length (recorded recorder))))

;;; Logs

(defun taken-from-log (stream)
  "What was written to STREAM, a string stream where a log goes, since this was called last."
  (bt:with-lock-held ((server::lock-of-destination stream)) ; a server may write meanwhile
    (get-output-stream-string stream)))

;;; Background tasks

(defvar *inherited-variables* '(*patience*)
  "Special variables whose values a task takes over from the thread that starts it.")

(defstruct (task (:constructor make-task (name)))
  "A thread of the test and what came of it."
  name thread values condition (done (make-gate)))

(defun run-task (task function)
  "The body of TASK's thread: calls FUNCTION and keeps its values or its error."
  (unwind-protect
       (handler-case (setf (task-values task) (multiple-value-list (funcall function)))
         (error (condition) (setf (task-condition task) condition)))
    (open-gate (task-done task))))

(defun start-task (name function)
  "Calls FUNCTION in a new thread called NAME; returns a task for TASK-RESULT."
  (let ((task (make-task name))
        (values (mapcar #'symbol-value *inherited-variables*)))
    (setf (task-thread task)
          (bt:make-thread (lambda ()
                            (progv *inherited-variables* values
                              (run-task task function)))
                          :name name))
    task))

(defmacro in-background ((name) &body body)
  "Evaluates BODY in a new thread called NAME; returns a task for TASK-RESULT."
  `(start-task ,name (lambda () ,@body)))

(defun task-done-p (task)
  "Whether the body of TASK has returned or failed."
  (open-p (task-done task)))

(defun task-result (task &optional (patience *patience*))
  "The values of TASK's body, or its error signalled here.  Signals PATIENCE-LOST
when the body has not ended within PATIENCE seconds."
  (eventually ((format nil "the end of ~A" (task-name task)) :patience patience)
    (task-done-p task))
  (bt:join-thread (task-thread task))
  (if (task-condition task)
      (error (task-condition task))
      (values-list (task-values task))))

(defun await-forgotten (pointers)
  "Waits until the collector has freed more than half of the objects of POINTERS, a recorder of weak
pointers: for each thread it may take a word on its stack for one of them."
  (eventually ("most of them to be forgotten")
    (uiop:symbol-call '#:sb-ext '#:gc :full t)
    (< (count-if (lambda (pointer) (uiop:symbol-call '#:sb-ext '#:weak-pointer-value pointer))
                 (recorded pointers))
       (/ (recorded-count pointers) 2))))
