(in-package #:hunchentoot-recycling-taskmaster)

;;;; A line of the access log: in Hunchentoot's format, as JSON, or made by a function of the
;;;; program.

;;; The facts

(defun user-of (request)
  "The user that REQUEST names; NIL for none, and for credentials that cannot be decoded."
  (and (hunchentoot:header-in :authorization request)
       (handler-case (values (hunchentoot:authorization request))
         (error () nil))))

(defun content-octets (request reply status)
  "How many octets of content the reply to REQUEST has; NIL where that is not known beforehand."
  (if (content-wanted-p (hunchentoot:request-method request) status)
      (hunchentoot:content-length reply)
      0))

(defun forwarded-in-log (request)
  "The X-Forwarded-For of REQUEST; NIL for none, and where the address tells what was believed."
  (and (not (behind-proxies-p (hunchentoot:request-acceptor request)))
       (hunchentoot:header-in :x-forwarded-for request)))

(defun access-facts (request reply status duration)
  "The facts of a line about REQUEST, a plist.  It was answered by REPLY with STATUS after DURATION,
in microseconds or NIL."
  (list :time (utc-now)
        :remote-address (hunchentoot:remote-addr request)
        :forwarded-for (forwarded-in-log request)
        :user (user-of request)
        :method (princ-to-string (hunchentoot:request-method request))
        :uri (hunchentoot:request-uri request)
        :protocol (princ-to-string (hunchentoot:server-protocol request))
        :status status
        :bytes (content-octets request reply status)
        :duration-us duration
        :referer (hunchentoot:header-in :referer request)
        :user-agent (hunchentoot:header-in :user-agent request)
        :request-id (request-id request)))

;;; The formats

(defmacro encode-items (line &body items)
  "Appends ITEMS to LINE.  A literal string is appended as it is.  The value of another form is
appended by ENCODE-PRINTED, as between quotation marks.  (OR-DASH form) stands for a dash where the
value is NIL, and (BARE form) for a value outside of quotation marks."
  `(progn
     ,@(loop for item in items
             collect (cond ((stringp item)
                            ;; ABCL would dump literal octets as a general vector.
                            `(encode-octets ,line
                                            (load-time-value (map 'octets #'char-code ,item))))
                           ((and (consp item) (eq 'or-dash (first item)))
                            `(encode-printed ,line (or ,(second item) "-")))
                           ((and (consp item) (eq 'bare (first item)))
                            `(encode-printed ,line ,(second item) :bracketed))
                           (t
                            `(encode-printed ,line ,item))))))

(defun encode-combined (line request reply status)
  "Appends to LINE what Hunchentoot's ACCEPTOR-LOG-ACCESS writes about REQUEST, answered by REPLY
with STATUS.  Characters that could forge a part of the line are escaped."
  (let ((forwarded (forwarded-in-log request))
        (query (hunchentoot:query-string request)))
    (encode-items line (or-dash (hunchentoot:remote-addr request)))
    (when forwarded
      (encode-items line " (" (bare forwarded) ")"))
    (encode-items line
      " " (bare (or (user-of request) "-"))
      " [" (local-now) "] \""
      (hunchentoot:request-method request) " " (hunchentoot:script-name request))
    (when query
      (encode-items line "?" query))
    (encode-items line
      " " (hunchentoot:server-protocol request) "\" " status
      " " (or-dash (hunchentoot:content-length reply))
      " \"" (or-dash (hunchentoot:header-in :referer request))
      "\" \"" (or-dash (hunchentoot:header-in :user-agent request)) "\"")))

(defun encode-line-in-format (line acceptor combined facts)
  "Appends a whole line in the format of ACCEPTOR to LINE.  The function COMBINED appends the format
:COMBINED; the function FACTS returns the plist for the others.  NIL when the program wants no
line."
  (let ((format (access-log-format acceptor))
        (test (access-log-test acceptor))
        (text nil))
    (cond ((and test (not (funcall test (funcall facts))))
           (return-from encode-line-in-format nil))
          ((eq format :combined)
           (funcall combined))
          ((eq format :json)
           (encode-json line (list* :time (utc-now-with-milliseconds) (cddr (funcall facts)))))
          ((setf text (funcall format (funcall facts)))
           (encode-escaped line text :free))
          (t
           (return-from encode-line-in-format nil)))
    (end-line line)
    t))

(defun encode-access (line acceptor request reply status duration)
  "Appends a whole line of ACCEPTOR about REQUEST to LINE.  NIL when the program wants no line."
  (flet ((combined ()
           (encode-combined line request reply status))
         (facts ()
           (access-facts request reply status duration)))
    (declare (dynamic-extent #'combined #'facts))
    (encode-line-in-format line acceptor #'combined #'facts)))
