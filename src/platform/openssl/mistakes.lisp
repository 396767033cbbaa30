(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Mistakes in the settings, certificates and keys for TLS.  They are signalled at the start,
;;;; before a client meets them.

(define-condition tls-mistake (recycling-error)
  ((subject :initarg :subject :reader tls-mistake-subject)
   (index :initarg :index :initform nil :reader tls-mistake-index)
   (value :initarg :value :initform nil :reader tls-mistake-value)
   (reason :initarg :reason :reader tls-mistake-reason))
  (:report (lambda (condition stream)
             (format stream "~A~@[, ~S,~] ~A." (tls-mistake-subject condition)
                     (tls-mistake-value condition) (tls-mistake-reason condition))))
  (:documentation "A setting, a certificate or a key for TLS cannot be used."))

(defun tls-mistaken (subject index value control &rest arguments)
  "Signals a TLS-MISTAKE about SUBJECT, INDEX and VALUE.  FORMAT makes its reason from CONTROL and
ARGUMENTS."
  (error 'tls-mistake :subject subject :index index :value value
                      :reason (apply #'format nil control arguments)))
