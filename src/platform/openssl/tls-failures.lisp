(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The reasons for failed handshakes in CL+SSL's conditions.

(defmethod tls-failure-words ((condition cl+ssl::ssl-error/handle))
  (let* ((text (princ-to-string condition)) ; in the format of ERR_print_errors(3)
         (fields (uiop:split-string text :separator '(#\: #\Newline))))
    ;; The fields are "error", its number, the library, the function and the reason.
    (or (nth 4 (member "error" fields :test #'string=))
        (typecase condition
          ((or cl+ssl::ssl-error-syscall cl+ssl::ssl-error-zero-return) :gone)
          (t text)))))
