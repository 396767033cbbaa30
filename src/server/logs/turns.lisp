(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Turns: one thread at a time writes to a destination, in the whole process, whichever server
;;;; it writes for.  No lock is held meanwhile.
;;;;
;;;; A turn exists while threads have it or wait for it.  All of *TURNS*, and of each turn, changes
;;;; under *TURNS-LOCK*, which is held for a few instructions.

(defparameter *flush-seconds* 1/2
  "After how many seconds, a real, what has gathered in a journal is written; and how often a thread
that waits for its turn looks for it.")

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
  "Where that ends up which is written to DESTINATION, a pathname designator or a stream: several
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
  "The turn for SINK, of which the caller is a user from now on."
  (with-lock-briefly (*turns-lock*)
    (let ((turn (or (find sink *turns* :key #'turn-sink :test #'equal)
                    (let ((new (make-turn sink)))
                      (push new *turns*)
                      new))))
      (incf (turn-users turn))
      turn)))

(defun leave-turn (turn)
  (with-lock-briefly (*turns-lock*)
    (when (zerop (decf (turn-users turn)))
      (setf *turns* (remove turn *turns*)))))

(defun take-turn (turn)
  "True when no thread had TURN, and now the caller has it."
  (with-lock-briefly (*turns-lock*)
    (unless (turn-writer turn)
      (setf (turn-writer turn) (bt:current-thread)))))

(defun end-turn (turn)
  (with-lock-briefly (*turns-lock*)
    (setf (turn-writer turn) nil)
    (bt:condition-notify (turn-ended turn))))

(defun call-with-turn (sink function)
  "Calls FUNCTION while no other thread writes to SINK.  Where the caller has the turn already, as a
stream may that itself has something for a log, it keeps it."
  (with-acquired (turn (join-turn sink) (leave-turn turn))
    (if (eq (turn-writer turn) (bt:current-thread))
        (funcall function)
        (loop
          (with-acquired (taken-p (take-turn turn) (when taken-p (end-turn turn)))
            (when taken-p
              (return (funcall function)))
            (wait-until (lambda () (null (turn-writer turn)))
                        (turn-ended turn) *turns-lock* nil *flush-seconds*))))))
