(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-body :in http
  :description "The position of the content in the octets of a request.")

(test-vectors chunked-bodies-follow-the-grammar "chunked"
  "RFC 9112, section 7.1.")

(test no-body-is-done-at-once
  (is (http:body-done-p (http:make-body-decoder :none)))
  (is (http:body-done-p (http:make-body-decoder 0)))
  (is (not (http:body-done-p (http:make-body-decoder 1))))
  (is (not (http:body-done-p (http:make-body-decoder :chunked)))))

(test content-of-a-length-is-found-in-place
  (let ((decoder (http:make-body-decoder 5))
        (octets (as-octets '(1 2 3 4 5 6 7))))
    (is (equal '(0 2 2) (multiple-value-list (http:decode-body decoder octets 0 2))))
    (is (not (http:body-done-p decoder)))
    (is (equal '(2 5 5) (multiple-value-list (http:decode-body decoder octets 2 7))))
    (is (http:body-done-p decoder))
    (is (equal '(5 5 5) (multiple-value-list (http:decode-body decoder octets 5 7))))))

(test content-of-chunks-is-found-in-place
  (let ((decoder (http:make-body-decoder :chunked))
        (octets (as-octets (input-octets '("3" "abc" "1" "d" "0" "" "GET")))))
    (is (equal '(3 6 6) (multiple-value-list (http:decode-body decoder octets 0 24))))
    (is (equal '(11 12 12) (multiple-value-list (http:decode-body decoder octets 6 24))))
    (is (equal '(19 19 19) (multiple-value-list (http:decode-body decoder octets 12 24))))
    (is (http:body-done-p decoder))))

(test no-octets-change-nothing
  (let ((decoder (http:make-body-decoder :chunked)))
    (is (equal '(2 2 2) (multiple-value-list
                         (http:decode-body decoder (as-octets '(1 2 3)) 2 2))))
    (is (not (http:body-done-p decoder)))))

(test ranges-outside-the-octets-are-errors-in-bodies-too
  (let ((decoder (http:make-body-decoder 5))
        (octets (as-octets '(1 2 3))))
    (signals error (http:decode-body decoder octets 0 4))
    (signals error (http:decode-body decoder octets 2 1))
    (signals error (http:decode-body decoder "abc" 0 3))))

(test what-is-encoded-in-chunks-is-decoded
  (let ((output (http:make-output))
        (octets (as-octets (loop for i below 5000 collect (mod i 256)))))
    (loop for start = 0 then end
          for end = (min 5000 (+ start (* 7 (1+ (mod start 97)))))
          while (< start 5000)
          do (http:encode-octets output (http:chunk-of (subseq octets start end))))
    (http:encode-octets output http:*last-chunk*)
    (is (equal `((:request :method :post :body ,(octet-text octets)))
               (mapcar (lambda (event)
                         (list :request :method (getf (rest event) :method)
                                        :body (getf (rest event) :body)))
                       (remove :waiting
                               (events-whole
                                (concatenate 'base:octets
                                             (request-octets-of
                                              "POST / HTTP/1.1" "Host: a"
                                              "Transfer-Encoding: chunked" "")
                                             (encoded-octets output)))
                               :key #'first))))))
