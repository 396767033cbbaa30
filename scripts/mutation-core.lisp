;;;; Saves a core with the library, its tests and the tool for mutation tests loaded, for
;;;; `make mutation-test`.  SBCL only.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

#-sbcl (error "Mutation tests need SBCL.")

(load-own "hunchentoot-recycling-taskmaster-test")
(asdf:load-system "hunchentoot-recycling-taskmaster-test/mutation")
(uiop:symbol-call '#:hunchentoot-recycling-taskmaster-mutation '#:save-core
                  (ensure-directories-exist (uiop:subpathname *root* "build/mutation.core")))
