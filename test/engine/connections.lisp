(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* engine/connections :in engine
  :description "The table of connections, and the rule for peers that take octets slowly.")

(test a-connection-is-found-by-its-own-token-alone-however-many-there-are
  (if (platform:readiness-supported-p)
      (flet ((entered (table descriptor)
               (let ((connection (make-connection nil :descriptor descriptor)))
                 (enter-connection table connection)
                 connection)))
        (let* ((table (make-table)) (seen '())
               (connections (loop for descriptor in '(5 1023 1024 5000)
                                  collect (entered table descriptor)))
               (token (connection-token (first connections))))
          (is (equal connections
                     (loop for connection in connections
                           collect (find-connection table (connection-token connection)))))
          (map-connections (lambda (connection) (push connection seen)) table)
          (is (equal connections (reverse seen)))
          (forget-connection table (first connections))
          (is (null (find-connection table token)))
          (let ((next (entered table 5)))
            (is (null (find-connection table token)) "A late event is not the next one's.")
            (is (eq next (find-connection table (connection-token next)))))))
      (skip "On this Lisp connections have no tokens.")))

(test a-peer-is-given-up-that-takes-nothing-or-too-little-while-octets-wait
  (if (platform:readiness-supported-p)
      ;; Seconds, octets a second; moments in milliseconds, what was taken before, and the verdict.
      (loop for (seconds rate . looks)
              in '((10 nil (0 0 nil) (9000 1 nil) (18999 0 nil) (19000 0 t))
                   (10 nil (0 0 nil) (9000 :all nil) (99000 0 nil) (108999 0 nil) (109000 0 t))
                   (nil 1000 (0 0 nil) (35000 9000 nil) (38999 0 nil) (39000 0 t))
                   (nil 1000 (0 0 nil) (9000 :all nil) (99000 0 nil) (128999 0 nil) (129000 0 t))
                   (nil nil (0 0 nil) (1000000 0 nil)))
            do (let ((queue (engine:make-send-queue 1000000))) ; of no open descriptor
                 (flet ((put ()
                          (put-parts queue (list (engine:make-octets-part (test-octets 100000))))))
                   (engine:limit-taking queue seconds rate)
                   (put)
                   (loop for (now taken given-up-p) in looks
                         do (note-sent queue (if (eq :all taken)
                                                 (engine:send-queue-size queue)
                                                 taken))
                            (is (eq given-up-p (engine:taker-given-up-p queue now))
                                "~A ~A ~A" seconds rate now)
                            (when (eq :all taken)
                              (put)))
                   (engine:end-queue queue))))
      (skip "On this Lisp nobody knows how many octets are unsent.")))
