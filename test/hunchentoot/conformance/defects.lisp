(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/defects :in conformance
  :description "Defects of Hunchentoot that we do not inherit.")

(define-server-test (a-head-that-drips-in-is-given-up :needs :our-reader)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds) (("/" "served"))
      (with-prompt-connection (connection)
        (promptly (send connection "GET / HTTP/1.1" :crlf "X-Slow: "))
        (eventually ("the client to be given up" :patience (* 4 *patience*))
          (try-to-send connection "x")
          (readable-p connection 1/4))
        (is (= 408 (response-status (read-response connection))))))))

(define-server-test (many-halves-of-heads-hold-no-threads :needs :parking)
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :write-timeout seconds
              :taskmaster (make-instance 'recycling:recycling-taskmaster
                                         :standby-thread-count 1 :max-thread-count 1))
        (("/" "served"))
      (let ((*limit-began* (platform:microseconds)))
        (with-connections (connections 30)
          (is (string= "served" (promptly (dolist (connection connections)
                                            (send connection "GET / HTT"))
                                          (ask-text "/"))))
          (dolist (connection connections)
            (is (= 408 (response-status (read-response connection)))))))
      (is (string= "served" (promptly (ask-text "/")))))))
