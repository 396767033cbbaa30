(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What CL+SSL's conditions tell of handshakes that failed.

(defun reason-in-error-text (text)
  "The reason in TEXT, which has what ERR_print_errors(3) prints of an error; NIL where there is
none."
  (let ((fields (uiop:split-string text :separator '(#\: #\Newline))))
    ;; error, its number, the library, the function, the reason
    (nth 4 (member "error" fields :test #'string=))))

(defmethod tls-failure-words ((condition cl+ssl::ssl-error/handle))
  (let ((text (princ-to-string condition)))
    (or (reason-in-error-text text)
        (typecase condition
          ((or cl+ssl::ssl-error-syscall cl+ssl::ssl-error-zero-return) :gone)
          (t text)))))
