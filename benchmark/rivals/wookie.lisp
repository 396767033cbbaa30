(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "wookie" (lisp-rival)
  :label "Wookie"
  :color "#8d6e63"
  :parameters "no plugins; a delay by cl-async's timer"
  :lacks '(:files "its directory router is a plugin, which has to be installed apart")
  :system "wookie"
  :server "wookie")
