(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What is known of files that are sent, from the system's cache to the socket, and how they get
;;;; into a reply.

(defparameter *file-copy-limit* (* 32 1024)
  "Files of up to so many octets are read behind the head of the reply, and leave with it by one
call; larger ones are left to the system to send.  See docs/decisions.md.")

(defparameter *settled-seconds* 2
  "After how many seconds the time of a file is trusted to change with it: the system's clock for
files stands still for milliseconds at a time.")

;;; What is known of files

(defstruct (version (:include opaque))
  "The state in which a file was found."
  (size 0 :type index :read-only t)
  (seconds 0 :type integer :read-only t) ; when it changed, a universal time
  (nanoseconds 0 :type integer :read-only t)
  (date "" :type string :read-only t)   ; the same, as HTTP writes it
  (tag "" :type string :read-only t)
  (settled-p nil :read-only t))         ; the next change will have another time

(defstruct (known-file (:include opaque) (:constructor make-known-file (pathname name)))
  "What need not be found out again about a file, however often it is sent."
  (pathname nil :type pathname :read-only t)
  (name nil :type (or null string) :read-only t) ; the system's
  (version nil :type (or null version))) ; when it was sent last, if that had settled

(setf (documentation 'version-size 'function)
      "How many octets VERSION, the state in which a file was found, has."
      (documentation 'version-date 'function)
      "When VERSION was written, a string as HTTP has it (RFC 9110, section 5.6.7)."
      (documentation 'version-tag 'function)
      "The entity tag of VERSION, a string (RFC 9110, section 8.8.3).")

(defparameter *known-name-limit* 1024
  "Files with longer names are not remembered.")

(defvar *known-files* (make-array 1024 :initial-element nil)
  "Each in the place that its pathname hashes to, until another takes that.")

(defun known-file (pathname)
  "The KNOWN-FILE for PATHNAME, a designator."
  (let* ((pathname (let ((pathname (translate-logical-pathname (pathname pathname))))
                     (if (eq :absolute (first (pathname-directory pathname)))
                         pathname
                         (merge-pathnames pathname))))
         (place (mod (sxhash pathname) (length *known-files*)))
         (known (svref *known-files* place)))
    (if (and known (equal pathname (known-file-pathname known)))
        known
        (let* ((name (native-name pathname))
               (new (make-known-file pathname name)))
          ;; Clients choose names, and must not fill the memory with long ones.
          (when (<= (length name) *known-name-limit*)
            (set-published (svref *known-files* place) new))
          new))))

(defun version-of (known file)
  "The version of the KNOWN file, which is open as the descriptor FILE; NIL for no regular file."
  (multiple-value-bind (size seconds nanoseconds) (file-facts file)
    (when size
      (let ((version (known-file-version known)))
        (if (and version
                 (= size (version-size version))
                 (= seconds (version-seconds version))
                 (= nanoseconds (version-nanoseconds version)))
            version
            (find-version known size seconds nanoseconds))))))

(defun find-version (known size seconds nanoseconds)
  (let* ((settled-p (>= (- (current-second) seconds) *settled-seconds*))
         (version (make-version :size size :seconds seconds :nanoseconds nanoseconds
                                :date (imf-fixdate seconds) :settled-p settled-p
                                :tag (entity-tag seconds nanoseconds size settled-p))))
    (when settled-p
      (set-published (known-file-version known) version))
    version))

;;; Into a reply

(defun close-unless-left (part http)
  "Closes the file of PART, if any, unless some of it is left to be sent over HTTP: then it is the
buffered connection's."
  (unless (or (null part)
              (member part (io-unsent (http-io http))))
    (drop-parts (list part))))

(defun call-with-file (pathname http function)
  "Calls FUNCTION of the file PATHNAME, a FILE-PART that is sent over HTTP, and of its VERSION.  NIL
where that is no regular file that can be read."
  (let* ((known (known-file pathname))
         (name (known-file-name known)))
    (with-acquired (part (and name (open-file-part name)) (close-unless-left part http))
      (let ((version (and part (version-of known (file-part-file part)))))
        (when version
          (funcall function part version)
          t)))))

(defun append-file (reply part)
  "Appends PART, of a file, to REPLY where it is small; else returns it, to be sent by itself.
Signals an error when the file has not as many octets any more."
  (let* ((position (part-position part))
         (size (- (part-end part) position)))
    (cond ((> size *file-copy-limit*) part)
          ((encode-by reply size
                      (lambda (octets start end)
                        (read-file-octets (file-part-file part) position octets start end)))
           nil)
          (t
           (error "A file became shorter while it was read.")))))

(defun range-of-file (head tag version)
  "The first and the last octet of the VERSION of a file, with the entity TAG, that the request HEAD
asks for; NIL when that is all (RFC 9110, section 14.2)."
  (let ((range (head-header head :range)))
    (and range
         (plusp (version-size version))
         (eq (head-method head) :get)
         (range-current-p head tag (and (version-settled-p version) (version-date version)))
         (parse-range range (version-size version)))))

(defun settle-range (part version head status tag)
  "Makes PART what the request HEAD wants of the VERSION of its file, with the entity TAG, where the
reply has STATUS otherwise.  Returns the status; and, where that is now 206, or 416 as there is no
such range, the text of Content-Range and the first and the last octet (RFC 9110, section 14)."
  (let ((size (version-size version)))
    (multiple-value-bind (first last) (and (eql 200 status) (range-of-file head tag version))
      (cond ((null first)
             (setf (part-end part) size)
             status)
            ((<= first last (1- size))
             (setf (part-position part) first
                   (part-end part) (1+ last))
             (values 206 (format nil "bytes ~D-~D/~D" first last size) first last))
            (t
             (values 416 (format nil "bytes */~D" size) first last))))))
