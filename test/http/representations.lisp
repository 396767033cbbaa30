(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* representations :in http
  :description "Codings, ranges and types: RFC 9110.  Of conditions and ranges see fronts/files.")

(test the-coding-that-a-client-likes-best-comes-first
  (loop for (value . codings) in (read-vectors "accept-encoding")
        do (is (equal codings (http:accepted-codings value)) "~S" value)))

(test long-lists-of-codings-are-read-in-one-pass
  (is (equal '(:gzip) (http:accepted-codings
                       (format nil "~{~A,~}gzip" (make-list 5000 :initial-element "a;q=0.1"))))))

(test positions-of-ranges-are-not-read-digit-by-digit-beyond-any-content
  (flet ((range (first last)
           (multiple-value-list (http:parse-range (format nil "bytes=~A-~A" first last) 100))))
    (is (equal '(5 9) (range "5" "9")))
    (is (equal '(0 9) (range "00" "000000000000000000000000009")))
    (is (equal (list 999999999999999999 (expt 2 60))
               (range (make-string 18 :initial-element #\9) (make-string 19 :initial-element #\9))))
    ;; If the parser made bignums, this would take minutes.
    (let ((digits (make-string 1000000 :initial-element #\7)))
      (is (equal (list (expt 2 60) (expt 2 60)) (range digits digits))))))

(test no-end-of-a-name-has-two-media-types
  (let ((ends (loop for (nil . ends) in http::*file-types* append ends)))
    (is (< 80 (length ends)))
    (is (= (length ends) (length (remove-duplicates ends :test #'string-equal))))))
