(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite journal :in all
  :description "Lines that a thread of their own writes.")

(in-suite journal)

(defvar *complaints* (make-recorder)
  "What the journals of a test complained of.")

(defun journal (destination)
  (setf *complaints* (make-recorder))
  (server:make-journal destination "journal of a test"
                       (let ((complaints *complaints*))
                         (lambda (level control &rest arguments)
                           (record complaints
                                   (list level (apply #'format nil control arguments)))))))

(defun note-line (journal text &optional urgent-p)
  "Appends TEXT to JOURNAL as a line, to be written soon or, if URGENT-P, at once."
  (let ((line (http:make-output)))
    (server:encode-printed line text)
    (server:end-line line)
    (server:append-line journal line urgent-p)))

(defmacro with-journal-running ((journal destination) &body body)
  "Evaluates BODY while JOURNAL, for DESTINATION, runs."
  `(let ((,journal (journal ,destination)))
     (server:start-journal ,journal)
     (unwind-protect (progn ,@body)
       (server:stop-journal ,journal *patience*))))

(defun thread-of (journal)
  "The thread of JOURNAL, which runs.  On a busy machine START-JOURNAL gives up waiting for it."
  (eventually ("the thread of a journal to begin") (journal-thread journal)))

(defun await-settled (journal)
  "Waits until the thread of JOURNAL has written its lines, and has noted that.  When the thread is
interrupted after the first and before the second, nobody knows what became of the lines, and they
count as lost."
  (eventually ("the lines to be noted as written") (zerop (journal-kept journal))))

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

(define-server-test lines-are-written-before-long-without-being-asked-for
  (with-log-file (file)
    (with-journal-running (journal file)
      (note-line journal "one")
      (note-line journal "Grüße")
      (eventually ("the lines to be written")
        (equal '("one" "Grüße") (lines-of file))))))

(defun numbered-line (number count)
  "The line with COUNT of the writer with NUMBER.  The lines differ in length."
  (format nil "writer ~D line ~D ~A" number count
          (make-string (mod count 40) :initial-element #\x)))

(define-server-test no-line-of-many-threads-is-lost-or-torn-by-stopping
  (with-log-file (file)
    (with-globals ((*batch-octets* 1000))
      (with-journal-running (journal file)
        (mapc #'task-result
              (loop for number below 4
                    collect (let ((number number))
                              (in-background ("a writer")
                                (loop for count below 500
                                      do (note-line journal (numbered-line number count))))))))
      (let ((lines (lines-of file)))
        (is (= 2000 (length lines)))
        (loop for number below 4
              do (let ((prefix (format nil "writer ~D line " number)))
                   (is (equal (loop for count below 500
                                    collect (numbered-line number count))
                              (remove-if-not (lambda (line) (uiop:string-prefix-p prefix line))
                                             lines)))))))))

(define-server-test lines-that-come-after-the-end-are-written-at-once
  (with-log-file (file)
    (let ((journal (journal file)))
      (note-line journal "before the start")
      (is (equal '("before the start") (lines-of file)))
      (server:start-journal journal)
      (is (server:stop-journal journal *patience*))
      (note-line journal "after the end")
      (is (equal '("before the start" "after the end") (lines-of file))))))

(define-server-test a-journal-can-be-started-again
  (with-log-file (file)
    (with-journal-running (journal file)
      (note-line journal "one")
      (is (server:stop-journal journal *patience*))
      (is (equal '("one") (lines-of file)))
      (server:start-journal journal)
      (note-line journal "two"))
    (is (equal '("one" "two") (lines-of file)))))

(defparameter *no-flush-seconds* 1000
  "For *FLUSH-SECONDS*: the thread of a journal writes few lines only when it ends.")

(define-server-test a-flush-writes-all-that-was-given
  (with-log-file (file)
    (with-globals ((*flush-seconds* *no-flush-seconds*))
      (with-journal-running (journal file)
        (note-line journal "one")
        (is (server:flush-journal journal))
        (is (equal '("one") (lines-of file)))))))

(define-server-test an-urgent-line-does-not-wait-for-more-nor-do-those-before-it
  (with-log-file (file)
    (with-globals ((*flush-seconds* *no-flush-seconds*))
      (with-journal-running (journal file)
        (note-line journal "one")
        (is (not (poll (lambda () (lines-of file)) 1/10)))
        (note-line journal "two" t)
        (eventually ("the lines to be written")
          (equal '("one" "two") (lines-of file)))))))

(test a-thread-is-told-of-the-first-line-and-of-the-one-that-makes-too-many
  (with-globals ((*batch-octets* 100))
    ;; Lines of 10 octets come to 100 exactly, those of 30 do not.
    (loop for (size told) in '((10 (0 10)) (30 (0 3)))
          do (let ((journal (journal "unused")) (line (http:make-output)))
               (server:encode-printed line (make-string (1- size) :initial-element #\x))
               (server:end-line line)
               (is (equal told (loop for number below 12
                                     when (gather journal line) collect number)))))))

(define-server-test a-file-that-was-renamed-gets-nothing-more
  (with-log-file (file)
    (let ((old (merge-pathnames "old.log" file)))
      (with-journal-running (journal file)
        (note-line journal "one")
        (server:flush-journal journal)
        (rename-file file old)
        (note-line journal "two"))
      (is (equal '("one") (lines-of old)))
      (is (equal '("two") (lines-of file))))))

(define-server-test a-stream-gets-its-lines-in-order
  (let ((stream (make-string-output-stream)))
    (with-journal-running (journal stream)
      (dolist (line '("one" "Grüße" "three")) (note-line journal line)))
    (is (string= (format nil "one~%Grüße~%three~%") (get-output-stream-string stream)))))

;;; Destinations that fail

(define-server-test lines-wait-for-a-directory-that-is-gone
  (with-log-file (file)
    (let ((hidden (merge-pathnames "later/lines.log" file)))
      (with-globals ((*flush-seconds* 1/100))
        (with-journal-running (journal hidden)
          (note-line journal "one")
          (eventually ("a complaint") (plusp (recorded-count *complaints*)))
          (note-line journal "two")
          (is (not (server:flush-journal journal)))
          (is (= 1 (recorded-count *complaints*)))
          (is (eq :error (first (first (recorded *complaints*)))))
          (ensure-directories-exist hidden)
          (eventually ("the lines to be written")
            (equal '("one" "two") (lines-of hidden)))
          (eventually ("the recovery to be told")
            (eq :warning (first (second (recorded *complaints*)))))
          (is (zerop (server:journal-lost journal))))))))

(define-server-test many-lines-for-a-directory-that-is-gone-are-tried-again-now-and-then
  (with-log-file (file)
    (let ((tries (make-recorder)))
      (with-globals ((*batch-octets* 10)
                     (*flush-seconds* *no-flush-seconds*))
        (with-function (server:flush-journal (original journal)
                         (record tries :try)
                         (funcall original journal))
          (with-journal-running (journal (merge-pathnames "not-there/lines.log" file))
            (note-line journal "longer than a batch")
            (eventually ("the first try") (plusp (recorded-count tries)))
            (loop repeat 5 do (note-line journal "longer than a batch"))
            (is (not (poll (lambda () (> (recorded-count tries) 2)) 1/4)))))))))

(define-server-test lines-that-a-full-disk-does-not-take-are-counted
  (if (file-gone-p #p"/dev/full")
      (skip "There is no /dev/full here.")
      (with-globals ((*flush-seconds* *no-flush-seconds*))
        (with-journal-running (journal "/dev/full")
          (loop repeat 3
                do (note-line journal "one")
                   (is (not (server:flush-journal journal))))
          (is (= 3 (server:journal-lost journal)))
          (is (= 1 (recorded-count *complaints*)))))))

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

(define-server-test a-stalled-destination-holds-up-nobody-and-what-it-lost-is-told
  (let ((stream (make-instance 'stalled-stream)))
    (with-globals ((*flush-seconds* 1/100)
                   (*journal-octets* 100))
      (with-journal-running (journal stream)
        (unwind-protect
             (progn
               (note-line journal "first")
               (await (entered stream))
               (loop repeat 50 do (note-line journal "123456789"))
               (is (= 40 (server:journal-lost journal)))
               (is (not (server:stop-journal journal 1/100))))
          (open-gate (stream-gate stream)))
        (eventually ("a complaint") (plusp (recorded-count *complaints*))))
      (is (search "is written again; lines lost so far: 40."
                  (second (first (recorded *complaints*)))))
      (is (= 1 (recorded-count *complaints*)))
      (is (string= (format nil "first~%~{~A~%~}"
                           (make-list 10 :initial-element "123456789"))
                   (apply #'concatenate 'string (recorded (written-text stream))))))))

(define-server-test lines-are-written-although-their-thread-is-destroyed
  (with-log-file (file)
    (with-journal-running (journal file)
      (note-line journal "before")
      (await-settled journal)
      (platform:destroy-thread (thread-of journal))
      ;; ABCL may not end the thread; then it goes on writing.
      (poll (lambda () (eq :off (journal-phase journal)))
            (if (unmet-need :deferred-ends) 1 *patience*))
      (note-line journal "meanwhile")
      (eventually ("the lines to be written")
        (equal '("before" "meanwhile") (lines-of file)))
      (note-line journal "after")
      (eventually ("the last line to be written")
        (equal '("before" "meanwhile" "after") (lines-of file))))))

(define-server-test (lines-that-a-destroyed-thread-has-not-begun-to-write-are-written
                     :needs :deferred-ends)
  (with-log-file (file)
    (with-globals ((*flush-seconds* *no-flush-seconds*))
      (with-journal-running (journal file)
        (note-line journal "before")
        (platform:destroy-thread (thread-of journal))
        (eventually ("the line to be written")
          (equal '("before") (lines-of file)))))))

(defclass deadly-stream (stalled-stream)
  ((deadly-p :initform t :accessor deadly-p))
  (:documentation "A stream that takes what is written to it, and has the first thread destroyed
that writes to it."))

(defmethod trivial-gray-streams:stream-write-string :after
    ((stream deadly-stream) string &optional start end)
  (declare (ignore string start end))
  (when (shiftf (deadly-p stream) nil)
    (destroy-here (bt:current-thread))))

(define-server-test (no-line-is-written-twice-although-its-thread-is-destroyed
                     :needs :deferred-ends)
  (let* ((stream (make-instance 'deadly-stream))
         (journal (journal stream)))
    (open-gate (stream-gate stream))
    (server:start-journal journal)
    (note-line journal "one")
    (eventually ("the thread to be destroyed") (eq :off (journal-phase journal)))
    (note-line journal "two")
    (is (equal '("one" "two")
               (remove "" (mapcar (lambda (text) (string-trim '(#\Newline) text))
                                  (recorded (written-text stream)))
                       :test #'equal)))
    (is (= 1 (server:journal-lost journal)) "Nobody knows what became of it.")
    (is (server:stop-journal journal *patience*))))

(define-server-test (a-thread-that-is-destroyed-amid-a-write-that-stalls-ends
                     :needs :deferred-ends)
  (let* ((stream (make-instance 'stalled-stream))
         (journal (journal stream)))
    (server:start-journal journal)
    (unwind-protect
         (let ((thread (thread-of journal)))
           (note-line journal "one")
           (await (entered stream))
           (note-line journal "two")
           (platform:destroy-thread thread)
           (eventually ("the thread to end") (not (bt:thread-alive-p thread)))
           (is (server:stop-journal journal *patience*))
           (is (= 2 (server:journal-unwritten journal))))
      (open-gate (stream-gate stream)))))

(define-server-test (a-journal-that-is-started-after-its-thread-was-destroyed-has-another
                     :needs :deferred-ends)
  (with-log-file (file)
    (with-journal-running (journal file)
      (platform:destroy-thread (thread-of journal))
      (eventually ("the thread to be destroyed") (eq :off (journal-phase journal)))
      (with-function (keep-journal (original journal)
                       (poll (constantly nil) 1/10)
                       (funcall original journal))
        (server:start-journal journal)
        (is (bt:thread-alive-p (thread-of journal)))))))

(define-server-test (an-error-of-an-interrupt-costs-no-line-and-no-thread :needs :deferred-ends)
  (with-log-file (file)
    (with-journal-running (journal file)
      (let ((thread (thread-of journal)))
        (dotimes (i 3)
          (bt:interrupt-thread thread (lambda () (error "Of an interrupt.")))
          (eventually ("a complaint") (= (1+ i) (recorded-count *complaints*)))
          (note-line journal "one")
          (await-settled journal)
          (is (= (1+ i) (length (lines-of file)))))
        (is (search "Of an interrupt." (second (first (recorded *complaints*)))))
        (is (eq thread (journal-thread journal)))
        (is (bt:thread-alive-p thread))))))

;;; Several journals of one destination

(defclass entered-stream (stalled-stream)
  ((entries :initform (make-recorder) :reader stream-entries))
  (:documentation "A stream that tells how often it was written to."))

(defmethod trivial-gray-streams:stream-write-string :before
    ((stream entered-stream) string &optional start end)
  (declare (ignore string start end))
  (record (stream-entries stream) t))

(defvar *entered-stream*)

(define-server-test (journals-of-one-stream-write-one-after-the-other
                     :needs :streams-on-gray-streams)
  (let ((stream (make-instance 'entered-stream)))
    (setf *entered-stream* stream)
    (unwind-protect
         (with-journal-running (one stream)
           (with-journal-running (two (make-synonym-stream '*entered-stream*))
             (with-journal-running (three (make-two-way-stream (make-string-input-stream "")
                                                               stream))
               (unwind-protect
                    (progn
                      (note-line one "from one")
                      (await (entered stream))
                      (note-line two "from two")
                      (note-line three "from three")
                      (is (not (poll (lambda ()
                                       (> (recorded-count (stream-entries stream)) 1))
                                     1))))
                 (open-gate (stream-gate stream))))))
      (makunbound '*entered-stream*))
    (is (equal '("from one" "from three" "from two")
               (sort (mapcar (lambda (text) (string-right-trim '(#\Newline) text))
                             (recorded (written-text stream)))
                     #'string<)))
    (is (null *turns*))))

(define-server-test a-stream-may-have-something-for-another-journal-of-its-own
  (let* ((stream (make-instance 'echoing-stream :left 1))
         (journal (journal stream)))
    (open-gate (stream-gate stream))
    (setf (echoing-journal stream) (journal stream))
    (task-result (in-background ("the writer") (note-line journal "first")))
    (is (equal '("echo" "first")
               (sort (mapcar (lambda (text) (string-right-trim '(#\Newline) text))
                             (recorded (written-text stream)))
                     #'string<)))))

;;; The end, and what is left then

(define-server-test lines-that-could-not-be-written-at-the-end-are-counted-and-told
  (with-log-file (file)
    (let* ((hidden (merge-pathnames "later/lines.log" file))
           (journal (journal hidden)))
      (server:start-journal journal)
      (note-line journal "one")
      (note-line journal "two")
      (is (server:stop-journal journal *patience*))
      (is (= 2 (server:journal-unwritten journal)))
      (is (find-if (lambda (complaint) (search "the last 2 lines" (second complaint)))
                   (recorded *complaints*)))
      (note-line journal "three")
      (is (= 3 (server:journal-unwritten journal)))
      (ensure-directories-exist hidden)
      (note-line journal "four")
      (is (equal '("one" "two" "three" "four") (lines-of hidden)))
      (is (zerop (server:journal-unwritten journal))))))

(defclass echoing-stream (stalled-stream)
  ((journal :initform nil :accessor echoing-journal)
   (left :initarg :left :accessor echoes-left))
  (:documentation "A stream that has a further line appended to its journal while it is written to,
so many times."))

(defmethod trivial-gray-streams:stream-write-string :after
    ((stream echoing-stream) string &optional start end)
  (declare (ignore string start end))
  (when (plusp (echoes-left stream))
    (decf (echoes-left stream))
    (note-line (echoing-journal stream) "echo")))

(define-server-test a-line-that-comes-amid-the-last-flush-is-written
  ;; A flush writes what there was, and what came meanwhile: the last echoes come after both.
  (let* ((stream (make-instance 'echoing-stream :left 5))
         (journal (journal stream)))
    (open-gate (stream-gate stream))
    (setf (echoing-journal stream) journal)
    (server:start-journal journal)
    (note-line journal "first")
    (is (server:stop-journal journal *patience*))
    (is (equal (cons "first" (make-list 5 :initial-element "echo"))
               (mapcar (lambda (text) (string-right-trim '(#\Newline) text))
                       (recorded (written-text stream)))))
    (is (zerop (server:journal-unwritten journal)))))

;;; Half a line

(defclass breaking-stream (stalled-stream)
  ((breaks :initform 1 :accessor breaks-left))
  (:documentation "A stream that takes half of what is written to it, and fails, once."))

(defmethod trivial-gray-streams:stream-write-string :around
    ((stream breaking-stream) string &optional (start 0) end)
  (cond ((zerop (breaks-left stream))
         (call-next-method))
        (t
         (decf (breaks-left stream))
         (call-next-method stream string start (floor (+ start (or end (length string))) 2))
         (error "The stream broke."))))

(define-server-test a-line-after-half-a-line-in-a-stream-begins-on-its-own
  (let* ((stream (make-instance 'breaking-stream))
         (journal (journal stream)))
    (open-gate (stream-gate stream))
    (note-line journal "abcdefg")
    (note-line journal "next")
    (note-line journal "last")
    (is (equal (format nil "abcd~%next~%last~%")
               (apply #'concatenate 'string (recorded (written-text stream)))))
    (is (= 1 (server:journal-unwritten journal)))))

(define-server-test a-line-after-half-a-line-in-a-file-begins-on-its-own
  (if (file-sizes-limited-p)
      (with-log-file (file)
        (let ((journal (journal file)))
          (note-line journal "one")
          (call-with-file-size-limit
           20 (lambda ()
                (note-line journal (make-string 40 :initial-element #\x))))
          (note-line journal "next")
          (note-line journal "last")
          (is (equal (list "one" (make-string 16 :initial-element #\x) "next" "last")
                     (lines-of file)))
          (is (= 1 (server:journal-unwritten journal)))))
      (skip "Nobody knows how to limit the size of files here.")))

(define-server-test (a-thread-destroyed-when-it-has-its-turn-gives-that-back :needs :deferred-ends)
  (with-log-file (file)
    (let* ((journal (journal file))
           (original (fdefinition 'take-turn))
           (victim nil))
      (with-globals (((fdefinition 'take-turn)
                      (lambda (journal)
                        (prog1 (funcall original journal)
                          (when (eq victim (bt:current-thread))
                            (destroy-here victim))))))
        (let ((task (in-background ("victim")
                      (setf victim (bt:current-thread))
                      (server:flush-journal journal))))
          (eventually ("the victim to end") (task-done-p task))
          (note-line journal "one")
          (is (task-result (in-background ("next one") (server:flush-journal journal))))))
      (is (equal '("one") (lines-of file))))))

;;; Lines

(defun line-text (encode value)
  "What the function ENCODE makes of VALUE."
  (let ((line (http:make-output)))
    (funcall encode line value)
    (decode (subseq (http:output-octets line) 0 (http:output-fill line)))))

(define-server-test a-journal-that-cannot-be-written-ends-all-the-same-and-keeps-its-lines
  (with-directory (directory)
    (let* ((file (merge-pathnames "not-there/lines.log" directory))
           (journal (journal file)))
      (server:start-journal journal)
      (note-line journal "kept")
      (is (server:stop-journal journal *patience*))
      (is (zerop (server:journal-lost journal)))
      (ensure-directories-exist file)
      (note-line journal "later")
      (is (equal '("kept" "later") (lines-of file))))))

(define-server-test trouble-and-its-end-are-told-once-each
  (with-directory (directory)
    (let* ((file (merge-pathnames "not-there/lines.log" directory))
           (journal (journal file)))
      (dotimes (i 2) (note-line journal "in trouble"))
      (is (equal '(:error) (mapcar #'first (recorded *complaints*))))
      (ensure-directories-exist file)
      (dotimes (i 2) (note-line journal "written"))
      (is (equal '(:error :warning) (mapcar #'first (recorded *complaints*)))))))

(test a-line-that-cannot-be-made-is-counted-and-told-once
  (with-log-file (file)
    (let ((journal (journal file)))
      (dotimes (i 3)
        (server:lose-line journal (make-condition 'simple-error :format-control "no line")))
      (is (= 3 (server:journal-lost journal)))
      (is (= 1 (recorded-count *complaints*)))
      (is (search "no line" (princ-to-string (recorded *complaints*)))))))

(define-server-test one-thread-writes-to-a-destination-at-a-time
  (with-log-file (file)
    (let* ((inside (make-gate "a thread to have the turn"))
           (release (make-gate))
           (order (make-recorder))
           (first (in-background ("first")
                    (call-with-turn file (lambda ()
                                           (open-gate inside)
                                           (await release)
                                           (record order 1)))))
           (others (progn
                     (await inside)
                     (loop repeat 3
                           collect (in-background ("other")
                                     (call-with-turn file
                                                     (lambda () (record order 2))))))))
      (is (not (poll (lambda () (plusp (recorded-count order))) 1/10)))
      (open-gate release)
      (mapc #'task-result (cons first others))
      (is (equal '(1 2 2 2) (recorded order)))
      (is (null *turns*)))))

(test printed-values-stay-on-their-line
  (loop for (value text) in `(("" "") ("plain" "plain") ("Grüße" "Grüße") (200 "200") (:get "GET")
                              (,(format nil "a~Cb~C" #\Return #\Newline) "a\\x0Db\\x0A")
                              (,(string (code-char 127)) "\\x7F")
                              (,(string (code-char 159)) "\\x9F")
                              (,(string (code-char 160)) ,(string (code-char 160)))
                              (,(string (code-char #x2028)) "\\u2028")
                              (,(string (code-char #x202E)) "\\u202E")
                              (,(string (code-char #x2066)) "\\u2066")
                              ("a\"b\\c" "a\\x22b\\x5Cc") ("(a) [b]" "(a) [b]"))
        do (is (string= text (line-text #'server:encode-printed value)))))

(test printed-values-stay-in-their-brackets
  (flet ((bracketed (line value)
           (server:encode-printed line value :bracketed)))
    (is (string= "\\x28a\\x29 \\x5Bb\\x5D \\x22\\x5C" (line-text #'bracketed "(a) [b] \"\\")))))

(test values-are-printed-in-base-10-whatever-a-program-has-bound
  (let ((*print-base* 2) (*print-radix* t))
    (loop for (value text json) in '((5 "5" "5") (-5 "-5" "-5") (1/5 "1/5" "0.2"))
          do (is (string= text (line-text #'server:encode-printed value)))
             (is (string= json (line-text #'server:encode-json value)))))
  (let ((*print-case* :downcase))
    (is (string= "get" (line-text #'server:encode-printed :get)) "That is what PRINC prints.")))

(test json-can-be-read-back
  (loop for value in (list "" "plain" "Grüße" 0 1234567890123 nil
                           (format nil "\"quoted\" \\ and ~C ~C ~C" #\Tab #\Newline (code-char 1))
                           (string (code-char #x2028)) (string (code-char 127)))
        do (is (equal value (parse-json (line-text #'server:encode-json value)))))
  (is (equal '(("status" . 200) ("user_agent" . "a\"b") ("referer"))
             (parse-json (line-text #'server:encode-json
                                    '(:status 200 :user-agent "a\"b" :referer nil)))))
  (is (equalp (vector (list (cons "400" 1) (cons "0.25" (vector))) -3/2)
              (parse-json (line-text #'server:encode-json #((400 1 0.25 #()) -1.5d0))))))

(test numbers-are-written-in-digits-to-a-millionth
  (loop for (value text) in '((0 "0") (1.0 "1") (0.0001 "0.0001") (10.0 "10")
                              (2500000.25d0 "2500000.25")
                              (1/3 "0.333333") (1.9999999d0 "2") (-0.5 "-0.5") (1.0e-9 "0")
                              (123456789012 "123456789012"))
        do (is (string= text (decimal-text value)))))

(define-server-test (no-interrupt-runs-under-the-lock-while-lines-are-awaited :needs :deferred-ends)
  (let ((journal (journal (make-string-output-stream))))
    (is (equal '(nil) (found-by-interrupts (journal-lock journal)
                                           (lambda () (await-lines journal))
                                           (lambda ()
                                             (with-journal (journal)
                                               (setf (journal-phase journal) :ending)
                                               (bt:condition-notify
                                                (journal-wanted journal)))))))))

(define-server-test (a-journal-without-lines-wakes-nobody :needs :quiet-waits)
  (with-log-file (file)
    (let ((others (task-identities)))
      (with-journal-running (journal file)
        (let ((thread (set-difference (task-identities) others)))
          (when thread                  ; the system tells of threads
            (is-true (eventually ("it to rest") (zerop (switches-of thread 1)))))
          (note-line journal "one")
          (eventually ("the line to be written")
            (equal '("one") (lines-of file))))))))
