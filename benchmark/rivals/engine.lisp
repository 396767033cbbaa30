(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(define-rival "engine" (lisp-rival)
  :label "our engine alone"
  :family :part
  :color "#7f0000"
  :parameters "the ready engine with a fixed answer, no Hunchentoot; workers as in ours"
  :note "No server to use: it shows what our engine costs, before HTTP and Hunchentoot's objects."
  :lacks '(:files "its fixed answer is all that it has"
           :uploads "it answers before a body has come")
  :system "hunchentoot-recycling-taskmaster"
  :server "engine")
