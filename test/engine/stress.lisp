(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite stress :in engine
  :description "Random clients against the states of ownership: nothing that came waits unseen.")

(in-suite stress)

(defvar *stress-requests* 20000
  "How many requests the stress test makes.")

(defparameter *round-requests* 5000
  "After how many of them the engine is stopped, and the next one started.")

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

(defun stressful-client (port requests state stopping-p)
  "Makes REQUESTS requests to PORT in random bursts, on connections that it ends in random ways.
Returns how many were answered: all, unless the function STOPPING-P returns true by then.  Signals
an error when answers are wrong or do not come."
  (let ((answered 0))
    (handler-bind ((error (lambda (condition)
                            (when (and (funcall stopping-p)
                                       (not (typep condition 'patience-lost)))
                              (return-from stressful-client answered)))))
      (loop while (< answered requests)
            do (with-connection (connection port)
                 (loop repeat (1+ (random 50 state))
                       while (< answered requests)
                       do (let ((text (stressful-text state)))
                            (if (zerop (random 3 state))
                                (send-in-pieces connection 1 text)
                                (send connection text))
                            (unless (read-stressful-answers connection text state)
                              (error "The answers to ~A were wrong." text))
                            (incf answered (length text))))
                 (end-stressfully connection state))))
    answered))

;;; The watchdog

(defun waiting-unseen-p (connection)
  "True when something has come on CONNECTION, and nobody owns it."
  (and (parked-p connection)
       (null (engine:connection-output connection))
       (platform:await-descriptor (engine:connection-descriptor connection) :input
                                  :until (platform:milliseconds))
       (parked-p connection)))

(defun look-for-the-unseen (engine since)
  "Enters in SINCE, a hash table, since when each connection of ENGINE has waited unseen; returns
one that has for more than a second."
  (let ((now (get-internal-real-time)) (forgotten nil))
    (map-connections
     (lambda (connection)
       (let ((known (gethash connection since)))
         (cond ((not (waiting-unseen-p connection))
                (remhash connection since))
               ((not (eql (car known) (engine:connection-served connection)))
                (setf (gethash connection since)
                      (cons (engine:connection-served connection) now)))
               ((< internal-time-units-per-second (- now (cdr known)))
                (setf forgotten connection)))))
     (engine-table engine))
    forgotten))

(defun watch-dog (engine finished-p)
  "Watches ENGINE until FINISHED-P; returns a connection that waited for more than a second while
workers had nothing to do, or NIL."
  (loop with since = (make-hash-table :test #'eq)
        until (poll finished-p 1/10)
        do (if (plusp (statistic engine :standby))
               (let ((forgotten (look-for-the-unseen engine since)))
                 (when forgotten
                   (return forgotten)))
               (clrhash since))))

;;; A round

(defun stop-at-random (engine state announce)
  "Stops ENGINE, softly or not, at some moment within the first second, after calling ANNOUNCE."
  (poll (constantly nil) (random 1.0 state))
  (funcall announce)
  (engine:stop-engine engine :soft (zerop (random 2 state)) :timeout 5))

(defun stressful-round (requests seed)
  "Lets four clients make REQUESTS requests of a new engine, which may be stopped meanwhile."
  (let* ((stopping nil)
         (state (seeded-state seed))
         (stop-p (zerop (random 2 state))))
    (with-ready-engine (engine #'stressful-answer :standby 4)
      (let* ((clients (loop for number from 1 to 4
                            collect (let ((state (seeded-state (+ seed number)))
                                          (port *port*))
                                      (in-background ("stressful client")
                                        (stressful-client port (floor requests 4) state
                                                          (lambda () stopping))))))
             (dog (in-background ("watchdog")
                    (watch-dog engine (lambda () (every #'task-done-p clients))))))
        (when stop-p
          (stop-at-random engine state (lambda () (setf stopping t))))
        (is (every (lambda (task) (<= 0 (task-result task 300) requests)) clients))
        (is (null (task-result dog)) "~A waited unseen." (task-result dog))
        (unless stop-p
          (wait-for-statistic engine :open 0))
        (stop-patiently engine)
        (is (zerop (statistic engine :open)))
        (is (zerop (statistic engine :failed)))
        (is (null (engine:accounting-problems engine)))))))

(define-server-test no-octet-waits-unseen-under-stress
  (let ((seed (random (expt 2 30) (make-random-state t)))
        (*patience* 10))
    (format t "~&[seed ~D] " seed)
    (loop for left = *stress-requests* then (- left *round-requests*)
          for number from 0
          while (plusp left)
          do (stressful-round (min left *round-requests*) (+ seed (* 100 number))))))
