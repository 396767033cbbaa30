(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Where the time goes, or the memory: a server in this very Lisp, under the load
;;;; of one workload and SBCL's statistical profiler.

(defparameter *dull-frames*
  '("alloc-tramp" "foreign function call_into_lisp" "foreign function funcall"
    "foreign function new_thread" "sb-thread::run" "sb-unix::body"
    "without-interrupts-body" "sb-impl::start-lisp")
  "Parts of the names of functions that stand in every stack and say nothing.")

(defun shortened (name)
  "NAME, in lower case, without what is long in it and says little."
  (reduce (lambda (name replacement)
            (uiop:frob-substrings name (list (first replacement)) (second replacement)))
          '(("hunchentoot-recycling-taskmaster." "")
            ("hunchentoot-recycling-taskmaster:" "ours:")
            ("sb-pcl::fast-method" "method"))
          :initial-value name))

(defun frame-text (info)
  "What the profiler knows as INFO, as a name for people."
  (let* ((*package* (find-package '#:common-lisp-user))
         (*print-pretty* nil)
         (name (typecase info
                 (sb-di::compiled-debug-fun (sb-di:debug-fun-name info))
                 (t info)))
         (text (if (stringp name) name (prin1-to-string name))))
    (substitute #\, #\; ; which separates the names of a folded stack
                (shortened (string-downcase text)))))

(defun dull-p (name)
  "Is the function called NAME not worth showing?"
  (some (lambda (part) (search part name)) *dull-frames*))

(defun profiled-stacks ()
  "The stacks of the last profile, each a list of names, the outermost first."
  ;; The profiler has published only a part of what it takes to walk its samples.
  (let ((stacks '()))
    (sb-sprof:map-traces
     (lambda (thread trace)
       (declare (ignore thread))
       (let ((stack '()))
         (sb-sprof::map-trace-pc-locs (lambda (info place)
                                        (declare (ignore place))
                                        (push (frame-text info) stack))
                                      trace)
         (push (or (remove-if #'dull-p (reverse stack)) '("(nothing to show)")) stacks)))
     sb-sprof::*samples*)
    stacks))

(defun start-here (rival port delay-ms certificate)
  "Start RIVAL, a Hunchentoot one, in this Lisp, over TLS with CERTIFICATE, a directory, unless that
is NIL, and return the acceptor."
  (unless (and (typep rival 'lisp-rival)
               (member (lisp-server rival) '("hunchentoot" "deferred") :test #'string=))
    (mistake "Only a Hunchentoot acceptor can be profiled, not ~a." (rival-name rival)))
  (asdf:load-system (lisp-system rival))
  (let ((*package* (find-package '#:common-lisp-user)))
    (load (server-file (format nil "~a.lisp" (lisp-server rival))))
    (eval (read-from-string
           (format nil "(start-acceptor ~{~s ~} ~a)" (serve-arguments port delay-ms)
                   (more-arguments rival certificate))))))

(defun stop-here (acceptor)
  "Stop ACCEPTOR, which START-HERE returned."
  (uiop:symbol-call '#:hunchentoot '#:stop acceptor))

(defun load-here (port workload seconds log)
  "Load the server on PORT with WORKLOAD for SECONDS; what the load tool prints goes to the file
LOG."
  (with-process (load (load-command port workload seconds) :log log)
    (wait-for-end load (+ seconds 10))))

(defun call-with-certificate (wanted-p function)
  "Call FUNCTION with the directory of a certificate, which goes away then, or with NIL unless
WANTED-P."
  (let ((certificate (and wanted-p (make-certificate))))
    (unwind-protect (funcall function certificate)
      (when certificate
        (remove-directory certificate)))))

(defun sample-under-load (port workload mode seconds directory)
  "Load the server on PORT, in this Lisp, with WORKLOAD for SECONDS while the profiler
takes samples in MODE, :CPU or :ALLOC; what the load tool prints goes to logs in DIRECTORY."
  ;; Longer than before a round: CLOS compiles methods until it has met all arguments.
  (load-here port workload 3 (log-file directory "warm-up"))
  (sb-sprof:reset)
  (sb-sprof:start-profiling :mode mode :max-samples 200000 :sample-interval 0.002 :threads :all)
  (unwind-protect
       (load-here port workload seconds (log-file directory "load"))
    (sb-sprof:stop-profiling)))

(defun leaf-shares (counted-stacks)
  "For each innermost function of COUNTED-STACKS its name and its share of all
samples, from 0 to 1, the greatest first."
  (let ((counts (make-hash-table :test 'equal))
        (total (reduce #'+ counted-stacks :key #'second)))
    (loop for (stack count) in counted-stacks
          do (incf (gethash (first (last stack)) counts 0) count))
    (sort (loop for name being the hash-keys of counts using (hash-value count)
                collect (list name (/ count total)))
          #'> :key #'second)))

(defun print-leaves (stream counted-stacks &optional (most 20))
  "Print to STREAM the MOST frequent innermost functions of COUNTED-STACKS.  Of an
allocation profile they are who allocates, where the profiler's own table names the
allocator."
  (format stream "~&~%Innermost functions:~%")
  (loop for (name share) in (leaf-shares counted-stacks)
        repeat most
        do (format stream "~6,1f %  ~a~%" (* 100 share) name)))

(defun flat-report ()
  "The profiler's flat report, without its line for each thread."
  (let ((report (with-output-to-string (stream)
                  (sb-sprof:report :type :flat :max 60 :stream stream))))
    (format nil "~{~a~%~}"
            (remove-if (lambda (line) (search "#<THREAD" line))
                       (uiop:split-string report :separator '(#\Newline))))))

(defun write-profile (title directory)
  "Write the last profile, called TITLE, into DIRECTORY as flat.txt, folded.txt and
flame.svg, and print the flat report."
  (flet ((write-file (name writer)
           (with-open-file (stream (merge-pathnames name directory)
                                   :direction :output :if-exists :supersede)
             (funcall writer stream))))
    ;; The report comes first: it is what collects the samples of all threads.
    (let ((flat (flat-report))
          (stacks (count-stacks (profiled-stacks))))
      (write-file "folded.txt" (lambda (stream) (write-folded stream stacks)))
      (write-file "flame.svg" (lambda (stream) (write-flame-graph stream title stacks)))
      (write-file "flat.txt" (lambda (stream)
                               (write-string flat stream)
                               (print-leaves stream stacks))))
    (write-string (uiop:read-file-string (merge-pathnames "flat.txt" directory)))))

(defun profile (&key (rival (find-rival "ours")) (workload (find-workload "keep-0ms-100"))
                  (mode :cpu) (seconds 5))
  "Run RIVAL, a Hunchentoot one, in this Lisp, load it with WORKLOAD for SECONDS, and
print where it spends its time (MODE :CPU) or allocates its memory (:ALLOC).  The flat
report, folded stacks and a flame graph go into a new directory, which is returned."
  (let ((directory (new-result))
        (port (free-port))
        (setup (setup-of workload)))
    (call-with-certificate
     (setup-tls-p setup)
     (lambda (certificate)
       (let ((acceptor (start-here rival port (setup-delay-ms setup) certificate)))
         (unwind-protect (sample-under-load port workload mode seconds directory)
           (stop-here acceptor)))))
    (write-profile (format nil "~a, ~a (~(~a~))" (rival-label rival) (workload-title workload) mode)
                   directory)
    (format t "~&~%~a~%" (enough-namestring (merge-pathnames "flame.svg" directory) *root*))
    directory))
