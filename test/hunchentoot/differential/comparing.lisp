(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What varies by nature

(defparameter *varying*
  '(("\\d+(:|%3A)[0-9A-F]{32}" "SESSION")          ; the value that names a session
    ;; What we add to the session's cookie and to errors in the log, see docs/differences.md.
    ("(hunchentoot-session=[^\"]*?)(; Secure)?; SameSite=Lax" "\\1")
    (" \\[[A-Z]+ \\S+ HTTP/1.1 from \\S+, request [0-9a-f]+\\]" "")
    ("(?s)Backtrace for: .*?</pre>" "BACKTRACE</pre>")
    ("#<[^>]*>" "#<SOMETHING>")                      ; in messages
    ;; Hunchentoot has usocket wrap a condition once more.
    ("The condition (The condition .* occurred with errno: 0\\.) occurred with errno: 0\\." "\\1")
    ("\\[20\\d\\d-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d" "[TIME"))
  "Regular expressions for what differs between two requests to the same server, and what is
put in their place.")

(defun without-varying (text port)
  "TEXT without what differs between two servers, one of which has PORT, and two requests."
  (let ((text (replace-all text (format nil "(port ~D)" port) "(port PORT)")))
    (loop for (pattern replacement) in *varying*
          do (setf text (cl-ppcre:regex-replace-all pattern text replacement)))
    text))

(defparameter *date-pattern*
  "^(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \\d\\d [A-Z][a-z]{2} 20\\d\\d \\d\\d:\\d\\d:\\d\\d GMT$"
  "A date of this century.")

(defun normalised-header (header port)
  (destructuring-bind (name . value) header
    (cons name (if (and (member name '("Date" "Last-Modified") :test #'string=)
                        (cl-ppcre:scan *date-pattern* value))
                   "DATE"
                   (without-varying value port)))))

(defun normalised-body (octets port)
  "OCTETS as text, a character for each."
  (if (< (length octets) 20000)
      (without-varying (octet-text octets) port)
      (octet-text octets)))

(defun normalise-answer (answer port)
  (setf (response-headers answer) (loop for header in (response-headers answer)
                                      collect (normalised-header header port))
        (response-body answer) (normalised-body (response-body answer) port))
  (when (search "BACKTRACE</pre>" (response-body answer))
    (setf (response-headers answer)
          (remove "Content-Length" (response-headers answer) :key #'car :test #'string=))))

(defun normalised (observation port)
  "OBSERVATION, at a server with PORT, without what varies by nature."
  (dolist (answer (observation-answers observation))
    (normalise-answer answer port))
  (setf (observation-rest observation)
        (cl-ppcre:regex-replace-all "Date: [^\\r]+" (without-varying (observation-rest observation)
                                                                     port)
                                    "Date: DATE")
        (observation-trace observation) ; in which our Date comes last
        (cl-ppcre:regex-replace-all "Date: [^\\r]+\\r\\n"
                                    (without-varying (observation-trace observation) port) "")
        (observation-log observation)
        (loop for text in (observation-log observation) collect (without-varying text port))
        (observation-messages observation)
        (loop for text in (observation-messages observation) collect (without-varying text port)))
  observation)

;;; Differences: lists of what differs, what it is at Hunchentoot's own acceptor, and at ours

(defun difference (what stock ours)
  "A list of one difference, or of none when STOCK and OURS are alike."
  (unless (equal stock ours)
    (list (append (uiop:ensure-list what) (list stock ours)))))

(defun told-reason (answer)
  "The reason phrase of ANSWER, but the registered one for an older one that Hunchentoot knows."
  (let* ((status (response-status answer))
         (registered (http:reason-phrase status)))
    (if (and registered
             (equal (response-reason answer) (hunchentoot:reason-phrase status))
             (not (equal (response-reason answer) (hunchentoot:reason-phrase -1))))
        registered
        (response-reason answer))))

(defun header-names (answer)
  "The names of the headers of ANSWER, each once, in order."
  (remove-duplicates (mapcar #'car (response-headers answer)) :test #'string= :from-end t))

(defun header-differences (stock ours)
  (let ((stock-names (header-names stock))
        (our-names (header-names ours)))
    (append (loop for name in (union stock-names our-names :test #'string=)
                  append (difference (list :header name)
                                     (response-header-values stock name)
                                     (response-header-values ours name)))
            ;; The order of headers of different names means nothing (RFC 9110, section 5.3),
            ;; but we keep it, save where the Date is.
            (flet ((others (names other-names)
                     (remove-if-not (lambda (name)
                                      (and (string/= name "Date")
                                           (member name other-names :test #'string=)))
                                    names)))
              (difference :order (others stock-names our-names)
                          (others our-names stock-names))))))

(defun answer-differences (stock ours)
  (or (difference :status (response-status stock) (response-status ours))
      (append (difference :reason (told-reason stock) (told-reason ours))
              (header-differences stock ours)
              (difference :body (response-body stock) (response-body ours)))))

(defun observation-differences (stock ours)
  "How the observations STOCK and OURS of one case differ.  Of answers that differ in their
status, nothing else is told, and not what was logged."
  (let ((answers (append
                  (difference :answers (length (observation-answers stock))
                              (length (observation-answers ours)))
                  (mapcan #'answer-differences
                          (observation-answers stock) (observation-answers ours)))))
    (append answers
            (difference :connection (observation-connection stock)
                        (observation-connection ours))
            (difference :rest (observation-rest stock) (observation-rest ours))
            (unless (member (first (first answers)) '(:answers :status))
              (append
               (difference :log (observation-log stock) (observation-log ours))
               (difference :messages (observation-messages stock) (observation-messages ours))
               (difference :trace (observation-trace stock) (observation-trace ours)))))))

;;; The table of differences

(defun holds-p (entry)
  "Whether ENTRY of the table is true of the Hunchentoot that is loaded."
  (and (funcall (getf entry :if (constantly t)))
       (not (funcall (getf entry :unless (constantly nil))))))

(defun pattern-matches-p (pattern name)
  "Whether PATTERN, which may end with an asterisk for anything, matches NAME."
  (let ((end (1- (length pattern))))
    (if (char= #\* (char pattern end))
        (uiop:string-prefix-p (subseq pattern 0 end) name)
        (string= pattern name))))

(defun like-p (wanted value)
  "Whether VALUE is as an entry wants it: :ANY, something EQUAL, or (:CONTAINING text)."
  (cond ((eq wanted :any) t)
        ((and (consp wanted) (eq (first wanted) :containing))
         (and (search (second wanted) (princ-to-string value)) t))
        (t (equal wanted value))))

(defun difference-matches-p (wanted difference)
  "Whether DIFFERENCE begins as WANTED, of an entry, says."
  (loop for part in wanted
        for (actual . more) on difference
        always (like-p part actual)))

(defstruct usage
  "What of one entry was shown by some case."
  entry (cases '()) (differs '()))

(defun explain-difference (usages mode case difference)
  "The usage among USAGES whose entry explains DIFFERENCE, shown in MODE by CASE, or NIL."
  (loop for usage in usages
        for entry = (usage-entry usage)
        for pattern = (find-if (lambda (pattern) (pattern-matches-p pattern (getf case :name)))
                               (getf entry :cases))
        for wanted = (find-if (lambda (wanted) (difference-matches-p wanted difference))
                              (getf entry :differs))
        when (and pattern wanted (member mode (getf entry :at '(:parked :portable))))
          do (pushnew pattern (usage-cases usage) :test #'string=)
             (pushnew wanted (usage-differs usage) :test #'equal)
             (return usage)))

(defun stale-parts (usage)
  "What of the entry of USAGE no case has shown."
  (let ((entry (usage-entry usage)))
    (append (set-difference (getf entry :cases) (usage-cases usage) :test #'string=)
            (set-difference (getf entry :differs) (usage-differs usage) :test #'equal))))
