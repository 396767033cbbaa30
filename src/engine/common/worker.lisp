(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The states of a worker.
;;;;
;;;;   state         what its thread does                           may become
;;;;   :starting     is being made; it counts already, so that      :waiting :ended
;;;;                 no second one is made for the same need
;;;;   :waiting      waits for a connection                         :serving :ended
;;;;   :serving      serves a request of its connection             :keep-alive :waiting :ended
;;;;   :keep-alive   keeps its connection, waits for its next       :serving :waiting :ended
;;;;                 request
;;;;   :ended        left the pool; its thread ends by itself
;;;;
;;;; In the ready engine, where connections are not tied to workers, :ACTIVE stands for the
;;;; three in the middle, and there is one more:
;;;;
;;;;   :active       waits for something to do, or does it          :suspended :ended
;;;;   :suspended    waits to be needed                             :active :ended
;;;;
;;;; A worker's state changes only by SET-WORKER-STATE, under the lock of its engine, together with
;;;; the engine's count of each state.

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *worker-states*
    '(:starting :waiting :serving :keep-alive :active :suspended :ended)))

(deftype worker-state ()
  `(member ,@*worker-states*))

(defstruct (worker (:include opaque) (:constructor make-worker (engine number)))
  "One thread of the pool of ENGINE."
  ;; The engine that WORKER works for.
  (engine nil :read-only t)
  (number 0 :type fixnum :read-only t)
  (thread nil)
  (state :starting :type worker-state)
  (since (milliseconds) :type integer)  ; when STATE began
  (connection nil :type (or null connection))
  ;; What the layer above says that the thread of WORKER is at, any object; NIL for nothing. Other
  ;; threads read it, so it may be out of date.
  (task nil)
  ;; How long its requests took; written by its own thread alone.
  (durations (make-tally-sheet) :type tally-sheet :read-only t))

(defvar *worker* nil
  "The worker whose thread this is, or NIL.")

(declaim (inline note-task))
(defun note-task (task)
  "Notes that the current thread is at TASK, any object, or NIL for nothing, if it is a worker's."
  (when *worker*
    (setf (worker-task *worker*) task)))

(defun worker-milliseconds (worker)
  "For how long WORKER has been in its state."
  (- (milliseconds) (worker-since worker)))

(defvar *resuming-for* nil
  "The engine for which the current thread, which is no worker's, resumes a connection; or NIL.")

(defun count-request (connection duration &optional (kind 0))
  "Counts a request of CONNECTION, which the current thread owns, as served in DURATION, an integer
in microseconds: by its worker, or by a resuming thread.  KIND is an integer from 0 below 48, with a
meaning for the layer above."
  (incf (connection-served connection))
  (let ((octets (shiftf (send-queue-sent (connection-queue connection)) 0)))
    (cond (*worker*
           (note-request (worker-durations *worker*) duration kind octets))
          (*resuming-for*
           (note-request-elsewhere *resuming-for* duration kind octets)))))

(defmethod print-object ((worker worker) stream)
  (print-unreadable-object (worker stream :type t)
    (format stream "~D ~(~A~)" (worker-number worker) (worker-state worker))))
