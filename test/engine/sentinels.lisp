(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite sentinels :in engine
  :description "The sentinel: its death, its failures, and what it does at rest.")

(in-suite sentinels)

(defun successor (engine sentinel)
  "Waits until another thread than SENTINEL is that of ENGINE, and returns it."
  (eventually ("a successor")
    (let ((thread (sentinel-of engine)))
      (and thread (not (eq thread sentinel)) (bt:thread-alive-p thread) thread))))

(define-server-test a-destroyed-sentinel-has-a-successor
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine (constantly nil))
      (let ((sentinel (sentinel-of engine)))
        (platform:destroy-thread sentinel)
        (successor engine sentinel)
        (with-connection (connection *port*)
          (let-idle engine connection 200)
          (is (closed-by-server-p connection) "Deadlines count again."))))))

(define-server-test (a-destroyed-sentinel-has-a-successor-though-the-worker-that-it-called-dies-too
                     :needs :parking)
  (with-globals ((*poll-milliseconds* 100000)) ; or the others would look around by themselves
    (with-ready-engine (engine (constantly nil) :standby 3)
      ;; A thread that is destroyed before it begins calls for nobody.
      (eventually ("the workers to begin") (zerop (worker-count engine :starting)))
      (let ((sentinel (sentinel-of engine)))
        (with-function (request-sentinel (original engine) nil)
          (platform:destroy-thread sentinel)
          (eventually ("its end") (not (bt:thread-alive-p sentinel))))
        (platform:destroy-thread (worker-thread (first (engine-workers engine))))
        (successor engine sentinel)
        (with-connection (connection *port*)
          (is (equal "x" (exchange-octets connection "x"))))))))

