(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The running engines of this Lisp, which the end of the process has to end.
;;;;
;;;; Invariant: an engine is listed from the beginning of its first sentinel until it has stopped
;;;; and no worker is left in it, not even one that a stop could not end.

(defvar *engines* '()
  "A list of engines; replaced whole.")

(defun list-engine (engine)
  "Lists ENGINE, which begins to serve."
  (loop for engines = *engines*
        until (or (member engine engines :test #'eq)
                  (compare-and-set (symbol-value '*engines*) engines (cons engine engines)))))

(defun unlist-engine (engine)
  "Lists ENGINE no more: it is empty."
  (loop for engines = *engines*
        until (compare-and-set (symbol-value '*engines*) engines
                               (remove engine engines :test #'eq))))
