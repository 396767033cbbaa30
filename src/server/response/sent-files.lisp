(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Files in replies: a cache of facts about those that are sent, and what a client gets of one:
;;;; all of it, a part, a compressed sibling, or nothing.
;;;;
;;;; A sibling of the file app.js is app.js.br or app.js.gz beside it.  One that is older than the
;;;; file is ignored: it was made of an earlier version.  No sibling stands for a file that is not
;;;; there.

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

(defun append-file (reply part)
  "Appends the octets of PART, of a file, to REPLY where they are few; otherwise returns PART, to be
sent by itself.  Signals an error when the file has become shorter."
  (let* ((position (part-position part))
         (size (- (part-end part) position)))
    (cond ((> size *file-copy-limit*) part)
          ((encode-by reply size
                      (lambda (octets start end)
                        (read-file-octets (part-file part) position octets start end)))
           nil)
          (t
           (error "A file became shorter while it was read.")))))

(defun answer-with-file (pathname head status siblings-p tag send)
  "Calls SEND for the request HEAD, which a program answers with STATUS and the file PATHNAME, or,
with SIBLINGS-P, with a compressed sibling of it.  TAG is the program's own entity tag, or NIL.
SEND takes the status; a FILE-PART, or NIL where no content is to be sent; and a plist of headers
with values (RFC 9110, sections 13 and 14).  NIL where there is no readable regular file, or this
Lisp does not send files."
  (flet ((answer (pathname coding)
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
                     (range (and conditions-p (eq :get (head-method head)) (plusp size)
                                 (range-current-p head tag)
                                 (head-header head :range)))
                     (outcome (if conditions-p (precondition head tag date) :proceed)))
                (multiple-value-bind (first last) (and range (parse-range range size))
                  (cond ((eq :not-modified outcome) (funcall send 304 nil facts))
                        ((eq :failed outcome) (funcall send 412 nil facts))
                        ((null first)
                         (setf (part-end part) size)
                         (funcall send status part coded))
                        ((<= first last (1- size))
                         (setf (part-position part) first
                               (part-end part) (1+ last))
                         (funcall send 206 part
                                  (list* :content-range
                                         (format nil "bytes ~D-~D/~D" first last size)
                                         coded)))
                        (t
                         (funcall send 416 nil
                                  (list* :content-range (format nil "bytes */~D" size)
                                         facts))))))))))
    (when (readiness-supported-p)
      (multiple-value-bind (sibling coding) (and siblings-p (coded-sibling pathname head))
        (or (and sibling (answer sibling coding))
            (answer pathname nil))))))

;;; Siblings

(defun coded-sibling (pathname head)
  "The pathname and the coding, :BR or :GZIP, of the sibling of the file PATHNAME that the client of
the request HEAD likes best; NIL where it accepts none that there is."
  (let* ((pathname (pathname pathname))
         (codings (and (stringp (pathname-name pathname))
                       (accepted-codings (head-header head :accept-encoding))))
         (time (and codings (ignore-errors (file-write-date pathname)))))
    (when time
      (loop for coding in codings
            for sibling = (make-pathname :name (file-namestring pathname)
                                         :type (ecase coding (:br "br") (:gzip "gz"))
                                         :defaults pathname)
            for sibling-time = (ignore-errors (file-write-date sibling))
            when (and sibling-time (<= time sibling-time))
              return (values sibling coding)))))
