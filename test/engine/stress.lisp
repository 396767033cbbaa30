(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite stress :in engine
  :description "Random clients against the states of ownership: nothing that came waits unseen.")

(in-suite stress)

(defvar *stress-requests* 20000
  "How many requests the stress test makes.")

(defvar *stress-answer* (test-octets 4000000)
  "The largest answer.")

(defun stressful-answer (char)
  "Each letter is answered by twice as much as the one before it; X by itself."
  (unless (char= char #\x)
    (subseq *stress-answer* 0 (ash 1000 (- (char-code char) (char-code #\A))))))

(defun stressful-text (state)
  "A few requests, of which some ask for a large answer."
  (map-into (make-string (1+ (random 8 state)))
            (lambda ()
              (if (zerop (random 40 state))
                  (char "ABCDEFGHIJKL" (random 12 state))
                  #\x))))

(defun read-stressful-answers (connection text state)
  "Reads the answers to TEXT from CONNECTION, at random pace.  True when they are right."
  (loop for char across text
        for expected = (or (stressful-answer char) (octets (string char)))
        always (or (char= char #\x)
                   (plusp (random 3 state))
                   (progn (poll (constantly nil) 1/50) t))
        always (equalp expected (if (char= char #\x)
                                    (read-octets connection 1)
                                    (receive-many connection (length expected))))))

(defun end-stressfully (connection state)
  (case (random 4 state)
    (0 (reset connection))
    (1 (end-sending connection) (receive-rest connection) (disconnect connection))
    (2 (disconnect connection))
    (3 (send connection "AxLxx") (reset connection)))) ; with answers under way

(defun stressful-client (port requests state)
  "Makes REQUESTS requests to PORT in random bursts, on connections that it ends in random ways.
Returns how many were not answered in time, which is none, or an error is signalled."
  (loop with left = requests
        while (plusp left)
        do (let ((connection (connect port)))
             (unwind-protect
                  (loop repeat (1+ (random 50 state))
                        while (plusp left)
                        do (let ((text (stressful-text state)))
                             (if (zerop (random 3 state))
                                 (send-in-pieces connection 1 text)
                                 (send connection text))
                             (unless (read-stressful-answers connection text state)
                               (error "The answers to ~A were wrong." text))
                             (decf left (length text))))
               (end-stressfully connection state))))
  0)

(define-server-test no-octet-waits-unseen-under-stress
  (let ((seed (random (expt 2 30) (make-random-state t))))
    (format t "~&[seed ~D] " seed)
    ;; Whoever waits for an answer loses patience after a second: a wake-up was lost.
    (let ((*patience* 5))
      (with-ready-engine (engine #'stressful-answer :standby 4)
        (let ((clients (loop for number below 4
                             collect (let ((state (seeded-state (+ seed number)))
                                           (port *port*))
                                       (in-background ("stressful client")
                                         (stressful-client port (floor *stress-requests* 4)
                                                           state))))))
          (is (every (lambda (task) (eql 0 (task-result task 300))) clients))
          (wait-for-statistic engine :open 0)
          (is (zerop (statistic engine :failed))))))))
