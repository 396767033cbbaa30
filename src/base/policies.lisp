(in-package #:hunchentoot-recycling-taskmaster.base)

;;; The only two optimisation policies of the house.  A function that needs
;;; one says (declare #.*hot-policy*) or (declare #.*plain-policy*); a file
;;; that says neither is compiled under the user's own policy.

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defparameter *hot-policy*
    '(optimize (speed 3) (safety 0) (debug 0) (compilation-speed 0))
    "Declaration for the few inner loops of src/http/ and src/platform/ whose
arguments a caller has already checked.  The architecture test lists the files
that may use it.")

  (defparameter *plain-policy*
    '(optimize (speed 1) (safety 1) (debug 1))
    "Declaration for code that is called once per request: checked, debuggable,
and not slowed by a user's global (debug 3)."))
