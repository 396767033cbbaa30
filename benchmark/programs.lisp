(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Programs that we find, and programs that we build.

(defparameter *root*
  (asdf:system-relative-pathname "hunchentoot-recycling-taskmaster-benchmark" "")
  "The checkout.")

(defun benchmark-file (name)
  "The file NAME below benchmark/."
  (merge-pathnames name (merge-pathnames "benchmark/" *root*)))

(defparameter *package-of-program*
  '(("wrk" . "wrk") ("gnuplot" . "gnuplot-nox") ("nginx" . "nginx-light") ("cc" . "build-essential")
    ("go" . "golang-go") ("node" . "nodejs") ("openssl" . "openssl"))
  "Where Debian has the programs that we use.")

(defun search-path ()
  "The directories where programs may be; a user's PATH often lacks the last two."
  (mapcar (lambda (name) (uiop:parse-native-namestring name :ensure-directory t))
          (append (split (or (uiop:getenv "PATH") "") '(#\:))
                  '("/usr/local/sbin" "/usr/sbin"))))

(defun find-program (name)
  "The pathname of the program NAME.  UNAVAILABLE when it is not installed."
  (or (some (lambda (directory)
              (uiop:file-exists-p (merge-pathnames name directory)))
            (search-path))
      (unavailable "~a is not installed~@[ (Debian's package ~a; try make bench-deps)~]"
                   name (cdr (assoc name *package-of-program* :test #'string=)))))

(defun program-version (name &rest arguments)
  "The first line that the program NAME prints when asked with ARGUMENTS."
  (first-line (output-of (list* (find-program name) arguments))))

(defun older-p (file sources)
  "Is FILE missing or older than one of SOURCES?"
  (or (not (probe-file file))
      (some (lambda (source) (> (file-write-date source) (file-write-date file)))
            sources)))

(defun built-file (name)
  "Where the program NAME is when it has been built."
  (benchmark-file (format nil "build/~a" name)))

(defun build (name sources command)
  "Bring the program NAME up to date with SOURCES, by running COMMAND if need be,
and return its file.  UNAVAILABLE, with what the compiler said, if that fails."
  (let ((program (built-file name)))
    (when (older-p program sources)
      (ensure-directories-exist program)
      (let ((said (output-of command)))
        (when (older-p program sources)
          (unavailable "~a could not be built: ~a" name said))))
    program))

(defun c-program (name &rest sources)
  "The program NAME, built from SOURCES: C files of benchmark/native/, and options of the compiler,
as -l names libraries."
  (let ((directory (benchmark-file "native/")))
    (build name
           ;; All files there, so that headers count too.
           (uiop:directory-files directory)
           `(,(find-program "cc") "-O2" "-Wall" "-Wextra" "-pthread" "-o" ,(built-file name)
             ,@(loop for source in sources
                     collect (if (uiop:string-prefix-p "-" source)
                                 source
                                 (merge-pathnames source directory)))))))

;;; Directories

(defun make-fresh-directory ()
  "A directory for temporary files that nobody else uses."
  (uiop:ensure-directory-pathname (first-line (output-of '("mktemp" "-d")))))

(defun remove-directory (directory)
  "Remove DIRECTORY, which MAKE-FRESH-DIRECTORY returned."
  (uiop:delete-directory-tree directory :validate t :if-does-not-exist :ignore))

(defun cores ()
  "The number of processors that this process may use."
  (or (parse-integer (output-of '("nproc")) :junk-allowed t) 1))

;;; Files to be served

(defparameter *served-sizes* '(("16k.bin" . 16384) ("1m.bin" . 1048576))
  "The names of the files that servers serve, with their sizes in octets.")

(defun make-served-file (file size)
  "Make FILE one of SIZE octets, unless it is."
  (unless (and (probe-file file)
               (= size (with-open-file (stream file :element-type '(unsigned-byte 8))
                         (file-length stream))))
    (ensure-directories-exist file)
    (with-open-file (stream file :direction :output :if-exists :supersede
                                 :element-type '(unsigned-byte 8))
      (write-sequence (make-array size :element-type '(unsigned-byte 8)
                                       :initial-element (char-code #\x))
                      stream))))

(defun served-files ()
  "The directory with the files of *SERVED-SIZES*, made if they are not there."
  (let ((directory (built-file "files/")))
    (loop for (name . size) in *served-sizes*
          do (make-served-file (merge-pathnames name directory) size))
    directory))
