(in-package #:hunchentoot-recycling-taskmaster.base)

(define-condition recycling-error (error)
  ()
  (:documentation "The root of all conditions that this library defines and signals."))
