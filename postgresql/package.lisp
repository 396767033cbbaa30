(defpackage #:hunchentoot-recycling-taskmaster.postgresql
  (:documentation "Channels that reach the subscribers of all processes, through PostgreSQL.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform)
  (:import-from #:hunchentoot-recycling-taskmaster.http
                #:utf-8-octets #:utf-8-text)
  (:import-from #:hunchentoot-recycling-taskmaster.server
                #:local-now)
  (:import-from #:hunchentoot-recycling-taskmaster
                #:broker #:open-broker #:close-broker #:broker-stats #:publish-message
                #:deliver-message)
  (:export #:postgresql-broker #:*schema*))
