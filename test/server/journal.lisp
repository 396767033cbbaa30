(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* journal :in all
  :description "Lines of logs: how their text is escaped, and destinations that fail.")

(defun lines-of (file)
  (if (file-gone-p file)
      '()
      (uiop:read-file-lines file :external-format :utf-8)))

(defmacro with-log-file ((file) &body body)
  "Evaluates BODY with FILE bound to the name of a file that is not there yet."
  (let ((directory (gensym "DIRECTORY")))
    `(with-directory (,directory)
       (let ((,file (merge-pathnames "lines.log" ,directory)))
         ,@body))))

(defclass stalled-stream (trivial-gray-streams:fundamental-character-output-stream)
  ((entered :initform (make-gate "the stream to be written to") :reader entered)
   (gate :initform (make-gate) :reader stream-gate)
   (text :initform (make-recorder) :reader written-text))
  (:documentation "A stream that takes nothing before its gate is open."))

(defmethod trivial-gray-streams:stream-write-char ((stream stalled-stream) char)
  (trivial-gray-streams:stream-write-string stream (string char))
  char)

(defmethod trivial-gray-streams:stream-write-string
    ((stream stalled-stream) string &optional (start 0) end)
  (open-gate (entered stream))
  (await (stream-gate stream))
  (record (written-text stream) (subseq string start end))
  string)

(defmethod trivial-gray-streams:stream-line-column ((stream stalled-stream))
  nil)

(defun text-written-to (stream)
  "All that STREAM, a STALLED-STREAM, has taken."
  (apply #'concatenate 'string (recorded (written-text stream))))

;;; Lines

(defun line-text (encode value)
  "What the function ENCODE makes of VALUE."
  (let ((line (http:make-output)))
    (funcall encode line value)
    (decode (subseq (http:output-octets line) 0 (http:output-fill line)))))

(test printed-values-stay-on-their-line-and-in-their-brackets
  (loop for (value quoted bracketed)
          in `(("" "") ("plain" "plain") ("Grüße" "Grüße") (200 "200") (:get "GET")
               (,(format nil "a~Cb~C" #\Return #\Newline) "a\\x0Db\\x0A")
               (,(map 'string #'code-char '(127 159 160)) ,(format nil "\\x7F\\x9F~C"
                                                                   (code-char 160)))
               (,(map 'string #'code-char '(#x2028 #x202E #x2066)) "\\u2028\\u202E\\u2066")
               ("a\"b\\c" "a\\x22b\\x5Cc") ("(a) [b]" "(a) [b]" "\\x28a\\x29 \\x5Bb\\x5D"))
        do (is (string= quoted (line-text #'server:encode-printed value)))
           (is (string= (or bracketed quoted)
                        (line-text (lambda (line value)
                                     (server:encode-printed line value :bracketed))
                                   value)))))

(test json-can-be-read-back
  (loop for value in (list "" "plain" "Grüße" 0 1234567890123 nil
                           (format nil "\"quoted\" \\ and ~C ~C ~C" #\Tab #\Newline (code-char 1))
                           (string (code-char #x2028)) (string (code-char 127)))
        do (is (equal value (parse-json (line-text #'server:encode-json value)))))
  (is (equal '(("status" . 200) ("user_agent" . "a\"b") ("referer"))
             (parse-json (line-text #'server:encode-json
                                    '(:status 200 :user-agent "a\"b" :referer nil)))))
  (is (equalp (vector (list (cons "400" 1) (cons "0.25" (vector))) 3/2)
              (parse-json (line-text #'server:encode-json #((400 1 0.25 #()) 1.5d0))))))

(test numbers-are-written-in-digits-to-a-millionth
  (loop for (value text) in '((0 "0") (1.0 "1") (0.0001 "0.0001") (10.0 "10")
                              (2500000.25d0 "2500000.25") (1/3 "0.333333") (1.9999999d0 "2")
                              (1.0e-9 "0") (123456789012 "123456789012"))
        do (is (string= text (line-text #'server:encode-json value)))))

(test moments-have-milliseconds-of-three-digits
  (eventually ("the first tenth of a second") (> 100 (mod (platform:universal-milliseconds) 1000)))
  (is (cl-ppcre:scan "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.0\\d\\dZ$" (server::utc-now))))

;;; Many threads

(test no-two-threads-get-one-buffer
  (let ((free-list (server::make-free-list 8)) (shared-p nil))
    (call-in-four-threads
     (lambda (number)
       (loop repeat (rounds 300000)
             for item = (or (server::take-from-free-list free-list) (list nil))
             do (setf (first item) number)
                (unless (loop repeat 50 always (eql number (first item)))
                  (setf shared-p t))
                (server::put-on-free-list free-list item))))
    (is (not shared-p))))

(defun call-in-four-threads (function)
  "The values of FUNCTION, called with 0 to 3, each in a thread, at a time."
  (let* ((gate (make-gate))
         (tasks (loop for number below 4
                      collect (let ((number number))
                                (in-background ("hammering")
                                  (await gate)
                                  (funcall function number))))))
    (open-gate gate)
    (mapcar #'task-result tasks)))

(test threads-that-write-to-one-destination-harm-no-line
  (let ((texts (loop for number below 4
                     collect (loop for i below (rounds 2000)
                                   collect (format nil "~D ~4,'0D" number i)))))
    (with-log-file (file)
      (with-open-file (stream file :direction :output)
        (let ((journals (loop repeat 2 collect (server::make-journal stream nil))))
          (call-in-four-threads
           (lambda (number)
             (dolist (text (elt texts number))
               (let ((line (http:make-output)))
                 (http:encode-string line (format nil "~A~%" text) :utf-8)
                 (server:append-line (elt journals (mod number 2)) line)))))))
      (is (equal (apply #'append texts) (sort (lines-of file) #'string<)))))
  (is (eq (server::lock-of-destination (string #\a)) (server::lock-of-destination (string #\a)))))

(test threads-count-each-event-and-agree-on-an-identifier
  (let ((throttle (server::make-throttle)) (count (rounds 50000))
        (ids (make-array (rounds 10000) :initial-element nil)))
    (with-globals ((server::*warning-milliseconds* 0) (server::*request-ids* (make-random-state t)))
      (let ((results (call-in-four-threads
                      (lambda (number)
                        (declare (ignore number))
                        (cons (loop repeat count
                                    sum (or (server::count-event throttle :kind) 0))
                              (loop for i below (length ids)
                                    collect (server:keep-request-id (svref ids i))))))))
        (is (= (* 4 count) (reduce #'+ results :key #'first)))
        (is (= 1 (length (remove-duplicates results :key #'rest :test #'equal))))))))

;;; Destinations that fail

(defun told-once-p (messages)
  "True when MESSAGES, a string stream, tells once, now or soon, that a log cannot be written."
  (= 1 (count-of "cannot be written"
                 (eventually ("it to be told")
                   (let ((text (taken-from-log messages)))
                     (and (search "cannot be" text) text))))))

(define-server-test (lines-wait-for-a-folder-that-is-gone :needs :our-engine)
  (with-log-file (file)
    (let ((hidden (merge-pathnames "later/lines.log" file))
          (messages (make-string-output-stream)))
      (serving (:access-log-destination hidden :message-log-destination messages) (("/" "body"))
        (taken-from-log messages)
        (loop repeat 2
              do (ask "/")
                 (recycling:reopen-logs *server*))
        (is-true (told-once-p messages))
        (ensure-directories-exist hidden)
        (ask "/")
        (eventually ("the lines to be written") (= 3 (length (lines-of hidden))))
        (eventually ("the recovery to be told")
          (search "is written again; lines lost so far: 0." (taken-from-log messages)))
        (is (zerop (figure :log-dropped)))
        (uiop:delete-directory-tree (uiop:pathname-directory-pathname hidden) :validate t)
        (ask "/")
        (recycling:reopen-logs *server*)
        (is-true (told-once-p messages) "It is told anew.")))))

(define-server-test (lines-for-which-there-is-no-room-are-counted-and-told :needs :our-engine)
  (let ((stream (make-instance 'stalled-stream)) (messages (make-string-output-stream))
        (line (make-string 1000000 :initial-element #\x)))
    (unwind-protect
         (serving (:access-log-destination stream :message-log-destination messages
                   :access-log-format (constantly line))
             (("/" "body"))
           (with-connection (connection)
             (loop for count from 1 to 40
                   do (exchange connection "/")
                      (when (= 3 count)
                        (is (zerop (figure :log-dropped)) "They only wait.")))
             (open-gate (stream-gate stream))
             (hunchentoot:stop *server*)
             (is (<= 24 (figure :log-dropped)) "Up to 16 MiB are kept.")
             (is (= 40 (+ (figure :log-dropped) (count #\Newline (text-written-to stream)))))
             (is (search (format nil "lines lost so far: ~D." (figure :log-dropped))
                         (taken-from-log messages)))))
      (open-gate (stream-gate stream)))))
