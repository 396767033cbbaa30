(defpackage #:hunchentoot-recycling-taskmaster
  (:documentation "Serve a Hunchentoot application by recycled threads: make an instance of
one of the PARALLEL- acceptors where you made one of Hunchentoot's.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform
        #:hunchentoot-recycling-taskmaster.http
        #:hunchentoot-recycling-taskmaster.engine
        #:hunchentoot-recycling-taskmaster.server)
  (:shadowing-import-from #:hunchentoot-recycling-taskmaster.engine #:refuse)
  (:export
   #:parallel-acceptor #:parallel-easy-acceptor
   #:parallel-ssl-acceptor #:parallel-easy-ssl-acceptor
   #:recycling-taskmaster #:*default-standby-thread-count*
   #:*high-water-mark*
   #:taskmaster-standby-thread-count #:taskmaster-worker-thread-name-format
   #:content-received-early-p
   #:stats #:list-connections #:reopen-logs #:reload-certificates
   #:tls-information
   #:client-certificate #:client-certificate-p #:client-certificate-verified-p
   #:client-certificate-failure #:client-certificate-subject #:client-certificate-issuer
   #:client-certificate-serial-number #:client-certificate-not-before #:client-certificate-not-after
   #:client-certificate-fingerprint #:client-certificate-octets #:client-certificate-pem
   #:abandon-acceptor #:recycling-taskmaster-corrupted-error #:retry
   #:run-after #:cancel-timer
   #:stop-from-worker))
