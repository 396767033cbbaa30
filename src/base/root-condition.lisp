(in-package #:hunchentoot-recycling-taskmaster.base)

(define-condition recycling-error (error)
  ()
  (:documentation "The root of every error that this library signals of its own."))
