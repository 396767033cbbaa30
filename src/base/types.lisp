(in-package #:hunchentoot-recycling-taskmaster.base)

(deftype octet ()
  "One byte of a connection."
  '(unsigned-byte 8))

(deftype octets (&optional (length '*))
  "A simple vector of LENGTH octets."
  `(simple-array octet (,length)))

(deftype text ()
  "The type of strings that this library makes of received octets: simple, of any characters."
  '(simple-array character (*)))

(deftype index ()
  "A position in OCTETS, bounded so that the sum of two is a fixnum in every Lisp."
  '(integer 0 #.(ash most-positive-fixnum -2)))

(declaim (inline make-octets))
(defun make-octets (length)
  "A fresh vector of LENGTH octets; its contents are unspecified."
  (make-array length :element-type 'octet))
