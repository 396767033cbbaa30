(defpackage #:hunchentoot-recycling-taskmaster.http2
  (:documentation "HTTP/2 by libnghttp2, below applications that know nothing of it.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform
        #:hunchentoot-recycling-taskmaster.http
        #:hunchentoot-recycling-taskmaster.engine
        #:hunchentoot-recycling-taskmaster.server))
