(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/logs :in conformance
  :description "The message log, as text; for methods see differential/, for the access log logs/.")

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

;;; The message log

(defun fail-with (octets few)
  "Signals an error; a backtrace shows the arguments."
  (declare (notinline fail-with))
  (error "The reason, ~D and ~D." (length octets) (length few)))

(define-server-test
    (a-backtrace-ends-where-the-handler-was-called-and-shows-a-part-of-a-long-argument
     :needs :our-engine)
  (where-supported
   (let ((log (logged (:message-log-destination)
                  (("/" (list (fail-with (make-list 100000 :initial-element 0)
                                         (list 1 2 3)))))
                (ask "/"))))
     (is (search "(1 2 3)" log))
     (is (search "0 0 0 ...)" log))
     (is (< (length log) 50000))
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
