(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite lifecycle :in engine
  :description "Start, stop, abandon.")

(in-suite lifecycle)

(define-server-test start-returns-when-a-worker-accepts
  (with-running-engine (engine (constantly :close) :standby 4)
    (is (plusp (statistic engine :standby)))
    (is (<= 0 (statistic engine :uptime) 100))
    (is (= 1 (sentinel-count (engine-sentinel engine))))
    (wait-for-statistic engine :standby 4)))

(define-server-test stop-leaves-nothing-a-hundred-times
  (loop repeat 100
        do (with-running-engine (engine (constantly :close))
             (connect-fake *listener*)
             (is (null (stop-patiently engine)))
             (is (null (engine:accounting-problems engine))))))

(define-server-test stop-ends-idle-connections
  (with-running-engine (engine (constantly :park))
    (let ((socket (connect-fake *listener*)))
      (wait-for-statistic engine :keep-alive-waiting 1)
      (is (null (stop-patiently engine)))
      (is (fake-closed socket)))))

(defmacro with-requests-in-progress ((engine count release &rest options) &body body)
  "Evaluates BODY with COUNT requests running in ENGINE until the gate RELEASE is opened."
  `(let ((,release (make-gate)) (entered (make-latch ,count)))
     (with-running-engine (,engine (lambda (socket)
                                     (declare (ignore socket))
                                     (count-down entered)
                                     (await ,release)
                                     :park)
                                   ,@options)
       (loop repeat ,count do (connect-fake *listener*))
       (await entered)
       (unwind-protect (progn ,@body)
         (open-gate ,release)))))

(define-server-test soft-stop-waits-for-every-request
  (with-requests-in-progress (engine 3 release)
    (let ((stopping (in-background ("stop") (engine:stop-engine engine :soft t))))
      (eventually ("the engine to drain") (engine:winding-down-p engine))
      (is (not (task-done-p stopping)))
      (open-gate release)
      (is (null (task-result stopping)))
      (is (= 3 (statistic engine :served)))
      (is (zerop (statistic engine :threads))))))

(define-server-test soft-stop-with-a-timeout-reports-what-it-leaves
  (with-requests-in-progress (engine 2 release)
    (let ((left (engine:stop-engine engine :soft t :timeout 1/10)))
      (is (= 2 (length left)))
      (is (every (lambda (worker) (eq :active (getf worker :state))) left)))
    (open-gate release)
    (wait-for-statistic engine :threads 0)))

(define-server-test hard-stop-leaves-a-running-request-to-end-by-itself
  (with-requests-in-progress (engine 1 release)
    (is (= 1 (length (engine:stop-engine engine :timeout 0))))
    (is (zerop (statistic engine :standby)))
    (open-gate release)
    (wait-for-statistic engine :threads 0)
    (is (= 1 (statistic engine :served)))))

(define-server-test queued-connections-are-served-by-a-soft-stop
  (with-requests-in-progress (engine 1 release :thread-limit 1 :accept-limit 9)
    (let ((queued (connect-fake *listener*)))
      (wait-for-statistic engine :queued 1)
      (let ((stopping (in-background ("stop") (engine:stop-engine engine :soft t))))
        (eventually ("the engine to drain") (not (engine:running-p engine)))
        (open-gate release)
        (is (null (task-result stopping))))
      (is (fake-closed queued))
      (is (= 2 (statistic engine :served))))))

(define-server-test a-client-not-yet-accepted-is-served-by-a-soft-stop-though-no-worker-may-serve
  (with-growing-limit (seconds)
    (with-globals ((*drain-seconds* seconds))
      (with-requests-in-progress (engine 1 release :thread-limit 1)
        (let* ((*limit-began* (platform:microseconds))
               (sockets (loop repeat 5 collect (connect-fake *listener*)))
               (stopping (in-background ("stop") (engine:stop-engine engine :soft t))))
          (promptly (wait-for-statistic engine :accepted 6))
          (open-gate release)
          (is (null (task-result stopping 300)))
          (is (every #'fake-closed sockets))
          (is (= 6 (statistic engine :served)))
          (is (zerop (statistic engine :refused)))
          (is (null (engine:accounting-problems engine))))))))

(define-server-test those-who-come-when-a-soft-stop-begins-are-served-though-no-worker-waits
  (with-growing-limit (seconds)
    (with-globals ((*arrival-seconds* seconds) (*drain-seconds* seconds))
      (with-requests-in-progress (engine 1 release)
        (let* ((*limit-began* (platform:microseconds))
               (stopping (in-background ("stop") (engine:stop-engine engine :soft t)))
               (sockets (promptly
                          (eventually ("the engine to drain") (draining-p engine))
                          (prog1 (loop repeat 5 collect (connect-fake *listener*))
                            (wait-for-statistic engine :accepted 6)))))
          (open-gate release)
          (is (null (task-result stopping 300)))
          (is (every #'fake-closed sockets))
          (is (= 6 (statistic engine :served))))))))

(defun destroy-who-serves (engine)
  "Destroys the worker of ENGINE that serves, and waits until it has left the pool."
  (let ((worker (find :serving (engine-workers engine) :key #'worker-state)))
    (platform:destroy-thread (worker-thread worker))
    (eventually ("the worker to end") (eq :ended (worker-state worker)))))

(define-server-test a-queue-whose-last-worker-was-destroyed-is-served
  (with-requests-in-progress (engine 1 release :thread-limit 1 :accept-limit 9)
    (let ((queued (loop repeat 2 collect (connect-fake *listener*))))
      (wait-for-statistic engine :queued 2)
      (destroy-who-serves engine)
      (open-gate release)
      (loop for count from 1 to 2       ; they are kept, and each keeps its worker
            do (wait-for-statistic engine :served count)
               (mapc (lambda (socket) (platform:shut-down socket :input)) queued))
      (is (every #'closed-p queued)))))

(define-server-test a-queue-whose-last-worker-was-destroyed-is-served-by-a-soft-stop
  (with-requests-in-progress (engine 1 release :thread-limit 1 :accept-limit 9)
    (let ((queued (loop repeat 2 collect (connect-fake *listener*))))
      (wait-for-statistic engine :queued 2)
      (let ((stopping (in-background ("stop") (engine:stop-engine engine :soft t))))
        (eventually ("the engine to accept no more") (not (accepting-p engine)))
        (wait-for-statistic engine :threads 1)
        (destroy-who-serves engine)
        (open-gate release)
        (is (null (task-result stopping)))
        (is (every #'fake-closed queued))
        (is (= 2 (statistic engine :served)))
        (is (null (engine:accounting-problems engine)))))))

(define-server-test queued-connections-are-closed-by-a-hard-stop
  (with-requests-in-progress (engine 1 release :thread-limit 1 :accept-limit 9)
    (let ((queued (connect-fake *listener*)))
      (wait-for-statistic engine :queued 1)
      (is (= 1 (length (engine:stop-engine engine :timeout 0))))
      (is (fake-closed queued))
      (open-gate release)
      (wait-for-statistic engine :open 0))))

(define-server-test stop-in-a-worker-is-refused
  (let ((refusal (make-recorder)) engine)
    (with-running-engine (the-engine (lambda (socket)
                                       (declare (ignore socket))
                                       (handler-case (engine:stop-engine engine)
                                         (engine:stop-from-worker (condition)
                                           (record refusal condition)))
                                       :close))
      (setf engine the-engine)
      (is (closed-p (connect-fake *listener*)))
      (is (= 1 (recorded-count refusal)))
      (is (closed-p (connect-fake *listener*)) "The engine goes on."))))

(define-server-test two-who-stop-at-once-both-return
  (with-requests-in-progress (engine 1 release)
    (let ((stops (loop repeat 2
                       collect (in-background ("stop")
                                 (engine:stop-engine engine :soft t)))))
      (eventually ("the engine to drain") (engine:winding-down-p engine))
      (open-gate release)
      (is (every #'null (mapcar #'task-result stops))))))

(defun check-waiting-for-who-accepts (engine)
  "Checks that nobody has stopped ENGINE while another who stops it may use its listener."
  (let ((within (make-gate)) (gate (make-gate)) (others '()))
    (with-function (accept-rest (original engine seconds)
                     (open-gate within)
                     (await gate))
      (let ((soft (in-background ("soft stop") (engine:stop-engine engine :soft t))))
        (await within)
        (dolist (stop (list (lambda () (engine:stop-engine engine :timeout 0))
                            (lambda () (engine:stop-engine engine :soft t :timeout 0))
                            (lambda () (engine:abandon-engine engine))))
          (let ((other (start-task "another stop" stop)))
            (is (not (poll (lambda () (task-done-p other)) 1/4)))
            (push other others)))
        (open-gate gate)
        (mapc #'task-result (cons soft others))
        (is (zerop (accept-users (engine-accept-state engine))))))))

(define-server-test nobody-has-stopped-an-engine-while-another-who-stops-it-may-accept
  (with-running-engine (engine (constantly :close))
    (check-waiting-for-who-accepts engine)))

(define-server-test abandoning-destroys-whatever-runs
  (with-requests-in-progress (engine 2 release)
    (engine:abandon-engine engine)
    (is (null (engine:accounting-problems engine)))
    (is (zerop (statistic engine :served)))))

(define-server-test abandoning-closes-who-is-queued
  (with-requests-in-progress (engine 1 release :thread-limit 1 :accept-limit 9)
    (let ((queued (connect-fake *listener*)))
      (wait-for-statistic engine :queued 1)
      (engine:abandon-engine engine)
      (is (fake-closed queued))
      (is (zerop (statistic engine :open))))))

(test an-engine-that-did-nothing-has-all-statistics
  (let ((statistics (engine:no-statistics)))
    (is (equal (no-expirations) (getf statistics :expired-by)))
    (is (null (getf statistics :ready-wait)))
    (is (eql 0 (getf statistics :served)))))

(define-server-test counts-that-do-not-add-up-are-told
  (with-running-engine (engine (constantly :close))
    (stop-patiently engine)
    (incf (svref (engine-counts engine) (state-index :serving)))
    (platform:counter-add (tally-open (engine-tally engine)) 1)
    (is (= 2 (length (engine:accounting-problems engine))))
    (decf (svref (engine-counts engine) (state-index :serving)))
    (platform:counter-add (tally-open (engine-tally engine)) -1)))
