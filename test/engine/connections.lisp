(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* engine/connections :in engine
  :description "The table of connections, peers that take octets slowly, what threads share.")

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

(test durations-are-counted-up-to-their-bounds
  (let* ((engine (engine:make-blocking-engine nil nil))
         (engine:*worker* (make-worker engine 1)))
    (push engine:*worker* (engine-workers engine))
    (dolist (duration '(0 100 101 10000000 10000001))
      (count-request (make-connection nil) duration 2))
    (flet ((check ()
             (let* ((statistics (engine:engine-statistics engine))
                    (durations (getf statistics :durations))
                    (counts (loop for (nil count) on (getf durations :buckets) by #'cddr
                                  collect count)))
               (is (equal '(2 3 3 3 3 3 3 3 3 3 3 3 3 3 3 4) counts))
               (is (equal '(5 20.000202d0) (list (getf durations :count) (getf durations :sum))))
               (is (equalp #(0 0 5 0 0 0) (getf statistics :replies))))))
      (check)
      (bt:with-lock-held ((engine-lock engine))
        (loop repeat 2 do (retire engine:*worker*)))
      (check))))

(test events-are-taken-in-their-order
  (if (platform:readiness-supported-p)
      (let ((engine (engine:make-ready-engine nil 0)))
        (loop for (tokens . first-p) in '(((1)) ((2 3)) ((4)) ((5 6) . t) ((7)))
              do (queue-events engine tokens first-p))
        (is (equal '(5 6 1 2 3 4 7) (loop for token = (take-event engine)
                                          while token collect token))))
      (skip "There is no ready engine here.")))

(test what-threads-do-at-once-is-not-lost
  (if (platform:readiness-supported-p)
      (let* ((count 30000) (last -1) (lock (bt:make-lock))
             (given (make-array (* 4 count) :initial-element 0)) ; to each in four steps
             (seen (make-array count)) (sent (make-array count)) (connections (make-array count))
             (engine (engine:make-ready-engine nil 0)) (timers (make-timers)))
        (labels ((sum (index) (reduce #'+ given :start (* 4 index) :end (* 4 (1+ index))))
                 (look-and-park (index &aux (connection (svref connections index)))
                   (loop do (setf (svref seen index) (sum index))
                         while (logtest 2 (change-ownership connection :park)))) ; :ARRIVED
                 (act (&aux (taken 0) (timer nil))
                   (loop for step = (bt:with-lock-held (lock) (incf last))
                         for index = (floor step 4)
                         while (< index count)
                         do (loop repeat 5
                                  do (engine:count-failure engine)
                                     (queue-events engine (list step))
                                     (incf taken (if (take-event engine) 1 0)))
                            (setf (svref given step) 1)
                            (when (become-owner (svref connections index) nil)
                              (look-and-park index))
                            (send-more (engine:connection-queue (svref connections index)))
                            (when timer (engine:cancel timer))
                            (setf timer (add-timer timers (mod step 101) 'list)))
                   taken))
          (dotimes (each count)
            (let ((index each) (connection (make-connection nil :descriptor 1000000)))
              (setf (svref connections index) connection
                    (engine:send-queue-more (engine:connection-queue connection))
                    (lambda () (setf (svref sent index) (sum index))))
              (look-and-park index)))
          (let ((taken (mapcar #'task-result
                               (loop repeat 4 collect (in-background ("acting") (act))))))
            (is (= (* 20 count) (getf (engine:engine-statistics engine) :failed)
                   (+ (reduce #'+ taken) (loop while (take-event engine) count t))))))
        (is (every #'= seen sent (make-list count :initial-element 4)))
        (is (= 4 (timers-pending timers) (length (take-all-due timers 1000)))))
      (skip "There is no ready engine here.")))
