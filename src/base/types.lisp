(in-package #:hunchentoot-recycling-taskmaster.base)

(deftype octet ()
  "One byte of the wire."
  '(unsigned-byte 8))

(deftype octets (&optional (length '*))
  "A simple vector of LENGTH octets."
  `(simple-array octet (,length)))

(deftype text ()
  "The strings that octets off the wire become: all characters, simple."
  '(simple-array character (*)))

(deftype index ()
  "A position in OCTETS; bounded so that sums of two stay fixnums everywhere."
  '(integer 0 #.(ash most-positive-fixnum -2)))

(declaim (inline make-octets))
(defun make-octets (length)
  "A fresh vector of LENGTH octets; its contents are unspecified."
  (make-array length :element-type 'octet))
