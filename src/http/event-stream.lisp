(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; Server-sent events: the format text/event-stream (HTML Living Standard, section 9.2).

(define-condition malformed-event (recycling-error)
  ((field :initarg :field :reader malformed-event-field)
   (value :initarg :value :reader malformed-event-value))
  (:report (lambda (condition stream)
             (format stream "~S cannot be the ~(~A~) of a server-sent event."
                     (malformed-event-value condition) (malformed-event-field condition))))
  (:documentation "A value cannot be a field of a server-sent event."))

(defun line-end-p (char)
  (or (char= char #\Return) (char= char #\Newline)))

(defun check-event-field (field value &rest forbidden)
  "VALUE, for FIELD, as a string.  Signals MALFORMED-EVENT if it has a line end or one of the
characters FORBIDDEN."
  (let ((text (princ-to-string value)))
    (if (find-if (lambda (char) (or (line-end-p char) (member char forbidden))) text)
        (error 'malformed-event :field field :value value)
        text)))

(defun write-lines (text prefix stream)
  "Writes each line of TEXT, after PREFIX, to STREAM.  A line ends with LF, CR, or both."
  (loop with start = 0
        for end = (position-if #'line-end-p text :start start)
        do (write-string prefix stream)
           (write-string text stream :start start :end end)
           (terpri stream)
        while end
        do (setf start (if (and (char= #\Return (char text end))
                                (< (1+ end) (length text))
                                (char= #\Newline (char text (1+ end))))
                           (+ 2 end)
                           (1+ end)))))

(defun utf-8-octets (text)
  "The string TEXT in UTF-8.  Signals MALFORMED-EVENT if UTF-8 cannot encode a character of it."
  (let* ((size (or (encoded-length text :utf-8)
                   (error 'malformed-event :field :data :value text)))
         (output (make-output (make-octets size))))
    (encode-string output text :utf-8 size)
    (output-octets output)))

(defun encode-event (data &key event id retry)
  "A server-sent event, a fresh vector of octets.  DATA is a string of any number of lines, or NIL
for an event without data.  EVENT is the type and ID the identifier of the event, strings or other
objects to PRINC.  RETRY is the delay in milliseconds, an integer, after which a client that has
lost its connection tries again.  EVENT, ID and RETRY are NIL for none.  Signals MALFORMED-EVENT if
EVENT or ID has a line end, or ID has a null character (HTML Living Standard, section 9.2.5)."
  (check-type data (or null string))
  (check-type retry (or null unsigned-byte))
  (utf-8-octets
   (with-output-to-string (stream)
     (when event
       (format stream "event: ~A~%" (check-event-field :event event)))
     (when id
       (format stream "id: ~A~%" (check-event-field :id id (code-char 0))))
     (when retry
       (format stream "retry: ~D~%" retry))
     (when data
       (write-lines data "data: " stream))
     (terpri stream))))

(defun encode-comment (&optional (text ""))
  "A comment in a stream of events, a fresh vector of octets, with TEXT, a string.  Clients ignore
it (HTML Living Standard, section 9.2.6)."
  (utf-8-octets
   (with-output-to-string (stream)
     (write-lines text ":" stream)
     (terpri stream))))
