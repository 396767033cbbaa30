(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Turns let one thread at a time write to a destination, in the whole process, for any server.
;;;; No lock is held during a write.
;;;;
;;;; A turn exists while threads have it or wait for it.  *TURNS*, and the slots of each turn,
;;;; change under *TURNS-LOCK*, which is held for a few instructions.

(defparameter *flush-seconds* 1/2
  "How many seconds, a real, the lines of a journal may gather before they are written; also how
often a thread that waits for its turn checks for it.")

(defvar *turns* '()
  "The turns that threads have or wait for, a list.")

(defvar *turns-lock* (bt:make-lock "turns"))

(defstruct (turn (:include opaque) (:constructor make-turn (sink)))
  "The right to write to SINK."
  (sink nil :read-only t)
  (users 0 :type fixnum)                ; how many threads have it or wait for it
  (writer nil)                          ; the thread that has it
  (ended (bt:make-condition-variable) :read-only t))

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

(defun join-turn (sink)
  "The turn for SINK.  The caller is one of its users from now on."
  (with-lock-briefly (*turns-lock*)
    (let ((turn (or (find sink *turns* :key #'turn-sink :test #'equal)
                    (let ((new (make-turn sink)))
                      (push new *turns*)
                      new))))
      (incf (turn-users turn))
      turn)))

(defun leave-turn (turn)
  "Ends the use of TURN by the caller."
  (with-lock-briefly (*turns-lock*)
    (when (zerop (decf (turn-users turn)))
      (setf *turns* (remove turn *turns*)))))

(defun take-turn (turn)
  "Gives TURN to the caller if no thread has it.  True when it did."
  (with-lock-briefly (*turns-lock*)
    (unless (turn-writer turn)
      (setf (turn-writer turn) (bt:current-thread)))))

(defun end-turn (turn)
  "Takes TURN from the caller, and notifies a thread that waits for it."
  (with-lock-briefly (*turns-lock*)
    (setf (turn-writer turn) nil)
    (bt:condition-notify (turn-ended turn))))

(defun call-with-turn (sink function)
  "Calls FUNCTION while no other thread writes to SINK.  If the caller has the turn already, it
keeps it: a stream may itself write to a log."
  (with-acquired (turn (join-turn sink) (leave-turn turn))
    (if (eq (turn-writer turn) (bt:current-thread))
        (funcall function)
        (loop
          (with-acquired (taken-p (take-turn turn) (when taken-p (end-turn turn)))
            (when taken-p
              (return (funcall function)))
            (wait-until (lambda () (null (turn-writer turn)))
                        (turn-ended turn) *turns-lock* nil *flush-seconds*))))))
