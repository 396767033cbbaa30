(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Files in replies: a cache of facts about those that are sent, and what a client gets of one:
;;;; all of it, ranges, a compressed sibling, or nothing.
;;;;
;;;; A sibling of the file app.js is app.js.br, app.js.zst or app.js.gz beside it.  One that is
;;;; older than the file is ignored: it was made of an earlier version.  No sibling stands for a
;;;; file that is not there.

(defparameter *file-copy-limit* (* 32 1024)
  "Files of at most so many octets are read into the reply, behind its head, and sent with it by one
system call.  The system sends larger ones from its cache.  See docs/decisions.md.")

(defparameter *constant-time* (encode-universal-time 1 0 0 1 1 1970 0)
  "A file of this time or before has that of a builder who gives it to all versions, as Nix does.")

(defstruct (version (:include opaque))
  "The state in which a file was found."
  (pathname nil :type pathname :read-only t)
  (name nil :type string :read-only t)  ; as the system calls it
  (size 0 :type index :read-only t)
  (seconds 0 :type integer :read-only t) ; the time of the change, a universal time
  (nanoseconds 0 :type integer :read-only t)
  (date nil :type (or null string) :read-only t) ; the same, as HTTP writes it
  (tag nil :type (or null string) :read-only t))

(defvar *versions* (make-array 1024 :initial-element nil)
  "The cache: the last settled VERSION of a file is at the hash of its pathname until another takes
that place.")

(defun call-with-file (pathname function)
  "Calls FUNCTION with a FILE-PART of the file PATHNAME, which it may send, and its VERSION.  NIL
where that is no readable regular file."
  (let* ((pathname (let ((pathname (translate-logical-pathname (pathname pathname))))
                     (if (eq :absolute (first (pathname-directory pathname)))
                         pathname
                         (merge-pathnames pathname))))
         (place (mod (sxhash pathname) (length *versions*)))
         (version (let ((known (svref *versions* place)))
                    (and known (equal pathname (version-pathname known)) known)))
         (name (if version (version-name version) (native-name pathname)))
         (file (if name (open-file name) -1))
         (part (and (not (minusp file)) (make-file-part file))))
    (unwind-protect
         (multiple-value-bind (size seconds nanoseconds) (if part (file-facts file) nil)
           (when size
             (unless (and version
                          (= size (version-size version))
                          (= seconds (version-seconds version))
                          (= nanoseconds (version-nanoseconds version)))
               (let* ((now (get-universal-time))
                      ;; The clock of the file system stands still for milliseconds at a time.
                      (settled-p (>= (- now seconds) 2))
                      (telling-p (> seconds *constant-time*)))
                 (setf version
                       (make-version
                        :pathname pathname :name name
                        :size size :seconds seconds :nanoseconds nanoseconds
                        ;; Not later than that of the reply (RFC 9110, section 8.8.2.1).
                        :date (and telling-p (imf-fixdate (min now seconds)))
                        :tag (and telling-p (entity-tag seconds nanoseconds size settled-p))))
                 (when settled-p
                   (set-published (svref *versions* place) version))))
             (funcall function part version)
             t))
      (unless (or (null part) (part-queued-p part))
        (drop-parts (list part))))))

(defun append-parts (reply parts)
  "Appends the octets of PARTS, a list (see PART), to REPLY where they are few; otherwise returns
PARTS, to be sent by themselves.  Signals an error when a file has become shorter."
  (if (> (parts-size parts) *file-copy-limit*)
      parts
      (dolist (part parts)
        (let* ((position (part-position part))
               (size (- (part-end part) position)))
          (cond ((part-octets part)
                 (encode-octets reply (part-octets part) position (part-end part)))
                ((encode-by reply size
                            (lambda (octets start end)
                              (read-file-octets (part-file part) position octets start end))))
                (t
                 (error "A file became shorter while it was read.")))))))

(defun section (part first last)
  "PART, of a file, for its octets from FIRST to LAST."
  (setf (part-position part) first
        (part-end part) (1+ last))
  part)

(defun content-range (first last size)
  "The value of Content-Range for the octets from FIRST to LAST of SIZE (RFC 9110, section 14.4)."
  (format nil "bytes ~D-~D/~D" first last size))

(defun multipart-of (part ranges size type)
  "The parts (see PART) of content that has RANGES, a list of at least two, of PART, a file of SIZE
octets and of TYPE; and the type of that content (RFC 9110, section 14.6)."
  ;; No file has 128 random bits by chance.
  (let ((boundary (format nil "~36R" (random (expt 2 128) (make-random-state t)))))
    (flet ((delimiter (mark &rest headers)
             (let ((output (make-output (make-octets 256))))
               (encode-octets output *line-end*)
               (encode-string output (format nil "--~A~A" boundary mark) :latin-1)
               (encode-octets output *line-end*)
               (loop for (name value) on headers by #'cddr
                     do (encode-header output name value))
               (when headers
                 (encode-octets output *line-end*))
               (make-octets-part (output-octets output) 0 (output-fill output)))))
      (values (loop for ((first . last) . more) on ranges
                    collect (delimiter "" :content-type type
                                          :content-range (content-range first last size))
                      into parts
                    collect (section (if more (make-file-part (part-file part) t) part) first last)
                      into parts
                    finally (return (nconc parts (list (delimiter "--")))))
              (format nil "multipart/byteranges; boundary=~A" boundary)))))

(defun answer-with-file (pathname exchange status siblings-p tag type send)
  "Calls SEND for the request of EXCHANGE, which a program answers with STATUS and the file
PATHNAME, or, with SIBLINGS-P, with a compressed sibling of it.  TAG is the program's own entity
tag, or NIL; TYPE is that of the file.  SEND takes the status; a list of parts (see PART), NIL where
no content is to be sent; and a plist of headers with values, among them Content-Type where it is
not TYPE (RFC 9110, sections 13 and 14).  NIL where there is no readable regular file, or this Lisp
does not send files."
  (flet ((answer (pathname coding &aux (head (exchange-head exchange)))
           (call-with-file
            pathname
            (lambda (part version)
              (let* ((size (version-size version))
                     (date (version-date version))
                     (tag (or tag (coded-tag (version-tag version) coding)))
                     (facts `(:accept-ranges "bytes"
                              ,@(and date (list :last-modified date))
                              ,@(and tag (list :etag tag))))
                     (coded `(,@(and coding (list :content-encoding (coding-name coding)))
                              ,@facts))
                     ;; They do not apply to the page of an error.
                     (conditions-p (eql 200 status))
                     (ranges (if (and conditions-p (eq :get (head-method head)) (plusp size)
                                      (range-current-p head tag))
                                 (parse-ranges (head-header head :range) size)
                                 :all))
                     (outcome (if conditions-p
                                  (precondition head
                                                (if coding
                                                    (head-headers head)
                                                    (headers-for-program exchange))
                                                tag date)
                                  :proceed)))
                (cond ((eq :not-modified outcome) (funcall send 304 '() facts))
                      ((eq :failed outcome) (funcall send 412 '() facts))
                      ((eq :all ranges)
                       (funcall send status (list (section part 0 (1- size))) coded))
                      ((null ranges)
                       (funcall send 416 '() (list* :content-range (format nil "bytes */~D" size)
                                                    facts)))
                      ((rest ranges)
                       (multiple-value-bind (parts type) (multipart-of part ranges size type)
                         (funcall send 206 parts (list* :content-type type coded))))
                      (t
                       (destructuring-bind ((first . last)) ranges
                         (funcall send 206 (list (section part first last))
                                  (list* :content-range (content-range first last size)
                                         coded))))))))))
    (when (readiness-supported-p)
      (multiple-value-bind (sibling coding)
          (and siblings-p (coded-sibling pathname (exchange-head exchange)))
        (or (and sibling (answer sibling coding))
            (answer pathname nil))))))

;;; Siblings

(defun coded-sibling (pathname head)
  "The pathname and the coding of the sibling of the file PATHNAME that the client of the request
HEAD likes best; NIL where it accepts none that there is."
  (let* ((pathname (pathname pathname))
         (codings (accepted-codings (head-header head :accept-encoding)))
         (time (and codings (ignore-errors (file-write-date pathname)))))
    (when time
      (loop for coding in codings
            for sibling = (make-pathname :name (file-namestring pathname)
                                         :type (ecase coding (:br "br") (:zstd "zst") (:gzip "gz"))
                                         :defaults pathname)
            for sibling-time = (ignore-errors (file-write-date sibling))
            when (and sibling-time (<= time sibling-time))
              return (values sibling coding)))))
