(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What programs may say of their files: which have compressed siblings, and how long they may be
;;;; cached.
;;;;
;;;; A sibling of the file app.js is app.js.br or app.js.gz beside it.  One that is older than the
;;;; file is ignored: it was made of an earlier version.  No sibling stands for a file that is not
;;;; there.

(defparameter *coding-ends* '((:br . "br") (:gzip . "gz"))
  "The codings of files, and what siblings with them have at the end of their names.")

(defun coded-pathname (pathname coding)
  "The pathname of the sibling of the file PATHNAME that has CODING."
  (make-pathname :name (format nil "~A~@[.~A~]" (pathname-name pathname)
                               (and (stringp (pathname-type pathname)) (pathname-type pathname)))
                 :type (cdr (assoc coding *coding-ends*))
                 :defaults pathname))

(defun time-of-file (pathname)
  "The time of the last change of the file PATHNAME, in nanoseconds; NIL unless it is a regular file
that can be read."
  (if (readiness-supported-p)
      (let* ((known (known-file pathname))
             (name (known-file-name known))
             (part (and name (open-file-part name)))
             (version (and part (version-of known (file-part-file part)))))
        (when part
          (drop-parts (list part)))
        (and version
             (+ (* 1000000000 (version-seconds version)) (version-nanoseconds version))))
      (let ((found (ignore-errors (probe-file pathname))))
        (and found
             (pathname-name found)      ; and no folder
             (* 1000000000 (file-write-date found))))))

(defun coded-sibling (pathname head)
  "The pathname and the coding, :BR or :GZIP, of the sibling of the file PATHNAME that the client of
the request HEAD likes best; NIL where it accepts none that there is."
  (let* ((pathname (pathname pathname))
         (codings (and (stringp (pathname-name pathname))
                       (accepted-codings (head-header head :accept-encoding))))
         (time (and codings (time-of-file pathname))))
    (when time
      (loop for coding in codings
            for sibling = (coded-pathname pathname coding)
            for sibling-time = (time-of-file sibling)
            when (and sibling-time (<= time sibling-time))
              return (values sibling coding)))))

(defun cache-control-of (rule pathname)
  "The Cache-Control of the file PATHNAME by RULE: a string, NIL, or a function, or the name of one,
of a pathname, which returns one of these."
  (if (or (null rule) (stringp rule))
      rule
      (funcall rule (pathname pathname))))
