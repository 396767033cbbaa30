(in-package #:hunchentoot-recycling-taskmaster)

;;;; A line of the access log: Hunchentoot's, JSON, or what a function of the program's returns.

;;; The time.  All threads share one rendering of the current second.

(defun local-time-text (second)
  "SECOND as Hunchentoot's access log tells it: in local time."
  (multiple-value-bind (second minute hour day month year) (decode-universal-time second)
    (format nil "~4,'0D-~2,'0D-~2,'0D ~2,'0D:~2,'0D:~2,'0D" year month day hour minute second)))

(defun utc-time-text (second)
  "SECOND as a date-time of RFC 3339, section 5.6, in UTC."
  (multiple-value-bind (second minute hour day month year) (decode-universal-time second 0)
    (format nil "~4,'0D-~2,'0D-~2,'0DT~2,'0D:~2,'0D:~2,'0DZ" year month day hour minute second)))

(defvar *local-time* '(nil) "For RENDERED-SECOND.")
(defvar *utc-time* '(nil) "For RENDERED-SECOND.")

;;; The facts

(defun user-of (request)
  "The user that REQUEST names.  Credentials that cannot be decoded are those of nobody."
  (and (hunchentoot:header-in :authorization request)
       (handler-case (values (hunchentoot:authorization request))
         (error () nil))))

(defun content-octets (request reply status)
  "How many octets of content the reply to REQUEST has; NIL when nobody knows beforehand."
  (if (content-wanted-p (hunchentoot:request-method request) status)
      (hunchentoot:content-length reply)
      0))

(defun access-facts (request reply status duration)
  "A plist of what the access log knows of REQUEST, answered by REPLY with STATUS after DURATION, in
microseconds or NIL."
  (list :time (rendered-second *utc-time* (get-universal-time) 'utc-time-text)
        :remote-address (hunchentoot:remote-addr request)
        :forwarded-for (hunchentoot:header-in :x-forwarded-for request)
        :user (user-of request)
        :method (princ-to-string (hunchentoot:request-method request))
        :uri (hunchentoot:request-uri request)
        :protocol (princ-to-string (hunchentoot:server-protocol request))
        :status status
        :bytes (content-octets request reply status)
        :duration-us duration
        :referer (hunchentoot:header-in :referer request)
        :user-agent (hunchentoot:header-in :user-agent request)))

;;; The formats

(defmacro encode-items (line &body items)
  "Appends ITEMS to LINE: literal strings as they are, and what other forms evaluate to as
ENCODE-PRINTED does between quotation marks; of the form (OR-DASH form), a dash where that is
NIL; of the form
(BARE form), as outside of quotation marks."
  `(progn
     ,@(loop for item in items
             collect (cond ((stringp item)
                            ;; ABCL would dump literal octets as a vector of anything.
                            `(encode-octets ,line
                                            (load-time-value (map 'octets #'char-code ,item))))
                           ((and (consp item) (eq 'or-dash (first item)))
                            `(encode-printed ,line (or ,(second item) "-")))
                           ((and (consp item) (eq 'bare (first item)))
                            `(encode-printed ,line ,(second item) :bracketed))
                           (t
                            `(encode-printed ,line ,item))))))

(defun encode-combined (line request reply status)
  "Appends to LINE what Hunchentoot's ACCEPTOR-LOG-ACCESS writes of REQUEST, answered by REPLY with
STATUS; what could forge a part of the line is escaped."
  (let ((forwarded (hunchentoot:header-in :x-forwarded-for request))
        (query (hunchentoot:query-string request)))
    (encode-items line (or-dash (hunchentoot:remote-addr request)))
    (when forwarded
      (encode-items line " (" (bare forwarded) ")"))
    (encode-items line
      " " (bare (or (user-of request) "-"))
      " [" (rendered-second *local-time* (get-universal-time) 'local-time-text) "] \""
      (hunchentoot:request-method request) " " (hunchentoot:script-name request))
    (when query
      (encode-items line "?" query))
    (encode-items line
      " " (hunchentoot:server-protocol request) "\" " status
      " " (or-dash (hunchentoot:content-length reply))
      " \"" (or-dash (hunchentoot:header-in :referer request))
      "\" \"" (or-dash (hunchentoot:header-in :user-agent request)) "\"")))

(defun encode-line-in-format (line format combined facts)
  "Appends a line in FORMAT to LINE, with its end: by COMBINED, a function, or of what FACTS,
another, returns.  NIL when there is to be none."
  (let ((text nil))
    (cond ((eq format :combined)
           (funcall combined))
          ((eq format :json)
           (encode-json line (funcall facts)))
          ((setf text (funcall format (funcall facts)))
           (encode-escaped line text :free))
          (t
           (return-from encode-line-in-format nil)))
    (end-line line)
    t))

(defun encode-access (line format request reply status duration)
  "Appends a line in FORMAT about REQUEST to LINE, with its end.  NIL when there is to be none."
  (flet ((combined ()
           (encode-combined line request reply status))
         (facts ()
           (access-facts request reply status duration)))
    (declare (dynamic-extent #'combined #'facts))
    (encode-line-in-format line format #'combined #'facts)))
