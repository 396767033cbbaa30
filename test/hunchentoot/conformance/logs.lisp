(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/logs :in conformance
  :description "The access log and the message log, as text and as methods.")

(defmacro logged ((destination &rest initargs) (&rest routes) &body body)
  "The text that an acceptor that serves ROUTES writes to the log named by the initarg
DESTINATION while BODY is evaluated."
  (let ((stream (gensym "STREAM")))
    `(let ((,stream (make-string-output-stream)))
       (serving (,destination ,stream ,@initargs) ,routes ,@body)
       (get-output-stream-string ,stream))))

(defun log-lines (text)
  "The lines of TEXT."
  (uiop:split-string (string-right-trim '(#\Newline) text) :separator '(#\Newline)))

(defparameter *time-of-log* "\\[\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\]"
  "How the access log tells the time.")

;;; The access log

(define-server-test logs-may-be-files
  (with-directory (directory)
    (let ((access (merge-pathnames "access.log" directory))
          (messages (namestring (merge-pathnames "message.log" directory))))
      (serving (:access-log-destination access :message-log-destination messages)
          (("/" (hunchentoot:log-message* :info "A message.") "body"))
        (ask "/")
        (ask "/"))
      ;; A worker that a busy machine leaves behind writes its line after the server has stopped.
      (dolist (file (list access messages))
        (eventually ((format nil "two lines in ~A" file))
          (and (probe-file file)
               (= 2 (length (uiop:read-file-lines file)))))
        (pass)))))

;;; The message log

(defun fail-with (octets few)
  "Signals an error; a backtrace shows the arguments."
  (declare (notinline fail-with))
  (error "The reason, ~D and ~D." (length octets) (length few)))

(define-server-test (a-backtrace-shows-only-a-part-of-a-long-argument :needs :our-engine)
  (where-supported
   (let ((log (logged (:message-log-destination)
                  (("/" (list (fail-with (make-list 100000 :initial-element 0)
                                         (list 1 2 3)))))
                (ask "/"))))
     (is (search "(1 2 3)" log))
     (is (search "0 0 0 ...)" log))
     (is (< (length log) 50000)))))

(define-server-test (a-backtrace-ends-where-the-handler-was-called :needs :our-engine)
  (where-supported
   (let ((log (logged (:message-log-destination) (("/" (list (fail-with '() (list 1 2 3)))))
                (ask "/"))))
     (is (search "HANDLE-REQUEST" log))
     (is (not (search "PROCESS-REQUEST" log)))
     (is (> 25 (length (log-lines log)))))))

(define-server-test a-backtrace-of-a-stock-acceptor-is-left-as-it-is
  (where-supported
   (let* ((*acceptor-class* 'hunchentoot:easy-acceptor)
          (log (logged (:message-log-destination)
                   (("/" (list (fail-with (make-list 1000 :initial-element 0) '()))))
                 (ask "/"))))
     (is (search "[ERROR]] The reason" log))
     (is (not (search "0 0 0 ...)" log))))))

(define-server-test backtraces-and-errors-can-be-kept-out-of-the-log
  (with-globals ((hunchentoot:*log-lisp-backtraces-p* nil))
    (let ((log (logged (:message-log-destination) (("/" (error "The reason.")))
                 (ask "/"))))
      (is (= 1 (length (log-lines log))))
      (is (search "The reason." log))))
  (with-globals ((hunchentoot:*log-lisp-errors-p* nil))
    (is (string= "" (logged (:message-log-destination) (("/" (error "The reason.")))
                      (ask "/"))))))

;;; Methods

(defclass own-logs ()
  ((accesses :initform (make-recorder) :reader logged-accesses)
   (messages :initform (make-recorder) :reader logged-messages))
  (:documentation "A mixin for an acceptor that keeps its logs to itself."))

(defmethod hunchentoot:acceptor-log-access ((acceptor own-logs) &key return-code)
  (record (logged-accesses acceptor)
          (list return-code (hunchentoot:script-name*) (hunchentoot:content-length*))))

(defmethod hunchentoot:acceptor-log-message ((acceptor own-logs) level control
                                             &rest arguments)
  (record (logged-messages acceptor)
          (list level (apply #'format nil control arguments))))

(define-server-test an-acceptor-may-log-accesses-its-own-way
  (serving (:mixin 'own-logs) (("/" "body"))
    (ask "/")
    (ask "/" :method :head)
    (ask "/fails")
    (let ((accesses (recorded (logged-accesses *server*))))
      (is (equal '((200 "/" 4) (200 "/" 4)) (subseq accesses 0 2)))
      (is (equal '(404 "/fails") (subseq (third accesses) 0 2)))
      (is (= 3 (length accesses))))))

(define-server-test an-acceptor-may-log-messages-its-own-way
  (with-globals ((hunchentoot:*log-lisp-backtraces-p* nil))
    (serving (:mixin 'own-logs) (("/" (hunchentoot:log-message* :info "~A!" "Hello") "body")
                                 ("/fails" (error "The reason.")))
      (ask "/")
      (ask "/fails")
      (is (equal '((:info "Hello!") (:error "The reason."))
                 (recorded (logged-messages *server*)))))))
