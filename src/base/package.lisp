(defpackage #:hunchentoot-recycling-taskmaster.base
  (:documentation "Private.  What every other layer stands on: the two optimisation policies, the
octet types, the root of our conditions, what is done where a form is left.")
  (:use #:common-lisp)
  (:export #:*hot-policy* #:*plain-policy*
           #:octet #:octets #:text #:index #:make-octets
           #:opaque #:define-record #:recycling-error #:unless-returned))