(define-server-test (a-destroyed-sentinel-has-a-successor-though-who-waits-is-suspended
                     :needs :parking)
  (with-globals ((*tick* 1/100) (*idle-tick* 1/100))
    (let ((gate (make-gate)))
      (with-ready-engine (engine (lambda (char)
                                   (when (eql #\w char)
                                     (await gate)))
                                 :standby 2 :thread-limit 2)
        (with-connection (blocked *port*)
          (exchange-octets blocked "x")
          ;; One worker is blocked, and the other suspended: nobody waits, and the sentinel does not
          ;; see to that.
          (with-function (adjust-pool (original engine controller) nil)
            (eventually ("a suspended worker")
              ;; A look that had begun before may write this once more.
              (setf (pool-state-target (engine-pool-state engine)) 1)
              (exchange-octets blocked "x")
              (engine-suspended engine))
            (send blocked "w")
            (eventually ("nobody to wait") (not (somebody-waits-p engine)))
            (let ((sentinel (sentinel-of engine)))
              (unwind-protect
                   (progn (platform:destroy-thread sentinel)
                          (is-true (successor engine sentinel)))
                (open-gate gate)))))))))

(define-server-test a-successor-that-is-destroyed-before-it-begins-has-another
  (with-globals ((*tick* 1/100) (*poll-milliseconds* 10))
    (with-ready-engine (engine (constantly nil))
      (let ((sentinel (sentinel-of engine)) (unborn nil))
        (with-function (engine:make-engine-thread (original service role thunk)
                         (if (or unborn (not (eq :sentinel role)))
                             (funcall original service role thunk)
                             (setf unborn (thread-that-never-began))))
          (platform:destroy-thread sentinel)
          (eventually ("a first successor") unborn)
          (is-true (successor engine unborn))
          (is (not (eq sentinel (sentinel-of engine)))))))))

(test a-sentinel-is-noted-by-who-made-it-only-until-it-begins
  (let* (*listener* *service* (engine (make-engine (constantly :close)))
         (mine (thread-that-never-began)) (other (bt:current-thread)))
    (loop for (sentinel lost-p noted) in `((nil nil ,mine) (,other nil ,other) (nil t nil))
          do (setf (sentinel-thread (engine-sentinel engine)) sentinel
                   (sentinel-lost-p (engine-sentinel engine)) lost-p)
             (record-sentinel engine mine)
             (is (eq noted (sentinel-of engine))))))

(define-server-test the-clock-goes-on-without-a-sentinel
  (with-resting-engine (engine)
    (let ((pool (engine-pool-state engine)))
      (flet ((lag () (- (platform:milliseconds) (coarse-now pool))))
        (is (< (* 1000 *patience*) (lag)) "Nobody has ticked.")
        (request-sentinel engine)
        (is (<= 0 (lag) (* 1000 *patience*)))
        (resume-clock pool)
        (is (<= 0 (lag) (* 1000 *patience*)))
        (is (not (pool-state-clock-stopped-p pool)))))))

(defun await-progress-of-clock (pool)
  "Waits until what the workers take for the time has moved on."
  (let ((before (coarse-now pool)))
    (is-true (eventually ("the clock to go on")
               (< (+ before 100) (coarse-now pool))))))

(define-server-test the-clock-goes-on-when-a-worker-misses-the-sentinel-that-is-lost
  (with-resting-engine (engine)
    (let ((pool (engine-pool-state engine)))
      (request-sentinel engine)
      (wake-sentinel-if-nobody-waits engine pool)
      (await-progress-of-clock pool)
      (wake-sentinel engine)
      (await-progress-of-clock pool))))

(define-server-test the-clock-goes-on-while-the-sentinel-waits-after-a-failure
  (with-globals ((*tick* (* 2 *patience*)))
    (with-ready-engine (engine (constantly nil))
      (with-function (look-at-workers (original &rest arguments) (error "Broken."))
        (eventually ("the failure to be noted") (error-notes *service*))
        (await-progress-of-clock (engine-pool-state engine))
        (is (= 1 (statistic engine :failed)) "It waits.")))))

(define-server-test a-sentinel-destroyed-while-all-are-busy-has-a-successor
  (with-gated-engine (engine gate busy 2 :thread-limit 2)
    (send-each busy "w")
    (wait-for-statistic engine :busy 2)
    (let ((sentinel (sentinel-of engine)))
      (platform:destroy-thread sentinel)
      (eventually ("its end") (not (bt:thread-alive-p sentinel)))
      (open-gate gate)
      (expect-each busy "w")
      (is-true (successor engine sentinel)))))

(define-server-test the-blocking-engine-makes-a-successor-at-the-next-connection
  (with-running-engine (engine (constantly :close))
    (let ((sentinel (sentinel-of engine)))
      (platform:destroy-thread sentinel)
      (eventually ("its end") (lost-sentinel-p engine))
      (is (closed-p (connect-fake *listener*)))
      (is-true (successor engine sentinel)))))

(define-server-test stopping-an-engine-whose-sentinel-was-destroyed-signals-nothing
  (with-running-engine (engine (constantly :close))
    (platform:destroy-thread (sentinel-of engine))
    (is (null (stop-patiently engine)))
    (is (null (engine:accounting-problems engine)))))

(define-server-test a-soft-stop-does-not-need-the-sentinel-that-was-destroyed
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (exchange-octets connection "x")
      (let ((sentinel (sentinel-of engine)))
        (platform:destroy-thread sentinel)
        (eventually ("its end") (not (bt:thread-alive-p sentinel))))
      (is (null (engine:stop-engine engine :soft t :timeout *patience*)))
      (is (closed-by-server-p connection)))))

(define-server-test a-sentinel-that-fails-goes-on-and-says-so-once
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine (constantly nil))
      (let ((sentinel (sentinel-of engine)))
        (dolist (place '(housekeep-when-due rest-after-look))
          (let ((before (statistic engine :failed)))
            (call-with-function place (lambda (&rest arguments)
                                        (declare (ignore arguments))
                                        (error "Broken."))
                                (lambda ()
                                  (eventually ("several failures")
                                    (> (statistic engine :failed) (+ 3 before)))))
            (eventually ("it to recover")
              (null (sentinel-failing-parts (engine-sentinel engine))))))
        (is (eq sentinel (sentinel-of engine)))
        (is (bt:thread-alive-p sentinel))
        (is (= 2 (recorded-count (fake-notes *service*))))))))

(define-server-test housekeeping-that-fails-keeps-nobody-from-sizing-the-pool
  (with-gated-engine (engine gate blocked 6)
    (with-function (housekeep-when-due (original &rest arguments) (error "Broken."))
      (eventually ("the failure to be noted") (error-notes *service*))
      (send-each blocked "w")
      (with-connection (connection *port*)
        (is (equal "q" (exchange-octets connection "q"))))
      (wait-for-statistic engine :busy 6)
      (is (= 1 (length (error-notes *service*)))))))

(define-server-test (a-thread-that-dies-amid-the-making-of-a-sentinel-leaves-that-to-others
                     :needs :deferred-ends)
  (dolist (name '(replace-sentinel-p start-sentinel))
    (let* (*listener* *service* (made 0)
           (engine (make-engine (constantly :close))))
      (setf (engine-phase engine) :running
            (sentinel-lost-p (engine-sentinel engine)) t)
      (with-function (start-sentinel (original engine) (incf made))
        (call-with-function
         name (lambda (original &rest arguments)
                (prog1 (apply original arguments)
                  (destroy-here (bt:current-thread))))
         (lambda ()
           (platform:join-thread (bt:make-thread (lambda ()
                                                   (ensure-sentinel engine)
                                                   (await (make-gate))))
                                 *patience*))))
      (is (= made (sentinel-count (engine-sentinel engine))))
      (is (eq (zerop made) (sentinel-lost-p (engine-sentinel engine)))))))

(define-server-test a-sentinel-that-cannot-be-made-is-lost-still
  (let* (*listener* *service*
         (engine (make-engine (constantly :close))))
    (setf (engine-phase engine) :running
          (sentinel-lost-p (engine-sentinel engine)) t)
    (dolist (fail (list (lambda (&rest arguments) (declare (ignore arguments)) (error "No thread."))
                        (lambda (&rest arguments) (declare (ignore arguments)) (throw 'away nil))))
      (setf (launch-after engine) 0)
      (catch 'away
        ;; Of another file than who calls it: ECL calls the functions of one file directly.
        (call-with-function 'engine:make-engine-thread fail
                            (lambda () (ensure-sentinel engine))))
      (is-true (sentinel-lost-p (engine-sentinel engine)))
      (is (zerop (sentinel-count (engine-sentinel engine)))))))

(define-server-test the-sentinel-does-not-wait-for-programs-that-hold-up-a-workers-end
  (let ((gate (make-gate)) (held (make-gate)))
    (with-running-engine (engine (lambda (socket) (declare (ignore socket)) (await gate) :close)
                                 :ending (lambda () (await held)))
      (unwind-protect
           (progn
             (loop repeat 3 do (connect-fake *listener*))
             (wait-for-statistic engine :busy 3)
             (open-gate gate)
             (eventually ("some to leave the pool") (plusp (statistic engine :ended)))
             (join-exited-threads engine)
             ;; The sentinel takes them out to look at them.
             (is-true (eventually ("them to be kept for later")
                        (threads-exited (engine-threads engine))))
             (platform:destroy-thread
              (eventually ("the thread of a worker")
                (some #'worker-thread (engine-workers engine))))
             (is (closed-p (connect-fake *listener*)) "It is replaced."))
        (open-gate held)))))

(define-server-test stop-waits-no-longer-than-it-may-for-whom-nobody-can-wake
  (with-running-engine (engine (constantly :close))
    (setf (fake-deaf *listener*) t)
    (is (null (task-result (in-background ("stop") (engine:stop-engine engine :timeout 0)))))
    (setf (fake-woken *listener*) t)
    (wait-for-statistic engine :threads 0)))

(define-server-test stop-waits-no-longer-than-it-may-for-programs-that-hold-up-a-workers-end
  (let ((held (make-gate)))
    (with-running-engine (engine (constantly :close) :ending (lambda () (await held)))
      (unwind-protect
           (is (null (task-result (in-background ("stop")
                                    (engine:stop-engine engine :timeout 1/5)))))
        (open-gate held)))))

(define-server-test resources-are-released-when-the-sentinel-is-the-last-to-leave
  (with-ready-engine (engine (constantly nil))
    (with-function (await-sentinel (original engine seconds) nil)
      (stop-patiently engine)
      (eventually ("all to be given back") (not (engine-resources-held-p engine))))))

(define-server-test resources-are-released-though-the-sentinel-died-before-its-last-act
  (with-ready-engine (engine (constantly nil))
    (with-function (discount-sentinel (original engine) nil)
      (stop-patiently engine)
      (is (not (engine-resources-held-p engine))))))

(define-server-test workers-that-have-nothing-to-finish-are-not-reported-by-a-stop
  (with-ready-engine (engine (constantly nil))
    (let ((worker (make-pool-worker engine 1)))
      (loop for (state stamp rests-p) in '((:suspended 5 t) (:active 0 t) (:active 5 nil))
            do (setf (worker-state worker) state
                     (ready-worker-stamp worker) stamp)
               (is (eq rests-p (resting-p worker)) "~A ~A" state stamp)))))

;;; At rest

(defun check-rest (identities)
  "Checks that the threads IDENTITIES, once they have come to rest, wake twice a second at most."
  (let ((seconds 2))
    (is-true (eventually ("all to rest")
               (<= (switches-of identities seconds) (* 2 seconds))))))

(define-server-test at-rest-nobody-wakes-more-than-twice-a-second
  (let ((others (task-identities)))
    (with-ready-engine (engine (constantly nil) :standby 8 :idle-seconds 100)
      (with-connections (connections 20 *port*)
        (dolist (connection connections)
          (exchange-octets connection "x"))
        (check-rest (set-difference (task-identities) others))
        (is (= 20 (statistic engine :parked)))))))

(define-server-test at-rest-deadlines-count
  (with-ready-engine (engine (constantly nil))
    (eventually ("the sentinel to wait idly")
      (pool-state-sentinel-idle-p (engine-pool-state engine)))
    (with-connection (connection *port*)
      (let ((begun (platform:milliseconds)))
        (let-idle engine connection 2000)
        (is (closed-by-server-p connection))
        (is (<= 1900 (- (platform:milliseconds) begun)) "Not before its time.")))))

(define-server-test after-a-rest-blocked-handlers-hold-up-nobody
  (with-gated-engine (engine gate blocked 6)
    (eventually ("the sentinel to wait idly")
      (pool-state-sentinel-idle-p (engine-pool-state engine)))
    (send-each blocked "w")
    (with-connection (connection *port*)
      (is (equal "q" (exchange-octets connection "q"))))
    (wait-for-statistic engine :busy 6)))

(define-server-test the-time-of-a-request-is-right-while-the-sentinel-waits-idly
  (with-gated-engine (engine gate connections 1 :standby 4)
    (eventually ("the sentinel to wait idly")
      (pool-state-sentinel-idle-p (engine-pool-state engine)))
    (let ((begun (platform:milliseconds)))
      (send-each connections "w")
      (wait-for-statistic engine :busy 1)
      (let ((served (platform:milliseconds)))
        (poll (constantly nil) 1/2)
        (let ((least (/ (- (platform:milliseconds) served) 1000.0))
              (seconds (getf (first (engine:list-engine-connections engine)) :seconds))
              (most (/ (- (platform:milliseconds) begun) 1000.0)))
          (is (<= (- least 0.1) seconds (+ most 0.1)) "~A to ~A: ~A" least most seconds))))))
