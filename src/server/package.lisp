(defpackage #:hunchentoot-recycling-taskmaster.server
  (:documentation "Private.  A connection's life on a non-blocking descriptor; knows nothing
of Hunchentoot.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform
        #:hunchentoot-recycling-taskmaster.engine)
  (:export
   #:descriptor-stream #:make-descriptor-stream #:stream-descriptor
   #:call-with-buffers #:fill-input #:input-waiting-p #:lend-no-buffers #:drop-descriptor #:hand-descriptor-over
   #:stream-timeout #:descriptor-broken))
