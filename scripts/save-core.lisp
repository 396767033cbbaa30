;;;; Saves a core that has the library in it to the file that CORE names.  Programs of the tests
;;;; start from it in a fraction of the time that loading takes.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

#-sbcl (give-up "Saving a core needs SBCL.")

(load-own "clack.handler.recycling")
(load-own "hunchentoot-recycling-taskmaster")

;; No process must have it.
(uiop:symbol-call '#:hunchentoot-recycling-taskmaster.server '#:new-request-id)

#+sbcl
(sb-ext:save-lisp-and-die (setting "CORE"))
