(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What the figures were taken on, and with what.

(defun file-line (path &optional (prefix ""))
  "What follows PREFIX in the first line of the file PATH that begins with it; NIL
if there is none.  Leading blanks and colons are left out."
  (handler-case
      (loop for line in (uiop:read-file-lines path)
            when (uiop:string-prefix-p prefix line)
              return (string-left-trim '(#\Space #\Tab #\:) (subseq line (length prefix))))
    (error () nil)))

(defun commit ()
  "The commit of this checkout, with a + when there are changes; NIL outside of git."
  (flet ((git (&rest words)
           (string-trim '(#\Newline) (output-of (list* "git" "-C" *root* words)))))
    (let ((commit (git "rev-parse" "--short" "--verify" "--quiet" "HEAD")))
      (unless (string= commit "")
        (format nil "~a~:[+~;~]" commit (string= (git "status" "--porcelain") ""))))))

(defun tool-version (program &rest arguments)
  "The version of PROGRAM, or that it is not there."
  (handler-case (apply #'program-version program arguments)
    (unavailable () "not installed")))

(defun load-average ()
  "How busy the machine has been in the last minute, in processors."
  (first (split (or (file-line "/proc/loadavg") "unknown"))))

(defun machine-facts ()
  "What is to be known of this machine: lists of a name and a value."
  (list (list "processor" (or (file-line "/proc/cpuinfo" "model name") (machine-version)))
        (list "cores" (cores))
        (list "memory" (file-line "/proc/meminfo" "MemTotal"))
        (list "kernel" (first-line (output-of '("uname" "-srm"))))
        (list "system" (string-trim "\"" (or (file-line "/etc/os-release" "PRETTY_NAME=") "")))
        (list "open files at most" (first-line (output-of '("sh" "-c" "ulimit -H -n"))))
        (list "listen queue at most" (file-line "/proc/sys/net/core/somaxconn"))
        (list "Lisp" (format nil "~a ~a" (lisp-implementation-type) (lisp-implementation-version)))
        (list "load tool" (tool-version "wrk" "-v"))
        (list "C compiler" (tool-version "cc" "--version"))
        (list "charts" (tool-version "gnuplot" "--version"))
        (list "commit" (commit))
        (list "load average before" (load-average))))

(defun record-machine (result settings)
  "Keep in RESULT what it is measured on, and what SETTINGS asked for."
  (write-tsv (result-file result "machine.tsv") '("fact" "value")
             (append (machine-facts)
                     (list (list "run" (if (settings-quick-p settings) "quick" "full"))
                           (list "rounds" (settings-rounds settings))
                           (list "seconds per round" (settings-seconds settings))
                           (list "milliseconds of counting who is served"
                                 (settings-fair-ms settings))
                           (list "idle connections" (settings-idle settings))))))

(defun read-machine (result)
  "The facts of RESULT's machine and settings: lists of a name and a value."
  (read-tsv (result-file result "machine.tsv")))

(defun fact (name result)
  "The value of the fact NAME in RESULT, or NIL."
  (second (assoc name (read-machine result) :test #'string=)))
