(in-package #:hunchentoot-recycling-taskmaster)

;;;; The whole content of a request: read into a vector or a form.  uploads.lisp reads forms with
;;;; files.
;;;;
;;;; Hunchentoot reads content of any size into memory, copies it for each few octets that come in
;;;; chunks, and takes parameters apart a character at a time.  We wrap its functions: where the
;;;; content is one of our own streams, the code here does the same within limits.

(defun own-content (request)
  "The content of REQUEST if it is one of our own streams; else NIL."
  (let ((content (request-content request)))
    (and (not (eq content *no-content*))
         (typep content 'content)
         content)))

(defun content-asked-for-p (request)
  "True when a program has read the content of REQUEST, or has its stream."
  (slot-value request 'hunchentoot:raw-post-data))

(defun (setf raw-post-data*) (value request)
  (setf (slot-value request 'hunchentoot:raw-post-data) value))

(defmethod chunga:chunked-stream-input-chunking-p ((stream content))
  "The answer to HUNCHENTOOT:INPUT-CHUNKING-P."
  (not (content-known-p stream)))

(define-condition upload-not-stored (recycling-error)
  ((cause :initarg :cause))
  (:report (lambda (condition stream)
             (format stream "The file of an upload cannot be made or written: ~A"
                     (slot-value condition 'cause))))
  (:documentation "Signalled when the file of an upload cannot be made or written: the form is
right, and the server is at fault."))

(deftype not-of-form ()
  "The errors of reading a form that do not mean that the form is malformed."
  '(or protocol-error content-left upload-not-stored))

(defmacro or-bad-request (&body body)
  "Evaluates BODY.  An error in it ends the request with 400, unless it is NOT-OF-FORM, or BODY runs
outside of the handler's thread."
  `(handler-case* (progn ,@body)
     (error (condition)
       (when (or (null *exchange*) (typep condition 'not-of-form))
         (error condition))
       (hunchentoot:log-message* :error "Error when reading POST parameters from body: ~A"
                                 condition)
       (setf (hunchentoot:return-code*) hunchentoot:+http-bad-request+)
       (hunchentoot:abort-request-handler))))

;;; In a vector

(defun read-content (hunchentoots &rest arguments
                     &key (request hunchentoot:*request*) want-stream (already-read 0))
  "Reads the content of REQUEST, and stores it there.  Calls HUNCHENTOOTS, a function of ARGUMENTS,
where the content is not ours, or where only its stream is wanted."
  (declare (dynamic-extent arguments))
  (let ((content (own-content request)))
    (cond ((or (null content) (plusp already-read))
           (apply hunchentoots arguments))
          (want-stream
           ;; No minimum rate: a program that reads a stream may have agreed on another pace.
           (pace-io (content-io content) nil nil)
           (invite-content content)
           (apply hunchentoots arguments))
          (t
           (with-content (content)
             (or (content-asked-for-p request) ; another thread has just read it
                 (setf (raw-post-data* request)
                       (read-all-content content (limits-raw-octets (content-limits content))
                                         :body-too-large))))))))

;;; Parameters

(defparameter *form-type* "application/x-www-form-urlencoded")

(defun content-of-type-p (request type)
  "True when the Content-Type of REQUEST names the media type TYPE, with any parameters."
  (let ((header (hunchentoot:header-in :content-type request)))
    (and header
         (media-type-p type header))))

(defun method-with-parameters-p (request)
  "True when the method of REQUEST is one for which Hunchentoot reads forms."
  (member (hunchentoot:request-method request) hunchentoot:*methods-for-post-parameters*
          :test #'eq))

(defun form-wanted-p (request force)
  "True when REQUEST, which has content of ours, has a form without files to read: for the first
time, or again if FORCE."
  (let ((read (content-asked-for-p request)))
    (and (or (null read) (and force (typep read 'octets)))
         (method-with-parameters-p request)
         (content-of-type-p request *form-type*))))

(defun field-counter (content limit)
  "A function of octets of a form, a start and an end.  It refuses CONTENT when the octets of all
its calls have more than LIMIT fields, NIL for no limit."
  (let ((fields 1))
    (lambda (octets start end)
      (when limit
        (incf fields (octet-count (load-time-value (char-code #\&)) octets start end))
        (when (> fields limit)
          (refuse-content content :too-many-fields))))))

(defun form-octets (request content)
  "The octets of the form that is the CONTENT of REQUEST, within the limits.  They are stored in
REQUEST, too."
  (let* ((limits (content-limits content))
         (most (limits-form-octets limits))
         (judge (field-counter content (limits-field-count limits)))
         (read (content-asked-for-p request)))
    (cond ((null read)
           (setf (raw-post-data* request)
                 (read-all-content content most :form-too-large judge)))
          ((and most (> (length read) most))
           (refuse-content content :form-too-large))
          (t
           (funcall judge read 0 (length read))
           read))))

(defconstant +octets-for-decoding+ 8
  "How many octets of memory an octet of a form takes when it is decoded: as a character of the
whole, and as one of a name or value.")

(defun read-form (request content external-format)
  "Gives REQUEST the parameters of the form that is its CONTENT, in EXTERNAL-FORMAT or, if that is
NIL, in Hunchentoot's default."
  (let* ((octets (form-octets request content))
         (default hunchentoot:*hunchentoot-default-external-format*)
         (ascii-p (and (null external-format) (encoding-of default) t)))
    (declare (type octets octets))
    (reserve-memory content (* +octets-for-decoding+ (length octets)))
    (setf (slot-value request 'hunchentoot:post-parameters)
          (query-alist (latin-1-text octets 0 (length octets)) (or external-format default)
                       ascii-p))))

(defun read-parameters (hunchentoots &rest arguments
                        &key (request hunchentoot:*request*) force external-format)
  "Sees to it that the parameters in the content of REQUEST are known; by HUNCHENTOOTS, a function
of ARGUMENTS, where that is none of ours."
  (declare (dynamic-extent arguments))
  (let ((content (own-content request)))
    ;; Most requests are asked, and have none.
    (if content
        (form-read-p request content force external-format)
        (handler-bind ((warning (lambda (warning) ; which would be printed, too
                                  (hunchentoot:log-message*
                                   :warning "Warning while processing connection: ~A" warning)
                                  (muffle-warning warning))))
          (apply hunchentoots arguments)))))

(defun form-read-p (request content &optional force external-format)
  "Gives REQUEST, with CONTENT of ours, the parameters in the form that it has, in EXTERNAL-FORMAT
or, if that is NIL, in Hunchentoot's default; NIL where it has none, or, unless FORCE, it was read."
  (with-content (content)
    (if (form-wanted-p request force)
        (progn (or-bad-request (read-form request content external-format))
               t)
        (let ((boundary (unread-boundary request)))
          (when boundary
            (or-bad-request (read-multipart request content boundary external-format))
            t)))))
