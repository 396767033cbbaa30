;;;; Serves examples/demo.lisp until a signal ends it, as Ctrl-C does.  PORT and ADDRESS say where.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(load-own "hunchentoot-recycling-taskmaster")
(load (uiop:subpathname *root* "examples/demo.lisp"))
(uiop:symbol-call '#:hunchentoot-recycling-taskmaster-demo '#:main)
