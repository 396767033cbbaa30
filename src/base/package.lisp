(defpackage #:hunchentoot-recycling-taskmaster.base
  (:documentation "Private.  The base of all other layers: the two optimisation policies, the octet
types, the root of our conditions, and cleanup after non-local exits.")
  (:use #:common-lisp)
  (:export #:*hot-policy* #:*plain-policy*
           #:octet #:octets #:text #:index #:make-octets
           #:opaque #:recycling-error #:unless-returned))
