(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* event-streams :in http
  :description "The format of server-sent events.")

(defun event-text (data &rest keys)
  "The octets that ENCODE-EVENT makes of its arguments, as a string."
  (decode (apply #'http:encode-event data keys)))

(defun in-lines (&rest lines)
  "LINES, each with a line end."
  (format nil "~{~A~%~}" lines))

(defun parsed-events (octets)
  "Parses OCTETS, a stream of events, as a client does: lists of type, data and identifier.  Follows
section 9.2.6 of the standard, for streams with LF only."
  (let ((events '()) (type "") (data '()) (id ""))
    (dolist (line (uiop:split-string (decode octets) :separator '(#\Newline)) (nreverse events))
      (let* ((colon (position #\: line))
             (name (subseq line 0 colon))
             (value (if colon (subseq line (1+ colon)) ""))
             (value (if (uiop:string-prefix-p " " value) (subseq value 1) value)))
        (cond ((string= "" line)
               (when data
                 (push (list type (format nil "~{~A~^~%~}" (reverse data)) id) events))
               (setf type "" data '()))
              ((string= "event" name) (setf type value))
              ((string= "data" name) (push value data))
              ((string= "id" name) (setf id value)))))))

(test an-event-is-its-fields-and-an-empty-line
  (is (string= (in-lines "data: hello" "") (event-text "hello")))
  (is (string= (in-lines "event: tick" "id: 7" "retry: 250" "data: hello" "")
               (event-text "hello" :event "tick" :id 7 :retry 250)))
  (is (string= (in-lines "id: 7" "") (event-text nil :id 7)))
  (is (string= (in-lines "data: " "") (event-text "")))
  (is (string= (in-lines "id: " "data: x" "") (event-text "x" :id ""))))

(test each-line-of-data-has-its-field-however-it-ends
  (dolist (end (list (string #\Newline) (string #\Return) (coerce '(#\Return #\Newline) 'string)))
    (is (string= (in-lines "data: a" "data: b" "data: " "")
                 (event-text (concatenate 'string "a" end "b" end)))
        "~S" end))
  (is (string= (in-lines "data: a" "data: " "data: b" "")
               (event-text (format nil "a~C~Cb" #\Newline #\Return))))
  (is (string= (in-lines "data:  a" "data: data: b" "") (event-text (format nil " a~%data: b")))
      "Data that looks like a field, or begins with a space, stays data."))

(test no-field-can-forge-another
  (dolist (text (list (format nil "a~%data: b") (format nil "a~Cdata: b" #\Return)))
    (signals http:malformed-event (http:encode-event "x" :event text))
    (signals http:malformed-event (http:encode-event "x" :id text)))
  (signals http:malformed-event (http:encode-event "x" :id (string (code-char 0))))
  (signals error (http:encode-event "x" :retry -1))
  (signals error (http:encode-event "x" :retry "1"))
  (signals error (http:encode-event 'x)))

(test a-comment-is-no-event
  (is (string= (in-lines ":" "") (decode (http:encode-comment))))
  (is (string= (in-lines ":a" ":data: b" "")
               (decode (http:encode-comment (format nil "a~%data: b")))))
  (is (null (parsed-events (http:encode-comment (format nil "a~Cdata: b" #\Return))))))
