;;;; For `make compile`: compiles what the tests need, as they would themselves before they begin.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(load-tests "hunchentoot-recycling-taskmaster-test")
(finish-output)
(leave 0)
