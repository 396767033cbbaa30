(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite conditional :in http
  :description "Entity tags, conditions and ranges: RFC 9110, sections 8.8, 13 and 14.")

(in-suite conditional)

(defun conditional-head (method &rest headers)
  "The head of a request with METHOD and HEADERS, a plist of names and values."
  (let ((octets (request-octets "/" :method method
                                    :headers (loop for (name value) on headers by #'cddr
                                                   collect (cons name value)))))
    (values (http:parse-head octets 0 (length octets)))))

(defun decided (method &rest headers)
  "The decision on a request for content with the tag \"a\" that last changed at the start of 1900."
  (http:precondition (apply #'conditional-head method headers) "\"a\"" (http:imf-fixdate 0)))

(test tags-tell-versions-apart
  (let ((tag (http:entity-tag 3900000000 5 1000 t)))
    (is (string= tag (http:entity-tag 3900000000 5 1000 t)))
    (is (string= (format nil "W/~A" tag) (http:entity-tag 3900000000 5 1000 nil)))
    (dolist (other (list (http:entity-tag 3900000001 5 1000 t)
                         (http:entity-tag 3900000000 6 1000 t)
                         (http:entity-tag 3900000000 5 1001 t)))
      (is (string/= tag other)))))

(test without-tags-only-the-date-matters
  (is (eq :proceed (decided :get)))
  (is (eq :not-modified (decided :get "If-Modified-Since" (http:imf-fixdate 0))))
  (is (eq :proceed (decided :get "If-Modified-Since" (http:imf-fixdate 1))))
  (is (eq :proceed (decided :post "If-Modified-Since" (http:imf-fixdate 0)))))

(test a-client-that-has-one-of-the-listed-tags-need-not-get-it-again
  (is (eq :not-modified (decided :get "If-None-Match" "\"a\"")))
  (is (eq :not-modified (decided :head "If-None-Match" "\"b\", W/\"a\" ,\"c\"")))
  (is (eq :not-modified (decided :get "If-None-Match" "*")))
  (is (eq :proceed (decided :get "If-None-Match" "\"b\"" "If-Modified-Since" (http:imf-fixdate 0))))
  (is (eq :proceed (decided :get "If-None-Match" "a")))
  (is (eq :failed (decided :put "If-None-Match" "*"))))

(test a-client-that-wants-a-listed-tag-only-gets-no-other
  (is (eq :proceed (decided :get "If-Match" "\"b\",\"a\"")))
  (is (eq :proceed (decided :get "If-Match" "*")))
  (is (eq :failed (decided :get "If-Match" "\"b\"")))
  (is (eq :failed (decided :get "If-Match" "W/\"a\""))))

(defun range-for-tag-p (validator tag)
  (http:range-current-p (conditional-head :get "If-Range" validator) tag))

(test a-range-is-of-the-version-that-was-meant
  (is (range-for-tag-p "\"a\"" "\"a\""))
  (is (not (range-for-tag-p "\"b\"" "\"a\"")))
  (is (not (range-for-tag-p "W/\"a\"" "W/\"a\"")))
  (is (not (range-for-tag-p "Sun, 06 Nov 1994 08:49:37 GMT" "\"a\"")))
  (is (not (range-for-tag-p "\"a\"" nil)))
  (is (http:range-current-p (conditional-head :get) "\"a\"")))

(test single-ranges-are-understood
  (flet ((range (text) (multiple-value-list (http:parse-range text 100))))
    (is (equal '(0 9) (range "bytes=0-9")))
    (is (equal '(90 99) (range "Bytes=90-")))
    (is (equal '(5 3) (range "bytes=5-3")))
    (is (equal '(0 1000) (range "bytes=0-1000")))
    (is (equal '(95 99) (range "bytes=-5")))
    (is (equal '(0 99) (range "bytes=-1000")))
    (is (equal '(100 99) (range "bytes=-0")))
    (dolist (text '("bytes=-5-6" "bytes=1-2,4-5" "lines=1-2" "bytes=" "bytes=-" "bytes=1"
                    "bytes= 1-2" "" "bytes=a-b" "bytes=+1-2"))
      (is (equal '(nil) (range text)) "~S" text))))

(test positions-of-ranges-are-not-read-digit-by-digit-beyond-any-content
  (flet ((range (first last)
           (multiple-value-list (http:parse-range (format nil "bytes=~A-~A" first last) 100))))
    (is (equal '(5 9) (range "5" "9")))
    (is (equal '(0 9) (range "00" "000000000000000000000000009")))
    (is (equal (list 999999999999999999 (1- (expt 2 60)))
               (range (make-string 18 :initial-element #\9) (make-string 19 :initial-element #\9))))
    ;; If the parser made bignums, this would take minutes.
    (let ((digits (make-string 1000000 :initial-element #\7)))
      (is (equal (list (1- (expt 2 60)) (1- (expt 2 60))) (range digits digits))))))
