(in-package #:hunchentoot-recycling-taskmaster)

;;;; The content of a request: read into a vector, or as a form.
;;;;
;;;; Hunchentoot reads content of any size into memory, copies it for each few octets that come in
;;;; chunks, and takes parameters apart a character at a time; it has the library rfc2388 read forms
;;;; with files.  We wrap its functions: where the content is one of our own streams, the code here
;;;; does the same within limits.

(deftype not-of-form ()
  "The errors of reading a form that do not mean that the form is malformed: among others that an
upload's file cannot be made or written."
  '(or protocol-error file-error stream-error))

(defun own-content (request)
  "The CONTENT of REQUEST if it has one, and its stream is ours; else NIL."
  (let* ((stream (content-stream request))
         (content (and (typep stream 'stream-of-content) (content-of stream))))
    (and (not (eq content *no-content*))
         content)))

(defun read-content (hunchentoots &rest arguments
                     &key (request hunchentoot:*request*) want-stream (already-read 0))
  "Reads the content of REQUEST, and stores it there.  Calls HUNCHENTOOTS, a function of ARGUMENTS,
where the content is not ours, or where only its stream is wanted."
  (declare (dynamic-extent arguments))
  (let ((content (own-content request)))
    (if (or (null content) want-stream (plusp already-read))
        (apply hunchentoots arguments)
        (with-content (content)
          (or (slot-value request 'hunchentoot:raw-post-data) ; another thread has just read it
              (setf (slot-value request 'hunchentoot:raw-post-data)
                    (read-all-content content (limits-raw-octets (content-limits content))
                                      :body-too-large)))))))

;;; Forms

(defun read-parameters (hunchentoots &rest arguments
                        &key (request hunchentoot:*request*) force external-format)
  "Sees to it that the parameters in the content of REQUEST are known; by HUNCHENTOOTS, a function
of ARGUMENTS, where that is none of ours."
  (declare (dynamic-extent arguments))
  (let ((content (own-content request)))
    (if content                         ; most requests are asked, and have none
        (read-form request content force external-format)
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
        (read-form request content)))
    (call-next-method)))

(defconstant +octets-for-decoding+ 8
  "How many octets of memory an octet of a form takes when it is decoded: as a character of the
whole, and as one of a name or value.")

(defun read-form (request content &optional force external-format)
  "Gives REQUEST, with CONTENT of ours, the parameters in the form that it has, in EXTERNAL-FORMAT
or, if that is NIL, in Hunchentoot's default; unless it was read, or, with FORCE, if it was.  A form
with files cannot be read again.  An error ends the request with 400, unless it is NOT-OF-FORM, or
the call comes from outside of the handler's thread."
  (with-content (content)
    (with-slots (hunchentoot:raw-post-data hunchentoot:post-parameters) request
      (let* ((format (or external-format hunchentoot:*hunchentoot-default-external-format*))
             (type (and (member (hunchentoot:request-method request)
                                hunchentoot:*methods-for-post-parameters* :test #'eq)
                        (hunchentoot:header-in :content-type request)))
             (boundary (and type
                            (null hunchentoot:raw-post-data)
                            (media-type-p "multipart/form-data" type)
                            (media-type-parameter "boundary" type))))
        (handler-case*
            (cond ((null type))
                  ((and boundary (boundary-p boundary))
                   (rewind content)     ; it may have failed before
                   (setf hunchentoot:post-parameters (form-with-files content boundary format)
                         hunchentoot:raw-post-data t))
                  ((and (media-type-p "application/x-www-form-urlencoded" type)
                        (or (null hunchentoot:raw-post-data)
                            (and force (typep hunchentoot:raw-post-data 'octets))))
                   (let* ((limits (content-limits content))
                          (octets (or hunchentoot:raw-post-data
                                      (read-all-content content (limits-form-octets limits)
                                                        :form-too-large))))
                     (setf hunchentoot:raw-post-data octets)
                     (check-count content (length octets) (limits-form-octets limits)
                                  :form-too-large)
                     (check-count content
                                  (1+ (count (load-time-value (char-code #\&)) (the octets octets)))
                                  (limits-field-count limits) :too-many-fields)
                     (reserve-memory content (* +octets-for-decoding+ (length octets)))
                     (setf hunchentoot:post-parameters
                           (query-alist (latin-1-text octets 0 (length octets)) format
                                        (and (null external-format) (encoding-of format) t))))))
          (error (condition)
            (when (or (null *exchange*) (typep condition 'not-of-form))
              (error condition))
            (hunchentoot:log-message* :error "Error when reading POST parameters from body: ~A"
                                      condition)
            (setf (hunchentoot:return-code*) hunchentoot:+http-bad-request+)
            (hunchentoot:abort-request-handler)))))))

(defun check-count (content count most refusal)
  "Refuses CONTENT with REFUSAL, a keyword, if COUNT is more than MOST, a number or NIL."
  (when (and most (> count most))
    (refuse-content content refusal)))

;;; Forms with files (multipart/form-data, RFC 7578), octets and not characters.

(defconstant +form-buffer-size+ (* 64 1024)
  "How many octets of a form are read at once; more than the head of a part may have.")

(defconstant +octets-for-keeping+ 6
  "How many octets of memory one octet of a part takes at most: in a piece, in the whole part, and
as a character of a name or value.")

(defun form-with-files (content boundary external-format)
  "The alist of the parameters of the form with BOUNDARY in CONTENT, in EXTERNAL-FORMAT.  The value
of a file is a list of its temporary pathname, name and type.  A malformed form gives NIL and a line
in the log."
  (let ((parser (make-multipart-parser boundary))
        (limits (content-limits content))
        (octets (make-octets +form-buffer-size+))
        (start 0) (end 0)               ; of those that are not yet parsed
        (fields 0) (files 0) (kept 0) (unreserved 0)) ; KEPT octets of these are in memory
    (labels ((more-p ()                 ; true when more octets were read, NIL at the end
               (let ((rest (- end start)))
                 (replace octets octets :start2 start :end2 end)
                 (setf start 0
                       end (read-octets-of-content content octets rest (length octets)))
                 (> end rest)))
             (next-event ()             ; and its start and end; NIL at the end of the form
               (loop
                 (multiple-value-bind (event from to next)
                     (parse-multipart parser octets start end)
                   (setf start next)
                   (cond (event (return (values event from to)))
                         ((multipart-done-p parser) (return nil))
                         ((more-p))
                         ;; RFC 2046, section 5.1.1: no line end need follow the last delimiter.
                         ((multipart-closed-p parser) (return nil))
                         ;; All content has come: END-OF-FILE would mean that the client has left.
                         (t (error 'malformed-multipart))))))
             (keep (count)
               (check-count content (incf kept count) (limits-form-octets limits) :form-too-large)
               (when (> (incf unreserved count) +form-buffer-size+)
                 (reserve-memory content (* +octets-for-keeping+ (shiftf unreserved 0)))))
             (take-part (function)      ; calls it with the start and end of each piece
               (loop
                 (multiple-value-bind (event from to) (next-event)
                   (when (eq event :end)
                     (return))
                   (funcall function from to))))
             (field ()
               (let ((pieces '()))
                 (take-part (lambda (from to)
                              (keep (- to from))
                              (push (subseq octets from to) pieces)))
                 (flexi-streams:with-output-to-sequence (whole)
                   (dolist (piece (nreverse pieces))
                     (write-sequence piece whole)))))
             (parameter (from to)       ; a list of the one that the part with this head adds
               (check-count content (incf fields) (limits-field-count limits) :too-many-fields)
               (keep (- to from))
               (multiple-value-bind (name file-name type charset) (part-facts octets from to)
                 (when file-name
                   (check-count content (incf files) (limits-file-count limits) :too-many-files))
                 (flet ((named (value)
                          (list (cons (form-text name external-format) value))))
                   (cond ((or (null name) (equal "" file-name)) ; the user has chosen no file
                          (take-part (constantly nil)))
                         (file-name
                          (named (list (new-file (lambda (write)
                                                   (take-part (lambda (from to)
                                                                (funcall write octets from to)))))
                                       (form-text file-name external-format)
                                       (or type ""))))
                         (t
                          (named (text-in-charset (field) charset external-format))))))))
      (handler-case*
          (loop for (event from to) = (multiple-value-list (next-event))
                while event
                append (parameter from to))
        (error (condition)
          (when (typep condition 'not-of-form)
            (error condition))
          (hunchentoot:log-message* :error "While parsing multipart/form-data parameters: ~A"
                                    condition)
          nil)))))

(defparameter *usual-folder* "/tmp/hunchentoot/"
  "Hunchentoot's default folder for uploads.")

(defun new-file (function)
  "The pathname of a new file, in the folder that the program has chosen or a private one.  FUNCTION
is called with a function of octets, a start and an end, which writes these to the file.  It is
deleted at the end of the request."
  (let ((pathname (make-pathname
                   :name (format nil "hunchentoot-~36R" (random (expt 36 8) (make-random-state t)))
                   :type nil
                   :defaults (or (and (equal *usual-folder* hunchentoot:*tmp-directory*)
                                      (private-folder))
                                 hunchentoot:*tmp-directory*))))
    (when hunchentoot:*file-upload-hook*
      (funcall hunchentoot:*file-upload-hook* pathname))
    (ensure-directories-exist pathname)
    (with-open-stream (file (open pathname :direction :output :if-exists :error
                                           :element-type '(unsigned-byte 8)))
      (push pathname *tmp-files*)
      (funcall function (lambda (octets start end)
                          (write-sequence octets file :start start :end end)))
      (finish-output file))
    pathname))

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
