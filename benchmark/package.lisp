(defpackage #:recycling-benchmark
  (:documentation "Measures our server and others side by side, and reports.")
  (:use #:common-lisp)
  (:export #:bench #:report #:profile #:call-from-make))

(in-package #:recycling-benchmark)

(define-condition unavailable (error)
  ((reason :initarg :reason :reader unavailable-reason
           :documentation "Why, a string."))
  (:report (lambda (condition stream)
             (write-string (unavailable-reason condition) stream)))
  (:documentation "Something cannot be had here, or does not work.  The run goes on without it, and
the report says so."))

(defun unavailable (control &rest arguments)
  "Signals UNAVAILABLE with what FORMAT makes of CONTROL and ARGUMENTS."
  (error 'unavailable :reason (apply #'format nil control arguments)))
