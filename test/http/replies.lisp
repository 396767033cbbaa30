(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-reply :in http
  :description "Replies become octets, or are refused.")

(defun encoded-octets (output)
  "A copy of the octets in OUTPUT."
  (subseq (http:output-octets output) 0 (http:output-fill output)))

(defmacro encoding ((output) &body body)
  "The octets that BODY appends to a new OUTPUT, as a string."
  `(let ((,output (http:make-output)))
     ,@body
     (octet-text (encoded-octets ,output))))

(defun lines-text (lines)
  "The text of LINES, in caret notation, each with its line end."
  (octet-text (input-octets lines)))

;;; Vectors

(defun encode-vector (output vector)
  "Encodes the head that VECTOR describes to OUTPUT."
  (destructuring-bind (&key (status 200) headers cookies second &allow-other-keys)
      vector
    (http:encode-head output status (plain-text headers)
                      :cookies (plain-text cookies) :second second)))

(defun check-reply-vector (vector)
  "Checks that the head in VECTOR is encoded as VECTOR promises."
  (let ((name (getf vector :name))
        (gives (getf vector :gives)))
    (if (eq gives :invalid)
        (let ((output (http:make-output)))
          (signals (http:invalid-header "~A: is sent" name) (encode-vector output vector))
          (is (zerop (http:output-fill output)) "~A: is partly sent" name))
        (let ((text (encoding (output) (encode-vector output vector))))
          (is (equal (lines-text gives) text) "~A: gives ~S" name text)))))

(test heads-are-encoded-as-the-vectors-say
  (dolist (vector (read-vectors "reply"))
    (check-reply-vector vector)))

(test statuses-tell-whether-there-is-content
  (loop for (status allowed-p) in '((100 nil) (101 nil) (199 nil) (200 t) (203 t) (204 nil) (205 t)
                                    (303 t) (304 nil) (305 t) (404 t) (999 t))
        do (is (eq allowed-p (http:body-allowed-p status)) "~D" status)))

;;; No value of a program may end a line

(defun sent-safely-p (name value)
  "True if a field NAME with VALUE is refused, or sent as one line without control characters."
  (let ((output (http:make-output)))
    (handler-case (http:encode-header output name value)
      (http:invalid-header ()
        (return-from sent-safely-p (zerop (http:output-fill output)))))
    (let ((octets (encoded-octets output)))
      (and (= (- (length octets) 2) (search '(13 10) octets))
           (notany (lambda (octet) (or (= octet 127) (and (< octet 32) (/= octet 9))))
                   (subseq octets 0 (- (length octets) 2)))))))

(test no-character-gets-out-that-ends-a-line
  (dotimes (code 1024)
    (let ((text (format nil "a~Cb" (code-char code))))
      (is (sent-safely-p :x-test text) "code ~D in a value" code)
      (is (sent-safely-p text "v") "code ~D in a name" code)
      (is (sent-safely-p (make-symbol text) "v") "code ~D in a symbol" code))))

;;; Names and values

(test values-of-all-kinds-are-printed
  (flet ((sent (value)
           (let ((line (encoding (output) (http:encode-header output "a" value))))
             (subseq line 3 (- (length line) 2)))))
    (is (equal "0" (sent 0)))
    (is (equal "1152921504606846975" (sent 1152921504606846975)))
    (is (equal "1152921504606846976" (sent 1152921504606846976)))
    (is (equal "-17" (sent -17)))
    (is (equal "1/2" (let ((*print-base* 2)) (sent 1/2))))
    (is (equal "KEEP" (sent :keep)))
    (is (equal "xyz" (sent (make-array 3 :element-type 'character :adjustable t
                                         :fill-pointer t :initial-contents "xyz"))))
    (is (equal "yz" (sent (make-array 2 :element-type 'character
                                        :displaced-to (coerce "xyz" '(simple-array character (*)))
                                        :displaced-index-offset 1))))
    (is (equal "base" (sent (coerce "base" 'simple-base-string))))
    (is (equal "" (sent "")))
    (is (equal (string (code-char 233)) (sent (string (code-char 233)))))))

(defun numbers-around-powers (radix)
  "A list of all powers of RADIX that are content sizes, and their neighbours."
  (loop for power = 1 then (* radix power)
        while (< power (expt 2 59))
        append (list (1- power) power (1+ power))))

(test numbers-are-printed-as-princ-does
  (dolist (number (append (loop for number = 1 then (+ 1 (* 7 number))
                                while (< number (expt 2 62)) collect number)
                          (numbers-around-powers 10)))
    (is (equal (format nil "a: ~D~C~C" number #\Return #\Linefeed)
               (encoding (output) (http:encode-header output "a" number))))))

;;; Status

(test every-status-has-a-line
  (loop for status from 100 below 1000
        for line = (encoding (output) (http:encode-status-line output status))
        do (is (equal (format nil "HTTP/1.1 ~D ~@[~A~]~C~C" status
                              (http:reason-phrase status) #\Return #\Linefeed)
                      line))))

(test dates-are-imf-fixdates
  (loop for (arguments text)
          in '(((37 49 8 6 11 1994 0) "Sun, 06 Nov 1994 08:49:37 GMT")
               ((0 0 0 1 1 1970 0) "Thu, 01 Jan 1970 00:00:00 GMT")
               ((59 59 23 31 12 1999 0) "Fri, 31 Dec 1999 23:59:59 GMT")
               ((0 0 12 29 2 2000 0) "Tue, 29 Feb 2000 12:00:00 GMT")
               ((8 4 2 19 1 2038 0) "Tue, 19 Jan 2038 02:04:08 GMT"))
        do (is (equal text (http:imf-fixdate (apply #'encode-universal-time arguments))))))

;;; Growth

(test a-reset-output-gives-large-memory-back
  (let ((output (http:make-output)))
    (http:encode-octets output (as-octets (make-list 1000000 :initial-element 1)))
    (http:reset-output output)
    (is (zerop (http:output-fill output)))
    (is (< (length (http:output-octets output)) 100000))))

(defun nearly-full-output (room)
  "An output with room for ROOM more octets, or a few less, before it has to grow."
  (let* ((output (http:make-output))
         (size (- (length (http:output-octets output)) room)))
    (http:encode-octets output (as-octets (make-list size :initial-element 1)))
    output))

(test nothing-is-put-behind-the-end-of-an-output
  ;; The functions that put octets check nothing, so they rely on the room that their callers make.
  (loop for (expected . encode)
          in (list (list* (format nil "X-Test: 12~C~C" #\Return #\Linefeed)
                          (lambda (output) (http:encode-header output :x-test "12")))
                   (list* (format nil "Content-Length: ~D~C~C" (1- (expt 2 60)) #\Return #\Linefeed)
                          (lambda (output)
                            (http:encode-header output :content-length (1- (expt 2 60)))))
                   (list* "1152921504606846975"
                          (lambda (output) (http:encode-decimal output (1- (expt 2 60)))))
                   (list* (octet-text (encode (sample-string '(65 233 #x20AC))))
                          (lambda (output)
                            (http:encode-string output (sample-string '(65 233 #x20AC)) :utf-8)))
                   (list* "ab" (lambda (output)
                                 (http:encode-octets output (as-octets '(97 98)))))
                   (list* "ab" (lambda (output)
                                 (http:encode-by output 2 (lambda (octets start end)
                                                            (fill octets 97 :start start :end end)
                                                            (setf (aref octets (1- end)) 98))))))
        do (loop for room from 0 to 40
                 for output = (nearly-full-output room)
                 for before = (http:output-fill output)
                 do (funcall encode output)
                    (is (<= (http:output-fill output) (length (http:output-octets output))))
                    (is (equal expected (subseq (octet-text (encoded-octets output)) before))
                        "~S with room for ~D" expected room))))

(test what-cannot-be-put-is-not-appended
  (let ((output (http:make-output)))
    (http:encode-octets output (as-octets '(1 2 3)))
    (is (null (http:encode-by output 5 (constantly nil))))
    (is (= 3 (http:output-fill output)))
    (is (http:encode-by output 5 (constantly t)))
    (is (= 8 (http:output-fill output)))))

(test ranges-outside-the-octets-cannot-be-encoded
  (let ((output (http:make-output))
        (octets (as-octets '(1 2 3))))
    (signals error (http:encode-octets output octets 0 4))
    (signals error (http:encode-octets output octets 2 1))
    (signals error (http:encode-body output '(1 2 3)))
    (is (zerop (http:output-fill output)))))

;;; Strings

(defun sample-string (codes)
  "A string of the characters with CODES."
  (map '(simple-array character (*)) #'code-char codes))

(test lone-surrogates-are-replaced
  (dolist (codes '((#xD800) (#xDFFF) (#xDE00 #xD83D) (65 #xD83D 66) (#xDC00 #xDC00) (#xD83D #xD83D)
                   (#xD83D #xE000) (#xDBFF) (#xDFFF #xDFFF 65)))
    (when (every #'code-char codes)
      (let ((expected (substitute-if #xFFFD (lambda (code) (<= #xD800 code #xDFFF)) codes)))
        (is (equal (octet-text (encode (sample-string expected)))
                   (encoding (output)
                     (http:encode-string output (sample-string codes) :utf-8))))))))

(test what-latin-1-lacks-is-not-encoded
  (let ((output (http:make-output))
        (string (sample-string '(65 256))))
    (is (null (http:encoded-length string :latin-1)))
    (is (null (http:encode-string output string :latin-1)))
    (is (zerop (http:output-fill output)))))

(defun random-string (length &rest limits)
  "A string of LENGTH characters, none a surrogate, each with a code below one of LIMITS."
  (let ((string (make-string length)))
    (dotimes (i length string)
      (let ((code (random (min char-code-limit (nth (random (length limits)) limits)))))
        (setf (char string i) (code-char (if (<= #xD800 code #xDFFF) 65 code)))))))

(defun encoded-alone (string encoding &rest size)
  "The octets of STRING in ENCODING, appended to other octets, which must not change."
  (let ((output (http:make-output)))
    (http:encode-octets output (as-octets '(1 2 3)))
    (is-true (apply #'http:encode-string output string encoding size))
    (is (equalp (as-octets '(1 2 3)) (subseq (encoded-octets output) 0 3)))
    (subseq (encoded-octets output) 3)))

(test every-mixture-of-characters-is-encoded
  (dolist (limits '((128) (128 128 128 128 128 128 #x800) (128 #x10000) (#x800)
                    (128 #x10000 #x110000) (#x110000)))
    (dolist (length '(0 1 2 3 4 5 7 8 9 31 5000))
      (let* ((string (apply #'random-string length limits))
             (expected (encode string))
             (plain (encoded-alone string :utf-8))
             (sized (encoded-alone string :utf-8 (http:encoded-length string :utf-8))))
        (is (equalp expected plain) "~S" string)
        (is (equalp expected sized) "~S" string)))))

(test every-mixture-of-latin-1-is-encoded
  (dolist (length '(0 1 3 4 5 8 5000))
    (let* ((string (random-string length 128 256))
           (octets (encoded-alone string :latin-1 (http:encoded-length string :latin-1))))
      (is (equalp (map 'base:octets #'char-code string) octets)))))

(test a-string-that-has-grown-since-it-was-measured-is-not-put-beyond-its-room
  (loop for (codes . room) in '(((65 65 65 65 65) . 4) ((65 65 65 65) . 3) ((65 233) . 2)
                                ((#x20AC) . 2) ((65) . 0))
        for target = (as-octets (make-list 20 :initial-element 255))
        do (is (null (http::put-utf-8 target 0 room (sample-string codes))))
           (is (every (lambda (octet) (= 255 octet)) (subseq target room)) "~S" codes)))
