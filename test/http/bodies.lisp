(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-body :in http
  :description "The position of the content in the octets of a request.")

(test-vectors chunked-bodies-follow-the-grammar "chunked"
  "RFC 9112, section 7.1.")

(test ranges-outside-the-octets-are-errors-in-bodies-too
  (let ((decoder (http:make-body-decoder 5))
        (octets (as-octets '(1 2 3))))
    (signals error (http:decode-body decoder octets 0 4))
    (signals error (http:decode-body decoder octets 2 1))
    (signals error (http:decode-body decoder "abc" 0 3))))
