(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What a client, and the logs, see of one case.

(defstruct observation
  "All that was seen of one case at one server."
  (answers '())                         ; interim responses included
  (connection nil)                      ; :KEPT, :CLOSED, :HUNG, or NIL after a half-close
  (rest "")                             ; what came between the answers and that
  (log '())                             ; accesses, and
  (messages '())                        ; messages, oldest first
  (trace ""))                           ; what *HEADER-STREAM* got

;;; Reading

(defun continuation-p (line)
  (and (plusp (length line))
       (find (char line 0) '(#\Space #\Tab))))

(defun read-header-alist (connection)
  "The names and values of the header lines that come next.  A line that continues one, which
only Hunchentoot sends, becomes a line of the value."
  (loop with headers = '()
        for line = (or (read-response-line connection) "")
        until (string= line "")
        do (if (and headers (continuation-p line))
               (setf (cdr (first headers)) (format nil "~A~%~A" (cdr (first headers)) line))
               (push (parse-header-line line) headers))
        finally (return (nreverse headers))))

(defun read-answer (connection head-p)
  "The next response from CONNECTION, the names of its headers as they were spelled; HEAD-P tells
that it answers a HEAD request."
  (let* ((line (or (read-response-line connection)
                   (error 'broken-response :what "the connection has ended")))
         (response (parse-status-line line))
         (headers (read-header-alist connection)))
    (setf (response-headers response) (in-lower-case headers)
          (response-body response) (read-body connection response head-p)
          (response-headers response) headers)
    response))

(defun interim-p (answer)
  "Whether another response follows ANSWER.  After 101 none does."
  (and (<= 100 (response-status answer) 199)
       (/= 101 (response-status answer))))

(defun read-until-final (connection head-p)
  "The responses from CONNECTION up to the next final one."
  (loop for answer = (read-answer connection head-p)
        collect answer
        while (interim-p answer)))

;;; Acting

(defparameter *probe*
  (request-octets "/probe" :headers '(("Connection" . "close")))
  "A request that tells whether a connection was kept.")

(defun describe-end (octets)
  "Whether OCTETS, all that came after the answers and *PROBE*, end with the answer to the
probe, and what comes before it."
  (let* ((text (octet-text octets))
         (start (and (uiop:string-suffix-p text "probed")
                     (search "HTTP/1.1 200 OK" text :from-end t))))
    (if start
        (values :kept (subseq text 0 start))
        (values :closed text))))

(defun observe-end (observation connection)
  "Finds out what becomes of CONNECTION after its last answer."
  (ignore-errors (send connection *probe*))
  (setf (values (observation-connection observation) (observation-rest observation))
        (describe-end (receive-rest connection))))

(defun capture (pattern answers)
  "What the first group of PATTERN matches in a header of one of ANSWERS; empty if nothing."
  (loop for answer in answers
        do (loop for (name . value) in (response-headers answer)
                 for groups = (nth-value 1 (cl-ppcre:scan-to-strings
                                            pattern (format nil "~A: ~A" name value)))
                 when groups
                   do (return-from capture (aref groups 0))))
  "")

(defun perform-step (observation connection step)
  "Sends STEP and reads what it says."
  (let ((octets (as-octets (step-input step))))
    (send-in-pieces connection (getf step :pieces (max 1 (length octets))) octets)
    (when (getf step :end)
      (end-sending connection))
    (dolist (read (step-reads step))
      (setf (observation-answers observation)
            (append (observation-answers observation)
                    (if (eq read :interim)
                        (list (read-answer connection nil))
                        (read-until-final connection (eq read :head))))))))

(defun perform-steps (observation connection steps)
  (let ((captures '()))
    (dolist (step steps)
      (perform-step observation connection (with-variables step captures))
      (loop for (name pattern) in (getf step :capture)
            do (push (cons name (capture pattern (observation-answers observation)))
                     captures)))))

(defun perform-case (connection case)
  "Performs CASE on CONNECTION; returns the observation."
  (let ((observation (make-observation))
        (steps (case-steps case)))
    (handler-case
        (progn
          ;; What is no HTTP is seen in what comes after the answers so far.
          (handler-case (perform-steps observation connection steps)
            (patience-lost (condition) (error condition))
            (error () ()))
          (if (some (lambda (step) (getf step :end)) steps)
              (setf (observation-rest observation)
                    (octet-text (receive-rest connection)))
              (observe-end observation connection)))
      (patience-lost ()
        (setf (observation-connection observation) :hung)))
    observation))

;;; Logs: whose they are is told by the port of the client

(defclass observed () ()
  (:documentation "A mixin for an acceptor whose logs are kept for the observer."))

(defvar *logged* (make-recorder)
  "Lists of a client's port, :LOG or :MESSAGES, and what was logged.")

(defvar *session-number* 1000000
  "The last number of a session of an observed acceptor.  All have as many digits.")

(defmethod hunchentoot:next-session-id ((acceptor observed))
  (incf *session-number*))

(defun note-logged (kind text)
  (when (and (boundp 'hunchentoot:*request*)
             (string/= "/probe" (hunchentoot:script-name*)))
    (record *logged* (list (hunchentoot:remote-port*) kind text))))

(defmethod hunchentoot:acceptor-log-access ((acceptor observed) &key return-code)
  (note-logged :log (shown (string (hunchentoot:request-method*)) (hunchentoot:request-uri*)
                           return-code (hunchentoot:content-length*)
                           (hunchentoot:return-code*))))

(defmethod hunchentoot:acceptor-log-message ((acceptor observed) level control &rest arguments)
  (let ((text (apply #'format nil control arguments)))
    (note-logged :messages (format nil "~A: ~A" level
                                   (subseq text 0 (position #\Newline text))))))

(defun logged-by (port)
  "What has been logged for the client at PORT, the oldest first."
  (loop for entry in (recorded *logged*)
        when (eql port (first entry))
          collect (rest entry)))

(defun texts-of-kind (kind entries)
  (loop for (entry-kind text) in entries
        when (eq kind entry-kind) collect text))

(defun add-logs (observation entries)
  (setf (observation-log observation) (texts-of-kind :log entries)
        (observation-messages observation) (texts-of-kind :messages entries)))

(defvar *access-text* (make-broadcast-stream)
  "Where the access log goes in a world that has one: a string stream.")

(defun add-access-text (observation)
  "Adds what was logged of all cases to OBSERVATION, that of the last.  Ours is complete only when
the server has stopped."
  (when (typep *access-text* 'string-stream)
    (setf (observation-trace observation)
          (concatenate 'string (observation-trace observation)
                       (get-output-stream-string *access-text*)))))

;;; One server, many cases

(defvar *trace* (make-broadcast-stream)
  "Where *HEADER-STREAM* writes in a world that has one: a string stream.")

(defun forget-logged (port)
  "Makes room for another client at PORT: the system gives ports out again soon."
  (bt:with-lock-held ((recorder-lock *logged*))
    (setf (recorder-entries *logged*)
          (remove port (recorder-entries *logged*) :key #'first))))

(defun observe-case (case)
  "Performs CASE at *SERVER*; returns the observation."
  (with-connection (connection)
    (let ((observation (perform-case connection case))
          (port (client-port connection)))
      (add-logs observation (logged-by port))
      (forget-logged port)
      (when (typep *trace* 'string-stream)
        (setf (observation-trace observation) (get-output-stream-string *trace*)))
      observation)))

(defun observe-in-turn (cases results next)
  "Observes those of the vector CASES that nobody else has taken yet, into RESULTS."
  (loop for index = (funcall next)
        while (< index (length cases))
        do (setf (aref results index) (observe-case (aref cases index)))))

(defun counter ()
  "A function that counts from zero, for several threads."
  (let ((next -1) (lock (bt:make-lock "counter")))
    (lambda () (bt:with-lock-held (lock) (incf next)))))

(defun observe-all (cases client-count)
  "Observations of all CASES at *SERVER*, made by CLIENT-COUNT clients at a time: those that
wait for one another's delayed acknowledgements do not hold up the rest."
  (let ((cases (coerce cases 'vector))
        (results (make-array (length cases) :initial-element nil))
        (next (counter)))
    (with-globals ((*logged* (make-recorder)))
      (let ((clients (loop repeat client-count
                           collect (in-background ("a differential client")
                                     (observe-in-turn cases results next)))))
        (dolist (client clients)
          (task-result client 120)))
      (coerce results 'list))))
