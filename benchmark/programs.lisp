(in-package #:recycling-benchmark)

;;;; Programs that are found, and what is made for a run.  All of it is in build/benchmark/.

(defparameter *root*
  (asdf:system-relative-pathname "hunchentoot-recycling-taskmaster-benchmark" "")
  "The checkout.")

(defun source-file (name)
  "The file NAME of benchmark/."
  (merge-pathnames name (merge-pathnames "benchmark/" *root*)))

(defun built-file (name)
  "The file NAME of build/benchmark/."
  (let ((file (merge-pathnames name (merge-pathnames "build/benchmark/" *root*))))
    (ensure-directories-exist file)
    file))

(defun find-program (name &optional (package name))
  "The file of the program NAME.  UNAVAILABLE where it is not installed; Debian's PACKAGE has it."
  (or (loop for folder in (append (uiop:split-string (or (uiop:getenv "PATH") "") :separator ":")
                                  ;; A user's PATH often lacks this one.
                                  '("/usr/sbin"))
              thereis (uiop:file-exists-p
                       (uiop:subpathname (uiop:ensure-directory-pathname folder) name)))
      (unavailable "~a is not installed (Debian's package ~a)" name package)))

(defun processors ()
  "How many processors this process may use."
  (or (parse-integer (output-of "nproc") :junk-allowed t) 1))

(defun most-descriptors ()
  "How many descriptors a process may have."
  (or (parse-integer (output-of "sh" "-c" "ulimit -H -n") :junk-allowed t)
      1000000))                         ; unlimited

(defun build (name source &rest command)
  "Makes the program NAME from the file SOURCE by COMMAND, unless it is newer, and returns its file.
UNAVAILABLE, with what the compiler printed, if that fails."
  (let ((program (built-file name)))
    (unless (and (probe-file program)
                 (> (file-write-date program) (file-write-date source)))
      (apply #'run-or-be-unavailable (format nil "~a could not be built" name) command))
    program))

(defun c-program (name folder)
  "The program NAME, made from NAME.c in FOLDER of benchmark/."
  (let ((source (source-file (format nil "~a/~a.c" folder name))))
    (build name source (find-program "cc" "build-essential")
           "-O2" "-Wall" "-Wextra" "-pthread" "-o" (built-file name) source)))

(defun go-server ()
  "The program of server.go, made with Debian's packages of Go."
  (let ((source (source-file "servers/server.go")))
    (loop for (folder package) in '(("jackc/pgx" "golang-github-jackc-pgx-v4-dev")
                                    ("gorilla/websocket" "golang-github-gorilla-websocket-dev"))
          unless (uiop:directory-exists-p
                  (format nil "/usr/share/gocode/src/github.com/~a/" folder))
            do (unavailable "the Go package ~a is not installed (Debian's ~a)" folder package))
    (build "go-server" source "env" "GO111MODULE=off" "GOPATH=/usr/share/gocode"
           (format nil "GOCACHE=~a" (uiop:native-namestring (built-file "go-cache/")))
           (find-program "go" "golang-go") "build" "-o" (built-file "go-server") source)))

;;; Data

(defun write-items (stream)
  "Writes fifty items in JSON to STREAM, the same each time."
  (format stream "[~{~a~^,~%~}]~%"
          (loop for id from 1 to 50
                for tags = (subseq '("new" "used" "sale" "heavy") (mod id 4))
                collect (format nil "{\"id\":~d,\"name\":\"~a ~d\",\"category\":~s,\"price\":~d,~
                                     \"quantity\":~d,\"active\":~:[false~;true~],~
                                     \"tags\":[~{~s~^,~}],\"rating\":{\"score\":~d,\"count\":~d}}"
                                id (nth (mod id 3) '("Lamp" "Ladder" "Kettle")) id
                                (nth (mod id 5) '("tools" "garden" "kitchen" "office" "toys"))
                                (1+ (mod (* id 7919) 500)) (1+ (mod (* id 104729) 1000)) (evenp id)
                                tags (1+ (mod (* id 31) 50)) (1+ (mod (* id 37) 500))))))

(defun data ()
  "The folder with file.bin and items.json, which servers serve."
  (let ((folder (built-file "data/")))
    (with-open-file (stream (merge-pathnames "file.bin" folder)
                            :direction :output :if-exists :supersede)
      (loop repeat 16384 do (write-char #\x stream)))
    (with-open-file (stream (merge-pathnames "items.json" folder)
                            :direction :output :if-exists :supersede)
      (write-items stream))
    folder))

(defun certificate ()
  "A list of two files, made if they are not there: a certificate for localhost, and its key, on the
curve P-256."
  (let ((files (list (built-file "certificate.pem") (built-file "key.pem"))))
    (unless (every #'probe-file files)
      (run-or-be-unavailable "openssl made no certificate"
                             (find-program "openssl") "req" "-x509" "-nodes" "-days" 365
                             "-newkey" "ec" "-pkeyopt" "ec_paramgen_curve:prime256v1"
                             "-subj" "/CN=localhost" "-out" (first files) "-keyout" (second files)))
    files))
