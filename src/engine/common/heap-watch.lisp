(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What is known of the heap, which is that of all engines of this Lisp; see the ready engine's collecting-at-rest.lisp.
;;;;
;;;; Invariant: an engine is watched from the beginning of its first sentinel until it has stopped, and nobody is left in it,
;;;; be it a worker that a stop could not end.

(defstruct (heap-watch (:include opaque) (:constructor make-heap-watch ()) (:copier nil))
  "What sentinels remember of the heap from look to look."
  (lock (bt:make-lock "heap watch") :read-only t)
  (engines '() :type list)              ; see above
  (mark nil)                            ; of the last collection, its COLLECTION-MARK
  (base 0 :type unsigned-byte)          ; how many octets were in use after that
  (used 0 :type unsigned-byte)          ; how many are
  (work 0 :type unsigned-byte)          ; that was done
  (looked-at nil :type (or null fixnum)) ; in MILLISECONDS
  (collecting-since nil :type (or null fixnum)) ; when a worker was to collect that has not, in MILLISECONDS
  (took 0 :type fixnum))                ; the last collection by a worker, MILLISECONDS

(defvar *heap-watch* (make-heap-watch)
  "The watch of this Lisp's heap.")

(defmacro with-heap-watch ((watch) &body body)
  `(with-lock-briefly ((heap-watch-lock ,watch))
     ,@body))

(defun watch-heap-for (engine)
  "Has the watch know of ENGINE, which serves."
  (let ((watch *heap-watch*))
    (with-heap-watch (watch)
      (pushnew engine (heap-watch-engines watch) :test #'eq))))

(defun forget-heap-of (engine)
  "Has the watch know no more of ENGINE, which is empty."
  (let ((watch *heap-watch*))
    (with-heap-watch (watch)
      (setf (heap-watch-engines watch) (remove engine (heap-watch-engines watch) :test #'eq)))))
