(in-package #:hunchentoot-recycling-taskmaster.base)

;;; The only two optimisation policies of the house.  A function that needs
;;; one says (declare #.*hot-policy*) or (declare #.*plain-policy*); a file
;;; that says neither is compiled under the one that the .asd file gives to all.

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defparameter *hot-policy*
    '(optimize (speed 3) (safety 0) (debug 0) (compilation-speed 0))
    "Declaration for the few inner loops of src/http/ and src/platform/ whose
arguments a caller has already checked.  The architecture test lists the files
that may use it.")

  (defparameter *checked-safety*
    ;; Compiled by ECL at 1, (car 3) ends the process, and (svref (vector 1) 10) has a value.
    (if (member :ecl *features*) 2 1)
    "The lowest safety at which this Lisp checks types, bounds and numbers of arguments.")

  (defparameter *plain-policy*
    `(optimize (speed 1) (safety ,*checked-safety*) (debug 1))
    "Declaration for code that is called once per request: checked, debuggable,
and not slowed by a user's global (debug 3)."))
