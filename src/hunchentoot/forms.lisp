(in-package #:hunchentoot-recycling-taskmaster)

;;;; What clients send as parameters, cookies, forms and other content.
;;;;
;;;; Some functions of Hunchentoot would intern it, match it by a regular expression that
;;;; backtracks, or read a number of any length.  Others read content of any size into memory, copy
;;;; it for each few octets that come in chunks, or have the library rfc2388 read forms with files.
;;;; We wrap them: the code here takes linear time for any input, makes no symbols, and keeps to the
;;;; limits.

;;; Lists in header fields, and charsets

(defun text-elements (text)
  "The elements of TEXT, strings, which commas or semicolons separate, without the white space
around them; as Hunchentoot splits cookies."
  (mapcar (lambda (element) (string-trim '(#\Space #\Tab) element))
          (cl-ppcre:split "[,;]" (string-right-trim '(#\, #\; #\Space #\Tab) text))))

(defun forwarded-address (hunchentoots &optional (request hunchentoot:*request*))
  "As REAL-REMOTE-ADDR for REQUEST; HUNCHENTOOTS is that function.  X-Forwarded-For says nothing
more where it was believed or not before."
  (declare (ignore hunchentoots))
  (let ((forwarded (and (not (behind-proxies-p (hunchentoot:request-acceptor request)))
                        (hunchentoot:header-in :x-forwarded-for request))))
    (if forwarded
        (let ((addresses (text-elements forwarded)))
          (values (first addresses) addresses))
        (hunchentoot:remote-addr request))))

(defun external-format-of-type (hunchentoots type)
  "The external format of content of TYPE, the value of a Content-Type or NIL; as HUNCHENTOOTS, a
function, finds it, NIL unless that is a text type with a known charset."
  (declare (ignore hunchentoots))
  (let ((charset (and type (media-type-parameter "charset" type "text"))))
    (and charset
         (or (ignore-errors (flexi-streams:make-external-format charset :eol-style :lf))
             ;; Hunchentoot warns, and its handler logs that.  But nothing muffles the warning, so
             ;; it is also printed, which has no limit.
             (progn (hunchentoot:log-message*
                     :warning "Warning while processing connection: Invalid character set ~
                               '~A' in request has been ignored."
                     charset)
                    nil)))))

;;; Parameters of easy handlers

(defun converted-parameter (hunchentoots argument type)
  "Converts the parameter ARGUMENT to TYPE as HUNCHENTOOTS, a function, does; but returns NIL for a
keyword that does not exist, and for an integer of more than 100 characters."
  (cond ((and (stringp argument) (eq type 'keyword))
         (values (find-symbol (string-upcase argument) '#:keyword)))
        ((not (and (stringp argument) (eq type 'integer) (> (length argument) 100)))
         (funcall hunchentoots argument type))))

(defun array-parameter (hunchentoots name type parameters)
  "An array called NAME of PARAMETERS converted to TYPE, as HUNCHENTOOTS, a function, makes it; but
without those with indices of more than four digits, since clients choose them."
  (let ((longest (+ (length name) (length "[9999]"))))
    (funcall hunchentoots name type
             (remove-if (lambda (parameter) (> (length (car parameter)) longest)) parameters))))

;;; Content

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
  (if (typep (content-stream request) 'stream-of-content)
      (read-form request force external-format)
      (apply hunchentoots arguments)))

;; Where functions cannot be wrapped, this method reads a form before Hunchentoot does.
(unless (functions-can-be-wrapped-p)
  (defmethod hunchentoot:post-parameters :around ((request hunchentoot:request))
    (read-form request)
    (call-next-method)))

(defconstant +octets-for-decoding+ 16
  "How many octets of memory an octet of a form takes at most: as a character of the whole, of an
element, and of a name or value.")

(defun read-form (request &optional force external-format)
  "Gives REQUEST, if it has CONTENT of ours, the parameters in the form that it has, in
EXTERNAL-FORMAT or, if that is NIL, in Hunchentoot's default; unless it was read, or, with FORCE, if
it was.  A form with files cannot be read again, and has none if it is malformed.  Other errors end
the request with 400, unless they are NOT-OF-FORM, or the call comes from outside of the handler's
thread."
  (with-content (content (or (own-content request) (return-from read-form)))
    (with-slots (hunchentoot:raw-post-data hunchentoot:post-parameters) request
      (let* ((format (or external-format hunchentoot:*hunchentoot-default-external-format*))
             (limits (content-limits content))
             (type (and (member (hunchentoot:request-method request)
                                hunchentoot:*methods-for-post-parameters* :test #'eq)
                        (hunchentoot:header-in :content-type request)))
             (boundary nil))
        (handler-case*
            (cond ((null type))
                  ((and (null hunchentoot:raw-post-data)
                        (media-type-p "multipart/form-data" type)
                        (setf boundary (media-type-parameter "boundary" type))
                        (boundary-p boundary))
                   (setf (content-position content) 0) ; it may have failed before
                   (setf hunchentoot:post-parameters (form-with-files content boundary format)
                         hunchentoot:raw-post-data t))
                  ((and (media-type-p "application/x-www-form-urlencoded" type)
                        (or (null hunchentoot:raw-post-data)
                            (and force (typep hunchentoot:raw-post-data 'octets))))
                   (let ((octets (or hunchentoot:raw-post-data
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
                           (form-url-encoded-list-to-alist
                            (cl-ppcre:split "&" (latin-1-text octets 0 (length octets)))
                            format)))))
          (error (condition)
            (when (typep condition 'not-of-form)
              (error condition))
            (hunchentoot:log-message* :error "Error when reading POST parameters from body: ~A"
                                      condition)
            (cond (boundary (setf hunchentoot:raw-post-data t))
                  (*exchange*
                   (setf (hunchentoot:return-code*) hunchentoot:+http-bad-request+)
                   (hunchentoot:abort-request-handler))
                  (t (error condition)))))))))

(defun check-count (content count most refusal)
  "Refuses CONTENT with REFUSAL, a keyword, if COUNT is more than MOST, a number or NIL."
  (when (and most (> count most))
    (refuse-content content refusal)))

;;; Forms with files (multipart/form-data, RFC 7578), octets and not characters.

(defconstant +form-buffer-size+ (* 64 1024)
  "How many octets of a form are read at once; more than the head of a part may have.")

(defun form-with-files (content boundary external-format)
  "The alist of the parameters of the form with BOUNDARY in CONTENT, in EXTERNAL-FORMAT.  The value
of a file is a list of its temporary pathname, name and type."
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
                         ;; All content has come: END-OF-FILE would mean that the client has left.
                         (t (error 'malformed-multipart))))))
             (keep (count)
               (check-count content (incf kept count) (limits-form-octets limits) :form-too-large)
               (when (> (incf unreserved count) +form-buffer-size+)
                 (reserve-memory content (* +octets-for-decoding+ (shiftf unreserved 0)))))
             (take-part (function)      ; calls it with the start and end of each piece
               (loop
                 (multiple-value-bind (event from to) (next-event)
                   (when (eq event :end)
                     (return))
                   (funcall function from to))))
             (field ()
               (flexi-streams:with-output-to-sequence (whole)
                 (take-part (lambda (from to)
                              (keep (- to from))
                              (write-sequence octets whole :start from :end to)))))
             (parameter (from to)       ; a list of the one that the part with this head adds
               (check-count content (incf fields) (limits-field-count limits) :too-many-fields)
               (keep (- to from))
               (multiple-value-bind (name file-name type) (part-facts octets from to)
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
                          (named (form-text (field) external-format))))))))
      (loop for (event from to) = (multiple-value-list (next-event))
            while event
            append (parameter from to)))))

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
