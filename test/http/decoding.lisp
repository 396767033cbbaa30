(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite http-decoding :in http
  :description "UTF-8 and percent signs.")

(in-suite http-decoding)

(defun decoded (&rest octets)
  "A list of the codes of the characters in OCTETS, decoded as UTF-8."
  (map 'list #'char-code (http:utf-8-text (coerce octets 'base:octets))))

(test utf-8-of-every-length-is-read
  (is (equal '(#x41) (decoded #x41)))
  (is (equal '(#xE9) (decoded #xC3 #xA9)))
  (is (equal '(#x3042) (decoded #xE3 #x81 #x82)))
  (is (equal (map 'list #'char-code (http:utf-8-text (coerce '(#xF0 #x9F #x98 #x80) 'base:octets)))
             (if (< #x1F600 char-code-limit) '(#x1F600) '(#xD83D #xDE00)))))

(test what-is-no-utf-8-is-replaced
  (is (equal '(#xFFFD) (decoded #xFF)))
  (is (equal '(#xFFFD #x41) (decoded #x80 #x41)) "A continuation of nothing")
  (is (equal '(#xFFFD) (decoded #xE3 #x81)) "The end comes too early")
  (is (equal '(#xFFFD #x41) (decoded #xE3 #x81 #x41)) "Something else comes too early")
  (is (equal '(#xFFFD #xFFFD) (decoded #xC0 #xAF)) "Too long for what it says")
  (is (equal '(#xFFFD #xFFFD) (decoded #xC1 #xBF)) "The last that is too long, in two octets")
  (is (equal '(#xFFFD #xFFFD #xFFFD) (decoded #xED #xA0 #x80)) "A surrogate")
  (is (equal '(#xFFFD #xFFFD #xFFFD #xFFFD) (decoded #xF4 #x90 #x80 #x80)) "Beyond Unicode")
  (is (equal '(#xFFFD #xFFFD #xFFFD) (decoded #xE0 #x9F #xBF)) "Too long, in three octets")
  (is (equal '(#xFFFD #xFFFD #xFFFD #xFFFD) (decoded #xF0 #x8F #xBF #xBF))
      "Too long, in four octets"))

(test decoding-agrees-with-encoding
  (let ((text (map '(simple-array character (*)) #'code-char
                   (list 1 #x7F #x80 #x7FF #x800 #xFFFD))))
    (let ((output (http:make-output)))
      (http:encode-string output text :utf-8)
      (is (equal text (http:utf-8-text (http:output-octets output) 0 (http:output-fill output)))))))

(defun percent (text &optional (start 0) (end (length text)))
  (http:percent-decoded (coerce text '(simple-array character (*))) start end))

(test percent-signs-are-decoded-once-and-leniently
  (is (equal "/a,b" (percent "/a%2cb")))
  (is (equal "/a%2cb" (percent "/a%252cb")))
  (is (equal "/%zz%4" (percent "/%zz%4")))
  (is (equal "/a+b" (percent "/a+b")) "A plus sign is one in a path")
  (is (equal (format nil "/~C" (code-char #x3042)) (percent "/%E3%81%82")))
  (is (equal (format nil "/~C'" (code-char #xFFFD)) (percent "/%BF%27")))
  (is (equal "b" (percent "abc" 1 2))))

(test names-of-fields-are-in-lower-case
  (is (equal "content-type" (http:field-spelling :content-type)))
  (is (eq (http:field-spelling :host) (http:field-spelling :host)))
  (is (equal "x-never-heard-of" (http:field-spelling "X-Never-Heard-Of")))
  (is (equal "x-never-heard-of" (http:field-spelling :x-never-heard-of))))
