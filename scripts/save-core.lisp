;;;; Saves a core that has the library in it to the file that CORE names.  Programs of the tests
;;;; start from it in a fraction of the time that loading takes.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

#-sbcl (give-up "Saving a core needs SBCL.")

(load-own "clack.handler.recycling")
(load-own "hunchentoot-recycling-taskmaster")

#+sbcl
(sb-ext:save-lisp-and-die (setting "CORE"))
