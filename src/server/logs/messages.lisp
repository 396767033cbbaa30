(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Messages for administrators.  A client cannot forge a line of one, and cannot fill the log.

;;; A throttle lets each kind of event be logged at most once in ten seconds, with how often it
;;; happened.  Otherwise overload, or a client that tries again and again, would fill the log.

(defparameter *warning-milliseconds* 10000
  "The shortest time between two messages about the same event.")

(defstruct (throttle (:include opaque))
  "The events that were not logged yet, by kind."
  (lock (bt:make-lock "throttle") :read-only t)
  ;; From kinds to pairs of a number of events, and the moment, in MILLISECONDS, until which they
  ;; are not logged, if there was no burst of messages.
  (entries (make-hash-table :test 'equal) :read-only t))

(defun count-event (throttle kind &optional (burst 1))
  "Counts an event of KIND, compared by EQUAL and never made up by a client, in THROTTLE.  Returns
the number of such events for a message now, or NIL for no message.  BURST messages may follow each
other without a pause."
  (with-lock-briefly ((throttle-lock throttle))
    (let* ((entries (throttle-entries throttle))
           (now (milliseconds))
           (entry (or (gethash kind entries)
                      (setf (gethash kind entries) (cons 0 now)))))
      (incf (car entry))
      (when (>= now (- (cdr entry) (* *warning-milliseconds* (1- burst))))
        (setf (cdr entry) (+ (max now (cdr entry)) *warning-milliseconds*))
        (shiftf (car entry) 0)))))

(defparameter *rare-control* "~A~@[: ~A~]."
  "The control string of messages about events that a throttle counts.")

(defparameter *text-limit* 500
  "The length, in characters, to which text of a client in a message is cut.")

(defparameter *report-limit* 10000
  "The length, in characters, to which a backtrace in a message is cut, if clients can cause it.")

(defun shortened (text limit)
  "TEXT, a string; if longer than LIMIT, its first LIMIT characters and the number of the others."
  (if (> (length text) limit)
      (format nil "~A... (~D more characters)" (subseq text 0 limit) (- (length text) limit))
      text))

;;; A report may show all elements of what a client has sent, or of a circular list.

(defun condition-text (condition &optional (limit *report-limit*))
  "The report of CONDITION, cut to LIMIT characters.  Signals the errors of the report."
  (let ((*print-length* (or *print-length* limit))
        (*print-level* (or *print-level* 20)))
    (shortened (princ-to-string condition) limit)))

(defun report-text (argument)
  "ARGUMENT of a message that clients can cause, in the form for the message."
  (typecase argument
    (string (shortened argument *text-limit*))
    (condition (condition-text argument *text-limit*))
    (t argument)))

(defun message-text (control arguments &optional (treat #'identity))
  "The text of a message of CONTROL and ARGUMENTS, as for FORMAT, after a call of TREAT on each
argument.  Never signals an error: most often the report of a condition fails, and then the text has
its type."
  (flet ((text (treat)
           (handler-case (apply #'format nil control (mapcar treat arguments))
             (serious-condition () nil))))
    (or (text treat)
        (text (lambda (argument)
                (if (typep argument 'condition) (type-of argument) argument)))
        (format nil "A message could not be made of ~S." control))))

(defun request-words (method uri protocol)
  "The request line of METHOD, URI and PROTOCOL for a message, a string, without the query, which
may have secrets."
  (format nil "~A ~A ~A" method (shortened (subseq uri 0 (position #\? uri)) *text-limit*)
          protocol))

(defparameter *error-control* "~A~@[~%~A~]"
  "The control string of messages about errors of programs, with their backtraces: Hunchentoot's.")

(defun message-line (application format level control arguments seldom-p
                     &key (backtrace-p t) request request-id trace-id remote-address)
  "An OUTPUT with the message of CONTROL and ARGUMENTS, as for FORMAT, at LEVEL, most often a
keyword, or NIL, of the current thread.  SELDOM-P is true where clients can cause the message: then
texts in it are cut, it has the number of messages with this control string and a condition of this
type since the last one, and is NIL where the throttle of APPLICATION suppresses it.  FORMAT is
:TEXT, for the beginning that Hunchentoot's messages have, or :JSON, for an object in a line (RFC
8259).  If BACKTRACE-P, an error has its backtrace.  REQUEST, the REQUEST-WORDS of the request that
the thread serves, its REQUEST-ID, its TRACE-ID and the REMOTE-ADDRESS are strings, or NIL where
there are none."
  (let* ((error-p (equal control *error-control*))
         (condition (find-if (lambda (argument) (typep argument 'condition)) arguments))
         (count (if seldom-p
                    (count-event (application-throttle application)
                                 (cons control (and condition (type-of condition)))
                                 20)
                    1)))
    (flet ((trimmed (text)
             (string-right-trim '(#\Newline #\Return #\Space) text)))
      (when count
        (let ((text (trimmed (format nil "~@[~D since the last message; the last one: ~]~A"
                                     (and (> count 1) count)
                                     (message-text control
                                                   (if error-p
                                                       (list* (first arguments) nil
                                                              (cddr arguments))
                                                       arguments)
                                                   (if seldom-p #'report-text #'identity)))))
              (backtrace (and error-p backtrace-p (second arguments)
                              (trimmed (shortened (second arguments) *report-limit*))))
              (line (make-output)))
          (if (eq :json format)
              (encode-json line `(:time ,(utc-now)
                                  :level ,(and level (string-downcase (princ-to-string level)))
                                  :message ,text
                                  :request ,request
                                  :request-id ,request-id
                                  ,@(and trace-id (list :trace-id trace-id))
                                  :remote-address ,remote-address
                                  :thread ,(bt:thread-name (bt:current-thread))
                                  :backtrace ,backtrace))
              (loop with text = (format nil "[~A~@[ [~A]~]] ~A~
                                             ~:[~*~*~*~; [~A from ~A, request ~A]~]~@[~%~A~]"
                                        (local-now) level text request request remote-address
                                        request-id backtrace)
                    for start = 0 then (1+ end)
                    for end = (position #\Newline text :start start)
                    do (encode-escaped line (subseq text start end) :free)
                    while end
                    do (end-line line)
                       (encode-string line "  " :utf-8))) ; so it does not look like a message
          (end-line line)
          line)))))

;;; Errors of programs

(defparameter *backtrace-print-length* 100
  "How many elements of a list a backtrace shows.")

(defun call-catching (function &optional (blameless-p (constantly nil)))
  "Calls FUNCTION, of a program.  Returns the serious condition that has ended the call, or NIL, and
its backtrace as far as FUNCTION, a string; that is NIL where memory is exhausted, where
BLAMELESS-P, a function, is true of the condition, and on Lisps whose backtraces have no bounds."
  (let ((backtrace nil))
    (flet ((note-backtrace (condition)
             (unless (or (typep condition 'storage-condition) (funcall blameless-p condition))
               (setf backtrace
                     (call-for-backtrace (constantly nil) *backtrace-print-length*
                                         'call-catching)))))
      (handler-case (handler-bind ((error #'note-backtrace))
                      (funcall function)
                      nil)
        (storage-condition (condition)
          (make-room-in-heap 0)         ; or the next call would run out of memory too
          condition)
        (serious-condition (condition) (values condition backtrace))))))
