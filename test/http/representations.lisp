(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* representations :in http
  :description "Codings, ranges and types: RFC 9110.  Of conditions and ranges see fronts/files.")

(test long-lists-of-codings-are-read-in-one-pass
  (is (equal '(:gzip) (http:accepted-codings
                       (format nil "~{~A,~}gzip" (make-list 5000 :initial-element "a;q=0.1"))))))

(test positions-of-ranges-are-not-read-digit-by-digit-beyond-any-content
  (flet ((ranges (format first last)
           (http:parse-ranges (format nil format first last) 100)))
    ;; If the parser made bignums, this would take minutes.
    (let ((digits (make-string 1000000 :initial-element #\7)))
      (is (null (ranges "bytes=~A-~A" digits digits)))
      (is (equal '((0 . 99)) (ranges "bytes=-~A,~A-" digits digits))))))

(test parameters-of-types-are-found
  (loop for (name type kind value) in (read-vectors "media-types")
        do (is (equal value (http:media-type-parameter name type kind)) "~S" type)))

(test no-end-of-a-name-has-two-media-types
  (let ((ends (loop for (nil . ends) in http::*file-types* append ends)))
    (is (< 80 (length ends)))
    (is (= (length ends) (length (remove-duplicates ends :test #'string-equal))))))
