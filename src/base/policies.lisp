(in-package #:hunchentoot-recycling-taskmaster.base)

;;; The only two optimisation policies of this library.  A function that needs one declares
;;; #.*hot-policy* or #.*plain-policy*.  All other code is compiled under the policy that the .asd
;;; file sets.

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defparameter *hot-policy*
    '(optimize (speed 3) (safety 0) (debug 0) (compilation-speed 0))
    "The declaration for a few inner loops that trust their arguments, since the callers have
checked them.  The architecture test lists the files that may use it.")

  (defparameter *checked-safety*
    ;; At safety 1, ECL's (car 3) ends the process, and (svref (vector 1) 10) returns a value.
    (if (member :ecl *features*) 2 1)
    "The lowest safety at which this Lisp checks types, bounds and numbers of arguments.")

  (defparameter *plain-policy*
    `(optimize (speed 1) (safety ,*checked-safety*) (debug 1))
    "The declaration for code that runs for each request: checked, debuggable, and not slowed by a
user's global (debug 3)."))
