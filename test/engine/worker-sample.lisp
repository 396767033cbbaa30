(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What the sentinel sees of workers: who is stuck, and how many run.

(in-suite pool-sizing)

(defmacro with-suspect ((worker engine controller run-time &optional (state :running)) &body body)
  "Evaluates BODY with a WORKER whose request began at tick 1, whose thread has run for RUN-TIME, in
microseconds, and of which the system tells STATE."
  `(with-still-pool (,engine ,controller)
     (let ((,worker (first (pretend-workers ,engine 1 :active))))
       (setf (engine::ready-worker-stamp ,worker) 1)
       (with-function (platform:thread-run-time (original identity) ,run-time)
         (with-function (engine::ask-state (original worker) ,state)
           ,@body))
       (forget-workers ,engine))))

(define-server-test who-computes-for-long-is-stuck-and-not-before
  (let ((run-time 1000) (limit (* engine::*computing-ticks* engine::*tick-microseconds*)))
    (with-suspect (worker engine controller run-time)
      (flet ((stuck-p (tick) (engine::stuck-p controller worker tick)))
        (is (not (stuck-p 100)) "It is asked about for the first time.")
        (incf run-time limit)
        (is (not (stuck-p 101)))
        (incf run-time 1)
        (is (stuck-p 102))
        (setf run-time 0)
        (is (stuck-p 103) "It has been found so.")
        (setf (engine::ready-worker-stamp worker) 102
              run-time (* 2 limit))
        (is (not (stuck-p 103)) "That is another request.")
        (is (not (stuck-p 104)))
        (setf (engine::ready-worker-stamp worker) 0)
        (is (not (stuck-p 105)) "It waits.")))))

(define-server-test who-has-just-begun-is-not-asked-about
  (with-suspect (worker engine controller 0 :blocked)
    (is (not (engine::stuck-p controller worker 1)))
    (is (not (engine::stuck-p controller worker 2)))
    (is (engine::stuck-p controller worker 3))))

(define-server-test who-stands-still-is-blocked-where-the-system-does-not-tell
  (let ((run-time 1000))
    (with-suspect (worker engine controller run-time nil)
      (flet ((blocked-p () (engine::seems-blocked-p worker)))
        (is (not (blocked-p)) "It is asked about for the first time.")
        (engine::computing-p worker 1)
        (is (blocked-p))
        (incf run-time (floor engine::*tick-microseconds* 4))
        (is (not (blocked-p)))
        (incf run-time 10)
        (is (blocked-p))))))

(define-server-test who-runs-is-not-blocked-though-it-stands-still
  (with-suspect (worker engine controller 1000 :running)
    (engine::computing-p worker 1)
    (is (not (engine::seems-blocked-p worker)))))

(define-server-test after-many-blocked-in-a-row-few-are-asked-about
  (let ((asked 0) (blocked t))
    (with-still-pool (engine controller)
      (with-function (engine::seems-blocked-p (original worker) (incf asked) blocked)
        (flet ((ask (times)
                 (setf asked 0)
                 (loop repeat times count (engine::blocked-p controller nil))))
          (is (= 8 (ask 8)))
          (is (= 8 asked))
          (is (= 1000 (ask 1000)))
          (is (< 0 asked 500))
          (setf blocked nil)
          (loop repeat 10000 while (engine::blocked-p controller nil))
          (is (= 0 (ask 5)) "One that was not ended that.")
          (is (= 5 asked)))))))

(define-server-test the-first-who-is-blocked-has-the-next-samples-follow-closely
  (with-still-pool (engine controller)
    (setf (engine::controller-ticks-without-stuck controller) engine::*fast-sampling-ticks*)
    (with-function (engine::seems-blocked-p (original worker) t)
      (is (engine::slow-sampling-p controller))
      (is (not (engine::blocked-p controller nil)))
      (is (not (engine::slow-sampling-p controller)))
      (is (engine::blocked-p controller nil)))))

(define-server-test a-sample-counts-who-is-at-the-ready-set
  (with-still-pool (engine controller)
    (destructuring-bind (free serving brief long)
        (pretend-workers engine 4 :active)
      (declare (ignore free))
      (pretend-workers engine 2 :suspended)
      (pretend-workers engine 1 :starting)
      (let ((tick 1000))
        (loop for (worker stamp) in `((,serving ,tick)
                                      (,brief ,(- tick engine::*brief-ticks*))
                                      (,long ,(- tick engine::*brief-ticks* 1)))
              do (setf (engine::ready-worker-stamp worker) stamp))
        (with-function (engine::blocked-p (original controller worker) t)
          (let ((sample (engine::sample-workers engine controller tick)))
            (is (= 2 (engine::worker-sample-stuck sample)))
            (is (= 1 (engine::worker-sample-briefly-stuck sample)))
            (is (= 2 (engine::worker-sample-available sample)))
            (is (= 1 (engine::worker-sample-serving sample)))
            (is (eq serving (engine::worker-sample-serving-one sample))))))
      (forget-workers engine))))

(define-server-test nobody-opens-anything-to-ask-about-a-worker-that-has-ended
  (with-still-pool (engine controller)
    (let ((worker (first (pretend-workers engine 1 :active))))
      (setf (engine::ready-worker-identity worker) (platform:thread-identity))
      (let ((status (engine::worker-status worker)))
        (is (integerp status))
        (is (eql status (engine::worker-status worker)))
        (forget-workers engine)
        (is (equal (list status) (engine::engine-status-descriptors engine)))
        (setf (engine::ready-worker-status worker) nil)
        (is (null (engine::worker-status worker)))
        (engine::close-status-descriptors engine)
        (is (null (descriptor-target status)))))))

(define-server-test an-excess-that-was-small-again-is-counted-anew
  (with-workers (engine controller 20 :running)
    (let ((sample (engine::sample-workers engine controller 2)))
      (loop repeat 200 do (engine::estimated-runnable controller sample 3))
      (is (< 19 (engine::estimated-runnable controller sample 3)))
      (is (zerop (engine::estimated-runnable controller sample 20)))
      (is (> 2 (engine::estimated-runnable controller sample 3))))))
