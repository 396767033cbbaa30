(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* multipart :in http
  :description "The positions of the parts of a multipart body: RFC 2046, section 5.1.1.")

(defun joined-events (events)
  "EVENTS, which are latest first, in order, and with the pieces of each content joined."
  (let ((joined '()))
    (dolist (event events joined)
      (if (and (eq :content (first event)) (eq :content (first (first joined))))
          (setf (second (first joined))
                (concatenate 'string (second event) (second (first joined))))
          (push (copy-list event) joined)))))

(defun multipart-events (octets ends &optional (boundary "b"))
  "The events of a parser when OCTETS, a body, arrive up to each of ENDS: lists of an event and its
text; the last one is :DONE, :WAITING or :MALFORMED.  In the buffer, hyphens follow the
octets that have arrived, which the parser must not read yet."
  (let ((parser (http:make-multipart-parser boundary))
        (events '())
        (buffer (make-array (length octets) :element-type '(unsigned-byte 8)
                                            :initial-element (char-code #\-)))
        (position 0))
    (handler-case
        (loop for start = 0 then end
              for end in ends
              do (replace buffer octets :start1 start :start2 start :end2 end)
                 (loop
                   (multiple-value-bind (event from to next)
                       (http:parse-multipart parser buffer position end)
                     (setf position next)
                     (unless event
                       (return))
                     (push (list* event (unless (eq event :end)
                                          (list (octet-text (subseq octets from to)))))
                           events))))
      (http:malformed-multipart ()
        (push '(:malformed) events))
      (:no-error (value)
        (declare (ignore value))
        (push (list (cond ((http:multipart-done-p parser) :done)
                          (t :waiting)))
              events)))
    (joined-events events)))

(defun multipart-octets (lines)
  "The octets of LINES, strings, with a line end between each two."
  (octets (loop for (line . more) on lines collect line when more collect :crlf)))

(defun expected-events (events)
  (loop for (event . text) in events
        collect (list* event (when text
                               (list (octet-text (multipart-octets
                                                  (if (listp (first text)) (first text) text))))))))

(test parts-are-found-however-they-arrive
  (loop for (lines . expected) in (read-vectors "multipart")
        for octets = (multipart-octets lines)
        for size = (length octets)
        for events = (expected-events expected)
        do (is (equal events (multipart-events octets (list size))) "~S" lines)
           (is (equal events (multipart-events octets (all-ends size))) "~S by octets" lines)
           (loop for end from 0 to size
                 for split = (multipart-events octets (list end size))
                 do (is (equal events split) "~S split at ~D" lines end))))

(test lone-carriage-returns-and-line-feeds-are-content
  (let* ((return (string #\Return)) (feed (string (code-char 10)))
         (content (concatenate 'string feed "--b" return "--b" return return feed "-" feed return
                               "--b" return))
         (octets (octets "--b" :crlf :crlf content :crlf "--b--" :crlf))
         (events `((:head ,(octet-text *crlf*)) (:content ,content) (:end) (:done))))
    (is (equal events (multipart-events octets (list (length octets)))))
    (is (equal events (multipart-events octets (all-ends (length octets)))))))

(test boundaries-are-checked
  (is (http:boundary-p (make-string http:+boundary-octets+ :initial-element #\-)))
  (dolist (boundary (list (make-string (1+ http:+boundary-octets+) :initial-element #\-)
                          (format nil "a~Cb" #\Return) (string (code-char 300))))
    (is (not (http:boundary-p boundary)))
    (signals error (http:make-multipart-parser boundary))))

(test heads-of-parts-have-a-limit
  (flet ((events (size)
           (let ((octets (octets "--b" :crlf (make-string (- size 4) :initial-element #\x)
                                 :crlf :crlf "--b--" :crlf)))
             (loop for ends in (list (list (length octets)) (all-ends (length octets)))
                   collect (mapcar #'first (multipart-events octets ends))))))
    (is (equal '((:head :end :done) (:head :end :done)) (events http:+part-head-octets+)))
    (is (equal '((:malformed) (:malformed)) (events (1+ http:+part-head-octets+))))))

(test random-bodies-mean-the-same-however-they-arrive
  ;; These bodies consist of octets of delimiters, so that half of the octets begin a delimiter.
  (let ((dice (make-dice 47)))
    (loop repeat 2000
          for octets = (octets "--b" :crlf
                               (as-octets (loop repeat (roll dice 60)
                                                collect (pick dice #(13 10 13 10 45 45 98 97)))))
          for size = (length octets)
          for events = (multipart-events octets (list size))
          do (unless (and (equal events (multipart-events octets (all-ends size)))
                          (equal events (multipart-events octets (random-ends dice size))))
               (fail "~S" octets)
               (return))
          finally (pass))))

(test what-a-parser-is-given-is-checked
  (let ((parser (http:make-multipart-parser "b")))
    (signals error (http:parse-multipart parser (octets "abc") 0 4))
    (signals error (http:parse-multipart parser "abc" 0 3))))

;;; The heads of parts

(defun facts-of (&rest lines)
  "A list of the values of PART-FACTS for the head of a part with LINES."
  (let ((octets (apply #'request-octets-of (append lines '("")))))
    (multiple-value-list (http:part-facts octets 0 (length octets)))))

(test heads-of-parts-say-what-they-mean
  (loop for (facts . lines) in (read-vectors "part-heads")
        do (is (equal facts (apply #'facts-of lines)) "~S" lines)))

(test heads-of-parts-with-stray-returns-are-read-without-a-word
  (let ((octets (concatenate 'base:octets
                             (request-octets-of "Content-Disposition: form-data; name=a")
                             (as-octets (loop repeat 4000 collect 13 collect 120))
                             (request-octets-of "" ""))))
    (handler-bind ((warning (lambda (warning) (fail "~A" warning))))
      (is (equal "a" (http:part-facts octets 0 (length octets)))))))
