(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* content-codings :in http
  :description "Accept-Encoding: RFC 9110, sections 12.4.2 and 12.5.3.")

(test the-coding-that-a-client-likes-best-comes-first
  (loop for (value . codings) in (read-vectors "accept-encoding")
        do (is (equal codings (http:accepted-codings value)) "~S" value)))

(test long-lists-of-codings-are-read-in-one-pass
  (is (equal '(:gzip) (http:accepted-codings
                       (format nil "~{~A,~}gzip" (make-list 5000 :initial-element "a;q=0.1"))))))

(test files-with-and-without-a-coding-have-different-tags
  (dolist (tag '("\"a-b\"" "W/\"a-b\""))
    (let ((tags (list tag (http:coded-tag tag :br) (http:coded-tag tag :gzip))))
      (is (= 3 (length (remove-duplicates tags :test #'string=))))
      (is (every (lambda (other)
                   (and (string= "\"" other :start2 (1- (length other)))
                        (string= (subseq tag 0 (1- (length tag))) other
                                 :end2 (1- (length tag)))))
                 tags)))))

;;; Media types

(test media-types-of-files-depend-on-the-ends-of-their-names
  (loop for (name type text-type) in '(("a.html" "text/html" "text/html; charset=utf-8")
                                       ("a.JS" "text/javascript" "text/javascript; charset=utf-8")
                                       ("a.min.css" "text/css" "text/css; charset=utf-8")
                                       ("a.json" "application/json" "application/json")
                                       ("a.svg" "image/svg+xml" "image/svg+xml")
                                       ("a.odt" "application/vnd.oasis.opendocument.text"
                                        "application/vnd.oasis.opendocument.text")
                                       ("a.unheard" nil nil) ("a" nil nil))
        do (is (equal type (http:media-type-of-file name)))
           (is (equal text-type (http:media-type-of-file name t)))))

(test no-end-of-a-name-has-two-media-types
  (let ((ends (loop for (nil . ends) in http::*file-types* append ends)))
    (is (< 80 (length ends)))
    (is (= (length ends) (length (remove-duplicates ends :test #'string-equal))))))
