(in-package #:hunchentoot-recycling-taskmaster)

;;;; The identifiers of request objects.

(defun note-told-request-id (request http headers)
  "Keeps the identifier of REQUEST that a trusted proxy has told over HTTP, in HEADERS, if any."
  (let ((id (told-request-id http headers)))
    (when id
      (setf (hunchentoot:aux-request-value 'request-id request) id))))

(defmethod identifier-of ((request hunchentoot:request))
  (keep-request-id (hunchentoot:aux-request-value 'request-id request)))

(defmethod identifier-of ((request (eql nil))) ; goes before the method for NULL
  (let ((current (current-request)))
    (and current (identifier-of current))))
