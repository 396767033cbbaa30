(in-package #:hunchentoot-recycling-taskmaster)

;;;; The content of a request: read into a vector, or as a form.
;;;;
;;;; Hunchentoot reads content of any size into memory, copies it for each few octets that come in
;;;; chunks, and takes parameters apart a character at a time; it has the library rfc2388 read forms
;;;; with files.  We wrap its functions: where the content is one of our own streams, the code here
;;;; does the same within limits.

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

(defun own-content (request)
  "The CONTENT of REQUEST if it has one, and its stream is ours; else NIL."
  (let* ((stream (content-stream request))
         (content (and (typep stream 'stream-of-content) (content-of stream))))
    (and (not (eq content *no-content*))
         content)))

(defmethod chunga:chunked-stream-input-chunking-p ((stream stream-of-content))
  "The answer to HUNCHENTOOT:INPUT-CHUNKING-P."
  (null (content-announced (content-of stream))))

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
           (setf (io-pace (content-io content)) nil)
           (invite-content content)
           (apply hunchentoots arguments))
          (t
           (with-content (content)
             (or (slot-value request 'hunchentoot:raw-post-data) ; another thread has just read it
                 (setf (slot-value request 'hunchentoot:raw-post-data)
                       (read-all-content content (limits-raw-octets (content-limits content))
                                         :body-too-large))))))))

;;; Forms

(defun read-parameters (hunchentoots &rest arguments
                        &key (request hunchentoot:*request*) force external-format)
  "Sees to it that the parameters in the content of REQUEST are known; by HUNCHENTOOTS, a function
of ARGUMENTS, where that is none of ours."
  (declare (dynamic-extent arguments))
  (let ((content (own-content request)))
    (if content                         ; most requests are asked, and have none
        (form-read-p request content force external-format)
        (handler-bind ((warning (lambda (warning) ; which would be printed, too
                                  (hunchentoot:log-message*
                                   :warning "Warning while processing connection: ~A" warning)
                                  (muffle-warning warning))))
          (apply hunchentoots arguments)))))

;; Where functions cannot be wrapped, this method reads a form before Hunchentoot does.
(unless (functions-can-be-wrapped-p)
  (defmethod hunchentoot:post-parameters :around ((request hunchentoot:request))
    (let ((content (own-content request)))
      (when content
        (form-read-p request content)))
    (call-next-method)))

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

(defun form-read-p (request content &optional force external-format)
  "Gives REQUEST, with CONTENT of ours, the parameters in the form that it has, in EXTERNAL-FORMAT
or, if that is NIL, in Hunchentoot's default; NIL where it has none, or, unless FORCE, it was read.
A form with files cannot be read again."
  (with-content (content)
    (let ((read (slot-value request 'hunchentoot:raw-post-data))
          (type (hunchentoot:header-in :content-type request)))
      (flet ((take (parameters)
               (setf (slot-value request 'hunchentoot:post-parameters) parameters)
               t))
        (cond ((not (and type
                         (member (hunchentoot:request-method request)
                                 hunchentoot:*methods-for-post-parameters* :test #'eq)))
               nil)
              ((and (media-type-p "application/x-www-form-urlencoded" type)
                    (or (null read) (and force (typep read 'octets))))
               (or-bad-request (take (plain-form request content external-format))))
              ((and (null read) (media-type-p "multipart/form-data" type))
               (let ((boundary (media-type-parameter "boundary" type)))
                 (when (and boundary (boundary-p boundary))
                   (or-bad-request
                     (rewind content)   ; it may have failed before
                     (prog1 (take (form-with-files content boundary external-format))
                       (setf (slot-value request 'hunchentoot:raw-post-data) t)))))))))))

(defconstant +octets-for-decoding+ 8
  "How many octets of memory an octet of a form takes when it is decoded: as a character of the
whole, and as one of a name or value.")

(defun plain-form (request content external-format)
  "The alist of the parameters of the form without files that REQUEST has as its CONTENT.  Its
octets are stored in REQUEST."
  (let* ((limits (content-limits content))
         (most (limits-form-octets limits))
         (most-fields (limits-field-count limits))
         (fields 1)
         (octets (slot-value request 'hunchentoot:raw-post-data))
         (default hunchentoot:*hunchentoot-default-external-format*)
         (ascii-p (and (null external-format) (encoding-of default) t)))
    (flet ((judge (octets start end)
             (when most-fields
               (incf fields (octet-count (load-time-value (char-code #\&)) octets start end))
               (when (> fields most-fields)
                 (refuse-content content :too-many-fields)))))
      (cond ((null octets)
             (setf octets (read-all-content content most :form-too-large #'judge)
                   (slot-value request 'hunchentoot:raw-post-data) octets))
            ((and most (> (length octets) most))
             (refuse-content content :form-too-large))
            (t
             (judge octets 0 (length octets)))))
    (reserve-memory content (* +octets-for-decoding+ (length octets)))
    (query-alist (latin-1-text octets 0 (length octets)) (or external-format default) ascii-p)))

;;; Forms with files (multipart/form-data, RFC 7578), octets and not characters.

(defconstant +form-buffer-size+ (* 64 1024)
  "How many octets of a form are read at once; more than the head of a part may have.")

(defconstant +octets-for-keeping+ 6
  "How many octets of memory one octet of a part takes at most: in a piece, in the whole part, and
as a character of a name or value.")

(defstruct (form-reader (:include opaque)
                        (:constructor make-form-reader
                            (content parser &aux (limits (content-limits content)))))
  "The state of reading a form.  OCTETS from START to END were read from CONTENT and not yet parsed.
FIELDS parts were found, FILES of them with files, and KEPT octets of them are in memory."
  (content nil :read-only t)
  (parser nil :type multipart-parser :read-only t)
  (limits nil :type limits :read-only t)
  (fields 0 :type index)
  (files 0 :type index)
  (kept 0 :type content-size)
  (unreserved 0 :type content-size)     ; of those kept
  (octets (make-octets +form-buffer-size+) :type octets :read-only t)
  (start 0 :type index)
  (end 0 :type index))

(defun form-with-files (content boundary external-format)
  "The alist of the parameters of the form with BOUNDARY in CONTENT, in EXTERNAL-FORMAT or, if that
is NIL, in Hunchentoot's default.  A malformed form gives NIL and a line in the log.  Signals
UPLOAD-NOT-STORED where a file of a well-formed form cannot be made or written."
  (handler-case*
      (let* ((reader (make-form-reader content (make-multipart-parser boundary)))
             (format (or external-format hunchentoot:*hunchentoot-default-external-format*))
             (parameters (loop for (event from to) = (multiple-value-list (next-event reader))
                               while event
                               append (part-parameter reader from to format)))
             (stray (- (form-reader-end reader) (form-reader-start reader))))
        (loop for more = (progn (setf (form-reader-start reader) (form-reader-end reader))
                                (refill reader))
              until (zerop more)
              do (incf stray more))
        (when (plusp stray)
          (hunchentoot:log-message*
           :warning "Warning while processing connection: ~A octets of stray data after form-data ~
                     sent by client." stray))
        parameters)
    (error (condition)
      (when (typep condition 'not-of-form)
        (error condition))
      (hunchentoot:log-message* :error "While parsing multipart/form-data parameters: ~A" condition)
      nil)))

(defun refill (reader)
  "Reads more octets behind those of READER.  Returns how many, 0 at the end."
  (let* ((octets (form-reader-octets reader))
         (kept (- (form-reader-end reader) (form-reader-start reader))))
    (replace octets octets :start2 (form-reader-start reader) :end2 (form-reader-end reader))
    (let ((end (read-octets-of-content (form-reader-content reader)
                                       octets kept (length octets))))
      (setf (form-reader-start reader) 0
            (form-reader-end reader) end)
      (- end kept))))

(defun next-event (reader)
  "The next event of the form, and its start and end in the octets of READER.  NIL at the end of the
form.  Signals MALFORMED-MULTIPART where the end is missing."
  (loop with parser = (form-reader-parser reader)
        do (multiple-value-bind (event from to next)
               (parse-multipart parser (form-reader-octets reader)
                                (form-reader-start reader) (form-reader-end reader))
             (setf (form-reader-start reader) next)
             (cond (event (return (values event from to)))
                   ((multipart-done-p parser) (return nil))
                   ((plusp (refill reader)))
                   ;; RFC 2046, section 5.1.1: the line end after the last delimiter may be missing.
                   ((multipart-closed-p parser) (return nil))
                   ;; All content has come: END-OF-FILE would mean that the client has left.
                   (t (error 'malformed-multipart))))))

(defun part-parameter (reader from to external-format)
  "A list of the parameters that a part adds to the request; its head is the octets of READER FROM
TO.  The value of a file is a list of its temporary pathname, name and type."
  (let ((limits (form-reader-limits reader)))
    (flet ((check (count most refusal)
             (when (and most (> count most))
               (refuse-content (form-reader-content reader) refusal))))
      (check (incf (form-reader-fields reader)) (limits-field-count limits) :too-many-fields)
      (note-kept reader (- to from))
      (multiple-value-bind (name file-name type charset)
          (part-facts (form-reader-octets reader) from to)
        (when file-name
          (check (incf (form-reader-files reader)) (limits-file-count limits) :too-many-files))
        (cond ((or (null name) (equal "" file-name)) ; the user has chosen no file
               (loop until (eq :end (next-event reader))))
              (t
               (list (cons (form-text name external-format)
                           (if file-name
                               (list (new-file reader)
                                     (text-in-charset file-name charset external-format)
                                     (or type ""))
                               (text-in-charset (field-octets reader)
                                                charset external-format))))))))))

(defun note-kept (reader count)
  "Counts COUNT octets more of the form that are to be kept in memory."
  (let ((most (limits-form-octets (form-reader-limits reader)))
        (content (form-reader-content reader)))
    (incf (form-reader-kept reader) count)
    (when (and most (> (form-reader-kept reader) most))
      (refuse-content content :form-too-large))
    (when (> (incf (form-reader-unreserved reader) count) +form-buffer-size+)
      (reserve-memory content (* +octets-for-keeping+
                                 (shiftf (form-reader-unreserved reader) 0))))))

(defun field-octets (reader)
  "The octets of the content of the current part, a field."
  (let ((pieces '()) (size 0))
    (loop
      (multiple-value-bind (event from to) (next-event reader)
        (when (eq event :end)
          (return))
        (note-kept reader (- to from))
        (incf size (- to from))
        (push (subseq (form-reader-octets reader) from to) pieces)))
    (let ((whole (make-octets size)))
      (dolist (piece pieces whole)
        (decf size (length piece))
        (replace whole (the octets piece) :start1 size)))))

(defparameter *most-names-tried* 100
  "How many names of temporary files are tried for a part of a form.")

(defmacro storing-upload (&body body)
  "Evaluates BODY, which makes or writes the file of an upload; signals UPLOAD-NOT-STORED for an
error."
  `(handler-case (progn ,@body)
     (error (condition)
       (error 'upload-not-stored :cause condition))))

(defparameter *usual-folder* "/tmp/hunchentoot/"
  "Hunchentoot's default folder for uploads.")

(defun temporary-pathname ()
  "A pathname for the file of an upload, in the folder that the program has chosen or a private one.
It is deleted at the end of the request.  Signals UPLOAD-NOT-STORED."
  (let* ((number (random (expt 36 8) (make-random-state t)))
         (folder (or (and (equal *usual-folder* hunchentoot:*tmp-directory*)
                          (storing-upload (private-folder)))
                     hunchentoot:*tmp-directory*))
         (pathname (make-pathname :name (format nil "hunchentoot-~36R" number)
                                  :type nil :defaults folder)))
    (push pathname *tmp-files*)
    (when hunchentoot:*file-upload-hook*
      (funcall hunchentoot:*file-upload-hook* pathname))
    pathname))

(defun new-file (reader)
  "The pathname of a temporary file with the content of the current part.  Signals UPLOAD-NOT-STORED
where the file cannot be made or written."
  (loop repeat *most-names-tried*
        for pathname = (temporary-pathname)
        for file = (storing-upload
                     (ensure-directories-exist pathname)
                     (open pathname :direction :output :if-exists nil
                                    :element-type '(unsigned-byte 8)))
        do (when file
             (with-open-stream (file file) ; errors of the content are not the file's
               (loop
                 (multiple-value-bind (event from to) (next-event reader)
                   (when (eq event :end)
                     (return))
                   (storing-upload (write-sequence (form-reader-octets reader) file
                                                   :start from :end to))))
               (storing-upload (finish-output file)))
             (return pathname))
           (setf *tmp-files* (remove pathname *tmp-files*)) ; it belongs to somebody else
        finally (error 'upload-not-stored
                       :cause (format nil "There is no name like ~A." pathname))))

;;; Text of forms

(defun form-text (octets external-format)
  "The string that OCTETS, or the characters with these codes, are in EXTERNAL-FORMAT."
  (flexi-streams:octets-to-string (if (stringp octets) (map 'octets #'char-code octets) octets)
                                  :external-format external-format))

(defun text-in-charset (octets charset external-format)
  "Like FORM-TEXT, but in CHARSET, the name of one, or NIL.  If the name is unknown, or OCTETS are
invalid in it, uses EXTERNAL-FORMAT; if they are invalid in that, too, Latin-1.  So a client's wrong
charset does not make the form malformed."
  (flet ((text-in (format)
           (and format (ignore-errors (form-text octets format)))))
    (cond ((null charset) (form-text octets external-format))
          ((text-in (format-named charset)))
          ((text-in external-format))
          (t (form-text octets :latin-1)))))
