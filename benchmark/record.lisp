(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; A result is a directory.  Each round is written down as soon as it is over,
;;;; so whatever ends a run, what was measured is kept; tables, charts and report
;;;; are made from these files alone, and can be made again.

(defparameter *round-columns* (list* "server" "workload" "round"
                                     (mapcar #'measure-column *measures*))
  "The header of rounds.tsv.")

(defparameter *note-columns* '("server" "workload" "note")
  "The header of notes.tsv.")

(defparameter *server-columns* '("server" "label" "family" "version" "parameters" "note" "answer"
                                 "libraries")
  "The header of servers.tsv.")

(defstruct (sample (:constructor make-sample (server workload round figures)))
  "What one ROUND of a server under a workload gave; both go by their names.
FIGURES is a property list of *MEASURES*."
  server workload round figures)

(defun time-stamp ()
  "Now, as the name of a result: 2025-12-26-1830."
  (multiple-value-bind (second minute hour day month year) (get-decoded-time)
    (declare (ignore second))
    (format nil "~4,'0d-~2,'0d-~2,'0d-~2,'0d~2,'0d" year month day hour minute)))

(defvar *results* (benchmark-file "results/")
  "The directory in which results are made.")

(defun fresh (directory name ending)
  "The path of NAME with ENDING in DIRECTORY if nothing is there yet; else with a number
before ENDING."
  (loop for count from 1
        for path = (merge-pathnames (format nil "~a~:[-~d~;~*~]~a" name (= count 1) count ending)
                                    directory)
        unless (probe-file path)
          return path))

(defun new-result ()
  "The directory of a new result, named by the time."
  (let ((directory (fresh *results* (time-stamp) "/")))
    (ensure-directories-exist (merge-pathnames "logs/" directory))
    directory))

(defun result-name (result)
  "The name of the directory RESULT."
  (first (last (pathname-directory result))))

(defun result-file (result name)
  "The file NAME of the directory RESULT."
  (merge-pathnames name result))

(defun log-file (result control &rest arguments)
  "A new log of RESULT, whose name is CONTROL formatted with ARGUMENTS."
  (fresh (result-file result "logs/") (format nil "~?" control arguments) ".log"))

(defun record-sample (result sample)
  "Keep SAMPLE in RESULT."
  (append-tsv-row (result-file result "rounds.tsv") *round-columns*
                  (list* (sample-server sample) (sample-workload sample) (sample-round sample)
                         (figures-row (sample-figures sample)))))

(defun read-samples (result)
  "All samples of RESULT, in the order in which they were taken."
  (multiple-value-bind (rows header) (read-tsv (result-file result "rounds.tsv"))
    (loop for row in rows
          for (server workload round) = row
          collect (make-sample server workload (parse-integer round)
                               (row-figures header row)))))

(defun record-note (result server workload control &rest arguments)
  "Keep in RESULT that something is to be said of SERVER under WORKLOAD, both names
or NIL: CONTROL formatted with ARGUMENTS.  Say it on the terminal, too."
  (let ((text (format nil "~?" control arguments)))
    (format t "~&** ~@[~a: ~]~@[~a: ~]~a~%" server workload text)
    (append-tsv-row (result-file result "notes.tsv") *note-columns* (list server workload text))))

(defun read-notes (result)
  "The notes of RESULT, each once: lists of server, workload and text."
  (remove-duplicates (read-tsv (result-file result "notes.tsv")) :test #'equal :from-end t))

(defun answer-line (answer)
  "The head of ANSWER in one line, for people."
  (uiop:frob-substrings (subseq answer 0 (- (head-length answer) 4)) (list *line-end*) " | "))

(defun record-server (result server)
  "Keep in RESULT what is to be known of SERVER, unless it is there already."
  (let ((rival (server-rival server)))
    (unless (find (rival-name rival) (read-servers result) :key #'first :test #'string=)
      (append-tsv-row (result-file result "servers.tsv") *server-columns*
                      (list (rival-name rival) (rival-label rival)
                            (string-downcase (rival-family rival)) (version rival)
                            (rival-parameters rival) (rival-note rival)
                            (answer-line (server-answer server))
                            (format nil "~{~a~^, ~}" (libraries rival)))))))

(defun read-servers (result)
  "What is known of the servers of RESULT: lists of the values of *SERVER-COLUMNS*."
  (read-tsv (result-file result "servers.tsv")))
