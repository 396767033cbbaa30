(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Other Lisps: signals do what the Lisp itself lets them do.

(define-condition signals-unsupported (recycling-error)
  ()
  (:report (lambda (condition stream)
             (declare (ignore condition))
             (format stream "This library cannot handle signals on ~A."
                     (lisp-implementation-type))))
  (:documentation "CALL-ON-SIGNAL does not work on this Lisp."))

(defun call-on-signal (name function)
  "Signals SIGNALS-UNSUPPORTED for NAME and FUNCTION: this Lisp has no known way to handle signals."
  (declare (ignore name function))
  (error 'signals-unsupported))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  SECONDS is ignored."
  (declare (ignore seconds))
  (uiop:quit code))
