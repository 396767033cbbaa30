(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Files in replies: a cache of facts about those that are sent, the ranges that clients ask for,
;;;; and what programs say of their files: which have compressed siblings, and how long they may be
;;;; cached.
;;;;
;;;; A sibling of the file app.js is app.js.br or app.js.gz beside it.  One that is older than the
;;;; file is ignored: it was made of an earlier version.  No sibling stands for a file that is not
;;;; there.

(defparameter *file-copy-limit* (* 32 1024)
  "Files of at most so many octets are read into the reply, behind its head, and sent with it by one
system call.  The system sends larger ones from its cache.  See docs/decisions.md.")

(defparameter *settled-seconds* 2
  "How many seconds after a change the time of a file is trusted to identify its content: the clock
of the file system stands still for milliseconds at a time.")

(defparameter *constant-time* (encode-universal-time 1 0 0 1 1 1970 0)
  "A file of this time or before has that of a builder who gives it to all versions, as Nix does.")

(defstruct (version (:include opaque))
  "The state in which a file was found."
  (pathname nil :type pathname :read-only t)
  (name nil :type (or null string) :read-only t) ; as the system calls it
  (size 0 :type index :read-only t)
  (seconds 0 :type integer :read-only t) ; the time of the change, a universal time
  (nanoseconds 0 :type integer :read-only t)
  (date nil :type (or null string) :read-only t) ; the same, as HTTP writes it
  (tag nil :type (or null string) :read-only t)
  (settled-p nil :read-only t))         ; the next change will have another time

(defparameter *known-name-limit* 1024
  "Files with longer names, in characters, are not cached.")

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
                      (settled-p (>= (- now seconds) *settled-seconds*))
                      (telling-p (> seconds *constant-time*)))
                 (setf version
                       (make-version
                        :pathname pathname :name name
                        :size size :seconds seconds :nanoseconds nanoseconds
                        :settled-p settled-p
                        ;; Not later than that of the reply (RFC 9110, section 8.8.2.1).
                        :date (and telling-p (imf-fixdate (min now seconds)))
                        :tag (and telling-p (entity-tag seconds nanoseconds size settled-p))))
                 (when (and settled-p (<= (length name) *known-name-limit*))
                   (set-published (svref *versions* place) version))))
             (funcall function part version)
             t))
      (unless (or (null part) (file-part-queued-p part))
        (drop-parts (list part))))))

(defun append-file (reply part)
  "Appends the octets of PART, of a file, to REPLY where they are few; otherwise returns PART, to be
sent by itself.  Signals an error when the file has become shorter."
  (let* ((position (part-position part))
         (size (- (part-end part) position)))
    (cond ((> size *file-copy-limit*) part)
          ((encode-by reply size
                      (lambda (octets start end)
                        (read-file-octets (file-part-file part) position octets start end)))
           nil)
          (t
           (error "A file became shorter while it was read.")))))

(defun settle-range (part version head status tag vary)
  "Restricts PART to the range that the request HEAD asks for of VERSION, with the entity TAG and
the text VARY of Vary, or NIL, if STATUS is 200.  Returns the status; and, if that is now 206, or
416 since there is no such range, the text of Content-Range (RFC 9110, section 14)."
  (let ((size (version-size version))
        (range (head-header head :range)))
    (multiple-value-bind (first last)
        (and (eql 200 status)
             range
             (plusp size)
             (eq (head-method head) :get)
             (range-current-p head tag
                              (and (version-settled-p version)
                                   (not (varies-by-encoding-p vary))
                                   (version-date version)))
             (parse-range range size))
      (cond ((null first)
             (setf (part-end part) size)
             status)
            ((<= first last (1- size))
             (setf (part-position part) first
                   (part-end part) (1+ last))
             (values 206 (format nil "bytes ~D-~D/~D" first last size)))
            (t
             (values 416 (format nil "bytes */~D" size)))))))

;;; Siblings

(defun time-of-file (pathname)
  "The time of the last change of the file PATHNAME, in nanoseconds; NIL unless it is a regular file
that can be read."
  (let ((time nil))
    (if (readiness-supported-p)
        (call-with-file pathname
                        (lambda (part version)
                          (declare (ignore part))
                          (setf time (+ (* 1000000000 (version-seconds version))
                                        (version-nanoseconds version)))))
        (let ((found (ignore-errors (probe-file pathname))))
          (when (and found (pathname-name found)) ; and no folder
            (setf time (* 1000000000 (file-write-date found))))))
    time))

(defun coded-sibling (pathname head)
  "The pathname and the coding, :BR or :GZIP, of the sibling of the file PATHNAME that the client of
the request HEAD likes best; NIL where it accepts none that there is."
  (let* ((pathname (pathname pathname))
         (codings (and (stringp (pathname-name pathname))
                       (accepted-codings (head-header head :accept-encoding))))
         (time (and codings (time-of-file pathname))))
    (when time
      (loop for coding in codings
            for sibling = (make-pathname
                           :name (format nil "~A~@[.~A~]" (pathname-name pathname)
                                         (and (stringp (pathname-type pathname))
                                              (pathname-type pathname)))
                           :type (ecase coding (:br "br") (:gzip "gz"))
                           :defaults pathname)
            for sibling-time = (time-of-file sibling)
            when (and sibling-time (<= time sibling-time))
              return (values sibling coding)))))

(defun cache-control-of (rule pathname)
  "The Cache-Control of the file PATHNAME by RULE: a string, NIL, or a function, or the name of one,
of a pathname, which returns one of these."
  (if (or (null rule) (stringp rule))
      rule
      (funcall rule (pathname pathname))))
