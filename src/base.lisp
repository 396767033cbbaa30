(defpackage #:hunchentoot-recycling-taskmaster.base
  (:documentation "Private.  The base of all other layers: the two optimisation policies, the octet
types, the roots of our conditions and structures, and cleanup after non-local exits.")
  (:use #:common-lisp)
  (:export #:*hot-policy* #:*plain-policy*
           #:octet #:octets #:text #:index #:make-octets
           #:opaque #:recycling-error #:unless-returned))

(in-package #:hunchentoot-recycling-taskmaster.base)

;;; The only two optimisation policies of this library.  A function that needs one declares
;;; #.*hot-policy* or #.*plain-policy*.  All other code is compiled under the policy that the .asd
;;; file sets.

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defparameter *hot-policy*
    '(optimize (speed 3) (safety 0) (debug 0) (compilation-speed 0))
    "The declaration for a few inner loops that trust their arguments, since the callers have
checked them.  The architecture test lists the files that may use it.")

  (defparameter *plain-policy*
    ;; At safety 1, ECL's (car 3) ends the process, and (svref (vector 1) 10) returns a value.
    `(optimize (speed 1) (safety ,(if (member :ecl *features*) 2 1)) (debug 1))
    "The declaration for code that runs for each request: checked, debuggable, and not slowed by a
user's global (debug 3)."))

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

(defstruct (opaque (:constructor nil) (:copier nil) (:predicate nil))
  "The root of all our structures.  It prints without its contents: a backtrace in a log or on an
error page prints the arguments of functions, and many of these hold passwords, cookies or forms.")

(defmethod print-object ((object opaque) stream)
  (print-unreadable-object (object stream :type t :identity t)))

(define-condition recycling-error (error)
  ()
  (:documentation "The root of all conditions that this library defines and signals."))

(defmacro unless-returned (form &body cleanup)
  "Evaluates FORM and returns its values.  If a non-local exit leaves FORM, evaluates CLEANUP on the
way."
  (let ((returned-p (gensym "RETURNED-P")))
    `(let ((,returned-p nil))
       (unwind-protect (multiple-value-prog1 ,form
                         (setf ,returned-p t))
         (unless ,returned-p
           ,@cleanup)))))
