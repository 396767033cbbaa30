(defpackage #:hunchentoot-recycling-taskmaster-benchmark
  (:documentation "The ruler: measures our server, its rivals and the limit of the
machine side by side, and says in tables, charts and words what came out.")
  (:use #:common-lisp)
  (:export
   ;; The doors: one for each make target.
   #:bench #:write-outputs #:compare #:update-documents #:profile
   ;; For new rivals.
   #:define-rival #:rival #:lisp-rival #:program-rival
   #:prepare #:command #:version #:*rivals*
   ;; For new measures and workloads.
   #:*measures* #:*workloads*
   #:unavailable))
