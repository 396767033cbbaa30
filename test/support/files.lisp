(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Files that a test needs and nobody afterwards.

(defun fresh-directory ()
  "A new, empty directory under the system's temporary one."
  (loop for name = (format nil "recycling-test-~36R/" (random (expt 36 8) (make-random-state t)))
        for directory = (merge-pathnames name (uiop:temporary-directory))
        unless (probe-file directory)
          return (ensure-directories-exist directory)))

(defun delete-tree (directory)
  "Deletes DIRECTORY with all that is in it.  A thread of a server that was stopped may still be
about to delete a file of it: who comes second gets an error, and looks again."
  (flet ((delete-it ()
           (uiop:delete-directory-tree directory :validate t)
           t))
    (or (poll (lambda () (ignore-errors (delete-it))))
        (delete-it))))

(defmacro with-directory ((directory) &body body)
  "Evaluates BODY with DIRECTORY bound to a new, empty directory, and deletes it
with all that is in it afterwards."
  `(let ((,directory (fresh-directory)))
     (unwind-protect (progn ,@body)
       (delete-tree ,directory))))

(defun write-file (directory name &rest parts)
  "Writes the octets of PARTS (see OCTETS) to file NAME, a string that may contain
slashes, in DIRECTORY; returns its pathname."
  (let ((pathname (merge-pathnames (uiop:parse-unix-namestring name) directory)))
    (with-open-file (file (ensure-directories-exist pathname)
                          :direction :output :if-exists :supersede
                          :element-type '(unsigned-byte 8))
      (write-sequence (octets parts) file))
    pathname))

(defun file-octets (pathname)
  "The contents of the file PATHNAME."
  (with-open-file (file pathname :element-type '(unsigned-byte 8))
    (let ((octets (make-array (file-length file) :element-type '(unsigned-byte 8))))
      (read-sequence octets file)
      octets)))

(defun file-gone-p (pathname)
  "Whether there is no file PATHNAME.  PROBE-FILE of SBCL signals an error when the file goes
just while it looks."
  (not (ignore-errors (probe-file pathname))))

(defun files-of-forms-changed-p ()
  "True where rfc2388, with which Hunchentoot reads forms with files, stores others than were sent:
it writes characters with the codes of the octets, save on SBCL in the Lisp's default encoding."
  (unless (uiop:featurep :sbcl)
    (with-directory (directory)
      (let ((file (merge-pathnames "characters" directory)))
        (with-open-file (out file :direction :output)
          (write-char (code-char 255) out))
        (not (equalp #(255) (file-octets file)))))))

(defun read-table (name)
  "The forms in the file NAME of the folder of the tests, in which no symbol is evaluated."
  (with-open-file (stream (merge-pathnames name (merge-pathnames "test/" (source-root)))
                          :external-format :utf-8)
    (let ((*package* (find-package '#:hunchentoot-recycling-taskmaster-test))
          (*read-eval* nil))
      (loop for form = (read stream nil)
            while form
            collect form))))
