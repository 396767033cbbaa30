(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What the figures were taken on, and with what.

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
        (list "TLS" (tool-version "openssl" "version"))
        (list "C compiler" (tool-version "cc" "--version"))
        (list "charts" (tool-version "gnuplot" "--version"))
        (list "commit" (commit))
        (list "load average before" (load-average))))

(defun others-of (names all)
  "Those of ALL, names, that are not among NAMES."
  (set-difference all names :test #'string=))

(defun in-words (names all)
  "Those of ALL that are among NAMES, in the order of ALL, as one string."
  (format nil "~{~a~^ ~}" (remove-if-not (lambda (name) (member name names :test #'string=)) all)))

(defun settings-facts (settings)
  "What SETTINGS asked for, and what not: lists of a name and a value."
  (let ((rivals (mapcar #'rival-name (settings-rivals settings)))
        (all-rivals (mapcar #'rival-name *rivals*))
        (workloads (mapcar #'workload-name (settings-workloads settings)))
        (all-workloads (mapcar #'workload-name *workloads*)))
    `(("command" ,(settings-command settings))
      ("set" ,(string-downcase (settings-set settings)))
      ("rounds" ,(settings-rounds settings))
      ("seconds per round" ,(settings-seconds settings))
      ("seconds of warming up" ,(settings-warm-seconds settings))
      ("milliseconds of counting who is served" ,(settings-fair-ms settings))
      ("idle connections" ,(settings-idle settings))
      ("servers asked for" ,(in-words rivals all-rivals))
      ("servers not asked for" ,(in-words (others-of rivals all-rivals) all-rivals))
      ("workloads asked for" ,(in-words workloads all-workloads))
      ("workloads not asked for"
       ,(in-words (others-of workloads all-workloads) all-workloads)))))

(defparameter *fact-columns* '("fact" "value")
  "The header of machine.tsv.")

(defun record-machine (result settings)
  "Keep in RESULT what it is measured on, and what SETTINGS asked for."
  (write-tsv (result-file result "machine.tsv") *fact-columns*
             (append (machine-facts) (settings-facts settings))))

(defun record-fact (result name value)
  "Add to what is kept in RESULT that the fact NAME has VALUE."
  (append-tsv-row (result-file result "machine.tsv") *fact-columns* (list name value)))

(defun processor-ticks ()
  "The time of all processors since the machine began, and what of it another machine on the same
hardware had; in ticks."
  (let ((ticks (mapcar #'parse-integer (split (or (file-line "/proc/stat" "cpu ") "")))))
    ;; User, nice, system, idle, waiting, two kinds of interrupts, stolen; then parts of these.
    (values (reduce #'+ ticks :end (min 8 (length ticks)))
            (or (nth 7 ticks) 0))))

(defun call-timing (result function)
  "Call FUNCTION; if it returns true, record in RESULT how long it took, and which part of the
processors' time other machines had meanwhile.  A result without that is of a run that did not end."
  (let ((start (get-universal-time)))
    (multiple-value-bind (ticks stolen) (processor-ticks)
      (when (funcall function)
        (multiple-value-bind (ticks-then stolen-then) (processor-ticks)
          (record-fact result "took" (duration (- (get-universal-time) start)))
          (record-fact result "processor time that other machines took"
                       (format nil "~,1f %" (/ (* 100 (- stolen-then stolen))
                                               (max 1 (- ticks-then ticks))))))))))

(defun read-machine (result)
  "The facts of RESULT's machine and settings: lists of a name and a value."
  (read-tsv (result-file result "machine.tsv")))

(defun fact (name result)
  "The value of the fact NAME in RESULT, or NIL."
  (second (assoc name (read-machine result) :test #'string=)))
