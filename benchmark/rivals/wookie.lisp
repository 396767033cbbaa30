(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "wookie" (lisp-rival)
  :label "Wookie"
  :color "#8d6e63"
  :parameters "no plugins; a delay by cl-async's timer"
  :system "wookie"
  :server "wookie")
