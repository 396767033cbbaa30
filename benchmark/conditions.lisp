(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-condition unavailable (error)
  ((reason :initarg :reason :reader unavailable-reason :type string))
  (:report (lambda (condition stream)
             (write-string (unavailable-reason condition) stream)))
  (:documentation "A tool or a rival can't be had here.  Its REASON is a sentence for
the report: nothing is ever left out silently."))

(defun unavailable (control &rest arguments)
  "Signal UNAVAILABLE; its reason is CONTROL formatted with ARGUMENTS."
  (error 'unavailable :reason (apply #'format nil control arguments)))

(defmacro with-unavailable-noted ((note) &body body)
  "Evaluate BODY; if something in it is UNAVAILABLE, call the function NOTE with
the reason and return NIL."
  `(handler-case (progn ,@body)
     (unavailable (condition)
       (funcall ,note (unavailable-reason condition))
       nil)))

(define-condition mistake (simple-error)
  ()
  (:documentation "What was asked for makes no sense; the message says so to a person,
who needs no backtrace."))

(defun mistake (control &rest arguments)
  "Signal a MISTAKE whose message is CONTROL formatted with ARGUMENTS."
  (error 'mistake :format-control control :format-arguments arguments))
