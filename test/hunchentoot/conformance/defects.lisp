(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/defects :in conformance
  :description "Defects of Hunchentoot that we do not inherit.")

(defun stays-false-p (predicate)
  "Whether PREDICATE remains false for a tenth of a second, the time that we give a
server to do what it must not do."
  (not (poll predicate 1/10)))

;;; Of the engine

(define-server-test (soft-stop-does-not-return-after-the-first-request :needs :our-engine)
  (let ((running (make-latch 3 "three requests to run"))
        (gates (vector (make-gate) (make-gate) (make-gate))))
    (serving () (("/" (count-down running)
                      (await (aref gates (parse-integer (hunchentoot:query-string*))))
                      "done"))
      (let ((clients (loop for number below 3
                           collect (let ((target (format nil "/?~D" number)))
                                     (in-background ("a client") (ask-text target))))))
        (await running)
        (let ((stop (in-background ("soft stop") (hunchentoot:stop *server* :soft t))))
          (loop for client in clients
                for gate across gates
                do (is (stays-false-p (lambda () (task-done-p stop))))
                   (open-gate gate)
                   (is (string= "done" (task-result client))))
          (is (eq *server* (task-result stop))))))))

;;; Of heads without bound

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
