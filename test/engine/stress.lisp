(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite stress :in engine
  :description "Random clients against the states of ownership: nothing that came waits unseen.")

(in-suite stress)

(defvar *stress-requests* 20000
  "How many requests the stress test makes.")

(defun stressful-client (port requests state)
  "Makes REQUESTS requests to PORT in random bursts, on connections that it ends in random ways.
Returns how many were not answered in time, which is none, or an error is signalled."
  (loop with left = requests
        while (plusp left)
        do (let ((connection (connect port)))
             (unwind-protect
                  (loop repeat (1+ (random 50 state))
                        while (plusp left)
                        do (let* ((size (1+ (random 8 state)))
                                  (text (make-string size :initial-element #\x)))
                             (if (zerop (random 3 state))
                                 (send-in-pieces connection 1 text)
                                 (send connection text))
                             (read-octets connection size)
                             (decf left size)))
               (case (random 3 state)
                 (0 (reset connection))
                 (1 (end-sending connection) (receive-rest connection)
                  (disconnect connection))
                 (2 (disconnect connection))))))
  0)

(define-server-test no-octet-waits-unseen-under-stress
  (let ((seed (random (expt 2 30) (make-random-state t))))
    (format t "~&[seed ~D] " seed)
    ;; Whoever waits for an answer loses patience after a second: a wake-up was lost.
    (let ((*patience* 5))
      (with-ready-engine (engine (constantly nil) :standby 4)
        (let ((clients (loop for number below 4
                             collect (let ((state (seeded-state (+ seed number)))
                                           (port *port*))
                                       (in-background ("stressful client")
                                         (stressful-client port (floor *stress-requests* 4)
                                                           state))))))
          (is (every (lambda (task) (eql 0 (task-result task 300))) clients))
          (wait-for-statistic engine :open 0)
          (is (zerop (statistic engine :failed))))))))
