(defpackage #:hunchentoot-recycling-taskmaster-benchmark/test
  (:documentation "Tests of the ruler itself, on figures made up for them.")
  (:use #:common-lisp #:fiveam)
  (:local-nicknames (#:ruler #:hunchentoot-recycling-taskmaster-benchmark))
  (:export #:run-all))
