;;;; Builds build/demo, a program with everything in it: examples/demo.lisp, the library and the
;;;; Lisp.  A script for your own program looks like this one.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

#-sbcl (give-up "An executable needs SBCL.")

(load-own "hunchentoot-recycling-taskmaster")
(load (uiop:subpathname *root* "examples/demo.lisp"))

#+sbcl
(sb-ext:save-lisp-and-die (ensure-directories-exist (uiop:subpathname *root* "build/demo"))
                          :executable t
                          ;; The program's arguments are not the Lisp's.
                          :save-runtime-options t
                          :toplevel (uiop:find-symbol* '#:main
                                                       '#:hunchentoot-recycling-taskmaster-demo))
