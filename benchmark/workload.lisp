(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What is asked of the servers.

(defstruct workload
  "CONNECTIONS clients that each ask again as soon as they are answered, by a
handler that waits DELAY-MS milliseconds.  KIND is :KEEP-ALIVE, :CLOSE (a fresh
connection for each request) or :IDLE: kept-alive ones, while many more
connections are open and silent."
  kind delay-ms connections)

(defun kind-word (kind)
  "KIND in the names of workloads."
  (ecase kind (:keep-alive "keep") (:close "close") (:idle "idle")))

(defun workload-name (workload)
  "What WORKLOAD is called on the command line and in files: keep-1ms-100."
  (format nil "~a-~dms-~d" (kind-word (workload-kind workload))
          (workload-delay-ms workload) (workload-connections workload)))

(defun kind-title (kind)
  "KIND for people."
  (ecase kind
    (:keep-alive "keep-alive")
    (:close "connection closed after each request")
    (:idle "keep-alive beside thousands of idle connections")))

(defun delay-title (delay-ms)
  "A handler that waits DELAY-MS, for people."
  (if (zerop delay-ms) "instant handler" (format nil "handler of ~d ms" delay-ms)))

(defun workload-title (workload)
  "What WORKLOAD is called in charts and reports."
  (format nil "~a, ~a, ~a connections" (kind-title (workload-kind workload))
          (delay-title (workload-delay-ms workload))
          (grouped (workload-connections workload))))

(defparameter *workloads*
  (append (loop for delay-ms in '(0 1 10)
                append (loop for kind in '(:keep-alive :close)
                             append (loop for connections in '(10 100 400 1000)
                                          collect (make-workload :kind kind :delay-ms delay-ms
                                                                 :connections connections))))
          (loop for delay-ms in '(0 1)
                collect (make-workload :kind :idle :delay-ms delay-ms :connections 100)))
  "The whole matrix.")

(defparameter *quick-workloads* '("keep-0ms-100" "close-0ms-100" "keep-1ms-100" "close-1ms-100")
  "The names of the few workloads of the quick run.")

(defun find-workload (name)
  "The workload called NAME, or NIL."
  (find name *workloads* :key #'workload-name :test #'string=))

(defun title-of (name)
  "The title of the workload called NAME; NAME itself when it is known no more."
  (let ((workload (find-workload name)))
    (if workload (workload-title workload) name)))

(defun select-workloads (patterns)
  "The workloads that some of PATTERNS name.  A pattern is a name, or some of its
parts: \"close\" is every workload that closes, \"0ms-100\" all of the 0 ms ones
with 100 connections.  An error when a pattern names none."
  (flet ((matches-p (pattern workload)
           (subsetp (split pattern '(#\-)) (split (workload-name workload) '(#\-))
                    :test #'string=)))
    (dolist (pattern patterns)
      (unless (some (lambda (workload) (matches-p pattern workload)) *workloads*)
        (mistake "No workload is called ~a.  There are:~{ ~a~}."
               pattern (mapcar #'workload-name *workloads*))))
    (remove-if-not (lambda (workload)
                     (some (lambda (pattern) (matches-p pattern workload)) patterns))
                   *workloads*)))
