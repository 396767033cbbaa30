(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-chunking :in http
  :description "Octets as chunks.")

(defun chunk-of (size)
  "A chunk with SIZE octets of TEST-OCTETS."
  (octets (format nil "~(~X~)~C~C" size #\Return #\Linefeed) (test-octets size) :crlf))

(test octets-become-a-whole-chunk
  (dolist (size '(1 9 15 16 255 256 4095 4096 65536 70000))
    (is (null (octet-difference (chunk-of size) (http:chunk-of (test-octets size)))))))
