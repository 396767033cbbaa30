(in-package #:hunchentoot-recycling-taskmaster)

;;;; Forms with files (multipart/form-data, RFC 7578), octets and not characters.
;;;;
;;;; Hunchentoot has the library rfc2388 read them, a character at a time and without limits, with a
;;;; warning for each oddity.  Where the content of a request is one of our own streams, the code
;;;; here reads the form, within limits.
;;;;
;;;; The content of a small file stays in memory until the end of its form, so that a form with too
;;;; many files makes no files on disk.

(defconstant +form-buffer-size+ (* 64 1024)
  "How many octets of a form are read at once; more than the head of a part may have.")

(defconstant +octets-for-keeping+ 6
  "How many octets of memory one octet of a part takes at most: in a piece, in the whole part, and
as a character of a name or value.")

(defstruct (form-reader (:include opaque) (:constructor make-form-reader (content parser limits)))
  "The state of reading a form under LIMITS.  OCTETS from START to END were read from CONTENT and
not yet parsed.  FIELDS parts were found, and KEPT octets of them are in memory."
  (content nil :read-only t)
  (parser nil :type multipart-parser :read-only t)
  (limits nil :type limits :read-only t)
  (fields 0 :type index)
  (files 0 :type index)                 ; of the parts
  (held 0 :type index)                  ; octets of files in memory
  (kept 0 :type content-size)
  (unreserved 0 :type content-size)     ; of those kept
  (octets (make-octets +form-buffer-size+) :type octets :read-only t)
  (start 0 :type index)
  (end 0 :type index))

(defun refill (reader)
  "Reads more octets behind those of READER.  Returns how many, 0 at the end."
  (let* ((octets (form-reader-octets reader))
         (kept (- (form-reader-end reader) (form-reader-start reader))))
    (replace octets octets :start2 (form-reader-start reader) :end2 (form-reader-end reader))
    (let ((end (read-sequence octets (form-reader-content reader) :start kept)))
      (setf (form-reader-start reader) 0
            (form-reader-end reader) end)
      (- end kept))))

(defun next-event (reader)
  "The next event of the form, and its start and end in the octets of READER.  NIL at the end of the
form.  Signals MALFORMED-MULTIPART where the end is missing."
  (loop
    (multiple-value-bind (event from to next)
        (parse-multipart (form-reader-parser reader) (form-reader-octets reader)
                         (form-reader-start reader) (form-reader-end reader))
      (setf (form-reader-start reader) next)
      (cond (event
             (return (values event from to)))
            ((multipart-done-p (form-reader-parser reader))
             (return nil))
            ((plusp (refill reader)))
            ;; RFC 2046, section 5.1.1: the line end after the last delimiter may be missing.
            ((multipart-closed-p (form-reader-parser reader))
             (return nil))
            ;; All of the content has come: END-OF-FILE would mean that the client has left.
            (t
             (error 'malformed-multipart))))))

(defun do-contents (function reader)
  "Calls FUNCTION with the octets of READER, a start and an end, for all content of the current
part."
  (loop
    (multiple-value-bind (event from to) (next-event reader)
      (when (eq event :end)
        (return))
      (funcall function (form-reader-octets reader) from to))))

(defun note-field (reader)
  "Counts a part of the form."
  (let ((most (limits-field-count (form-reader-limits reader))))
    (when (and most (> (incf (form-reader-fields reader)) most))
      (refuse-content (form-reader-content reader) :too-many-fields))))

(defun note-file (reader)
  "Counts a part of the form that is a file."
  (let ((most (limits-file-count (form-reader-limits reader))))
    (when (and most (> (incf (form-reader-files reader)) most))
      (refuse-content (form-reader-content reader) :too-many-files))))

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

(defmacro storing-upload (&body body)
  "Evaluates BODY, which makes or writes the file of an upload; signals UPLOAD-NOT-STORED for an
error."
  `(handler-case (progn ,@body)
     (error (condition)
       (error 'upload-not-stored :cause condition))))

(defun open-new-file (pathname)
  "A stream of octets to the new file PATHNAME; NIL when there is a file of that name already."
  (ensure-directories-exist pathname)
  (open pathname :direction :output :if-exists nil :element-type '(unsigned-byte 8)))

(defun file-written-p (pathname pieces rest)
  "Writes PIECES, a list of octets, to the new file PATHNAME, and the octets from a start to an end
with which the function REST calls the function that it is given.  NIL when there is a file of that
name already.  Signals UPLOAD-NOT-STORED where the file cannot be made or written."
  (let ((file (storing-upload (open-new-file pathname))))
    (when file
      (with-open-stream (file file)     ; errors in REST are about the content, not the file
        (flet ((store (octets &optional (start 0) end)
                 (storing-upload (write-sequence octets file :start start :end end))))
          (mapc #'store pieces)
          (funcall rest #'store)
          (storing-upload (finish-output file))))
      t)))

(defparameter *most-names-tried* 100
  "How many names of temporary files are tried for a part of a form.")

(defun new-file (pieces &optional (rest (constantly nil)))
  "The pathname of a temporary file with what FILE-WRITTEN-P writes of PIECES and REST."
  ;; Hunchentoot counts without a lock, and only looks whether the file exists: other threads and
  ;; processes may choose the same name at the same time.
  (loop for pathname = (temporary-pathname)
        repeat *most-names-tried*
        when (file-written-p pathname pieces rest)
          return pathname
        do (setf *tmp-files* (remove pathname *tmp-files*)) ; it belongs to somebody else
        finally (error 'upload-not-stored
                       :cause (format nil "There is no name like ~A." pathname))))

(defconstant +most-held+ +form-buffer-size+
  "How many octets of all files of a form together are held in memory.")

(defun file-contents (reader)
  "The content of the current part, a file: the pathname of a temporary one, or a list of octets, in
order, that are still to be written to one."
  (let ((pieces '()))
    (loop
      (multiple-value-bind (event from to) (next-event reader)
        (when (eq event :end)
          (return (nreverse pieces)))
        (push (subseq (form-reader-octets reader) from to) pieces)
        (when (> (incf (form-reader-held reader) (- to from)) +most-held+)
          (decf (form-reader-held reader) (reduce #'+ pieces :key #'length))
          (return (new-file (nreverse pieces)
                            (lambda (write) (do-contents write reader)))))))))

(defun contents-in-memory (reader)
  "The octets of the content of the current part."
  (let ((pieces '()))
    (do-contents (lambda (octets start end)
                   (note-kept reader (- end start))
                   (push (subseq octets start end) pieces))
                 reader)
    (if (= 1 (length pieces))
        (first pieces)
        (let* ((position (reduce #'+ pieces :key #'length))
               (whole (make-octets position)))
          (dolist (piece pieces whole)
            (decf position (length piece))
            (replace whole (the octets piece) :start1 position))))))

(defstruct (form-part (:include opaque)
                      (:constructor make-form-part (name file-name type charset content)))
  "A part of a form: a field, or with FILE-NAME a file.  The strings are of characters whose codes
are octets."
  (name nil :type (or null string) :read-only t)
  (file-name nil :type (or null string) :read-only t)
  (type nil :type (or null string) :read-only t)
  (charset nil :type (or null string) :read-only t) ; of the file's name, or of the field's content
  (content nil))                        ; octets; or of a file, see FILE-CONTENTS

(defun read-part (reader from to)
  "The part whose head is the octets of READER from FROM to TO, with its content."
  (note-field reader)
  (note-kept reader (- to from))
  (multiple-value-bind (name file-name type charset)
      (part-facts (form-reader-octets reader) from to)
    (when file-name
      (note-file reader))
    (make-form-part name file-name type charset
                    (if file-name
                        (file-contents reader)
                        (contents-in-memory reader)))))

(defun write-held-file (part)
  "Writes the content of PART to a temporary file, where it is one and that was not done before."
  (when (and (form-part-file-name part)
             (listp (form-part-content part)))
    (setf (form-part-content part) (new-file (form-part-content part)))))

(defun form-parts (reader)
  "A list of all parts of the form."
  (let ((parts (loop for (event from to) = (multiple-value-list (next-event reader))
                     while event
                     collect (read-part reader from to))))
    (mapc #'write-held-file parts)))

(defun form-text (octets external-format)
  "The string that OCTETS, or the characters with these codes, are in EXTERNAL-FORMAT."
  (flexi-streams:octets-to-string (if (stringp octets) (map 'octets #'char-code octets) octets)
                                  :external-format external-format))

(defun text-in-charset (octets charset external-format)
  "Like FORM-TEXT, but in CHARSET, the name of one, or NIL.  If the name is unknown, or OCTETS are
invalid in it, uses EXTERNAL-FORMAT; if they are invalid in that, too, Latin-1.  So a client's wrong
charset does not make the form malformed."
  (flet ((text-in (format)
           (handler-case (form-text octets format)
             (error () nil))))
    (if charset
        (or (let ((format (format-named charset)))
              (and format (text-in format)))
            (text-in external-format)
            (form-text octets :latin-1))
        (form-text octets external-format))))

(defun part-parameter (part external-format)
  "A list of the parameters that PART adds to the request."
  (let ((name (form-part-name part))
        (file-name (form-part-file-name part))
        (charset (form-part-charset part)))
    ;; A field for a file for which the user chose none has a file with an empty name.
    (when (and name (not (equal "" file-name)))
      (list (cons (form-text name external-format)
                  (if file-name
                      (list (form-part-content part)
                            (text-in-charset file-name charset external-format)
                            (or (form-part-type part) ""))
                      (text-in-charset (form-part-content part) charset external-format)))))))

(defun stray-octets (reader)
  "Reads the octets behind the form.  Returns how many there are."
  (loop with count = (- (form-reader-end reader) (form-reader-start reader))
        do (setf (form-reader-start reader) (form-reader-end reader))
           (let ((more (refill reader)))
             (when (zerop more)
               (return count))
             (incf count more))))

(defun form-parameters (content boundary external-format limits)
  "The alist of the parameters of the form with BOUNDARY that CONTENT has, under LIMITS."
  (let* ((reader (make-form-reader content (make-multipart-parser boundary) limits))
         (parts (form-parts reader)))
    (prog1 (loop for part in parts
                 append (part-parameter part external-format))
      (let ((stray (stray-octets reader)))
        (when (plusp stray)
          (hunchentoot:log-message*
           :warning "Warning while processing connection: ~A octets of stray data after form-data ~
                     sent by client." stray))))))

(defun boundary-of (request)
  "The boundary of the form that REQUEST has, or NIL."
  (let ((boundary (media-type-parameter "boundary" (hunchentoot:header-in :content-type request))))
    (and boundary
         (boundary-p boundary)
         boundary)))

(defun parse-own-form (content boundary external-format)
  "The alist of the parameters of the form with BOUNDARY in CONTENT, which is ours, in
EXTERNAL-FORMAT.  A malformed form gives NIL and a line in the log.  Signals UPLOAD-NOT-STORED where
a file of a well-formed form cannot be made or written."
  (rewind content)                      ; it may have failed before
  (handler-case* (form-parameters content boundary external-format (content-limits content))
    (error (condition)
      (when (typep condition 'not-of-form)
        (error condition))
      (hunchentoot:log-message* :error "While parsing multipart/form-data parameters: ~A" condition)
      nil)))

(defun unread-boundary (request)
  "The boundary of an unread form with files in REQUEST, which has content of ours; else NIL."
  (and (null (content-asked-for-p request))
       (method-with-parameters-p request)
       (content-of-type-p request "multipart/form-data")
       (boundary-of request)))

(defun read-multipart (request content boundary external-format)
  "Gives REQUEST the parameters of the form with BOUNDARY that is its CONTENT, in EXTERNAL-FORMAT
or, if that is NIL, in Hunchentoot's default.  The content cannot be read again."
  (setf (slot-value request 'hunchentoot:post-parameters)
        (parse-own-form content boundary
                        (or external-format hunchentoot:*hunchentoot-default-external-format*))
        (raw-post-data* request) t))

;;; Where functions cannot be wrapped, this method reads a form before Hunchentoot does.

(unless (functions-can-be-wrapped-p)
  (defmethod hunchentoot:post-parameters :around ((request hunchentoot:request))
    (let ((content (own-content request)))
      (when content
        (form-read-p request content)))
    (call-next-method)))
