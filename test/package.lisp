(defpackage #:hunchentoot-recycling-taskmaster-test
  (:documentation "The tests.  RUN-ALL runs them.")
  (:use #:common-lisp #:fiveam)
  (:local-nicknames (#:base #:hunchentoot-recycling-taskmaster.base)
                    (#:platform #:hunchentoot-recycling-taskmaster.platform)
                    (#:http #:hunchentoot-recycling-taskmaster.http)
                    (#:engine #:hunchentoot-recycling-taskmaster.engine)
                    (#:recycling #:hunchentoot-recycling-taskmaster))
  (:export #:run-all #:all))
