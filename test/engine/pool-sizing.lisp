(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite pool-sizing :in engine
  :description "What the sentinel sees of workers, and what it concludes.")

(in-suite pool-sizing)

(defun worker-of-thread (engine identity)
  "A worker of ENGINE that seems to serve, in the thread with IDENTITY."
  (let ((worker (engine::make-pool-worker engine 1)))
    (setf (engine::worker-state worker) :active
          (engine::ready-worker-identity worker) identity
          (engine::ready-worker-stamp worker) 1)
    worker))

(defun call-with-workers (function count blocked-p)
  (with-resting-engine (engine)
    ;; A lock, since who awaits a gate looks now and then, perhaps just when this thread does.
    (let* ((lock (bt:make-lock "held by the test")) (identities (make-recorder))
           (task (progn (bt:acquire-lock lock)
                        (in-background ("blocked")
                          (record identities (platform:thread-identity))
                          (bt:with-lock-held (lock))))))
      (unwind-protect
           (progn
             (eventually ("the thread to begin") (recorded identities))
             (setf (engine::engine-workers engine)
                   (loop repeat count
                         collect (worker-of-thread engine (if blocked-p
                                                              (first (recorded identities))
                                                              (platform:thread-identity)))))
             (funcall function engine (engine::make-controller 2)))
        (bt:release-lock lock)
        (task-result task)
        (mapc #'close-status (engine::engine-workers engine))
        (setf (engine::engine-workers engine) '())))))

(defun close-status (worker)
  (when (engine::ready-worker-status worker)
    (platform:close-descriptor (engine::ready-worker-status worker))))

(defmacro with-workers ((engine controller count state) &body body)
  "Evaluates BODY with an ENGINE that is not started, a CONTROLLER for two processors, and COUNT
workers that serve since a tick: :RUNNING in this thread, or :BLOCKED in another."
  `(call-with-workers (lambda (,engine ,controller) ,@body) ,count (eq ,state :blocked)))

(defun excess-of (ticks engine controller)
  "How many workers are told to be suspended when the sentinel looks TICKS times."
  (loop with pool = (engine::engine-pool-state engine)
        repeat ticks
        do (engine::adjust-excess pool controller (engine::sample-workers engine controller 2) 0)
        sum (engine::pool-state-excess pool)))

(define-server-test who-runs-beyond-what-is-needed-is-to-be-suspended
  (with-workers (engine controller 20 :running)
    (excess-of 100 engine controller)
    (is (<= 169 (excess-of 320 engine controller) 171) "320/32 of 20 less 3.")))

(define-server-test a-small-excess-is-left-alone
  (with-workers (engine controller 3 :running)
    (is (zerop (excess-of 100 engine controller)))))

;;; A thread that is blocked runs now and then, for the collector.

(define-server-test who-is-blocked-is-no-excess
  (with-workers (engine controller 20 :blocked)
    (is-true (eventually ("nobody to be told to be suspended")
               (zerop (excess-of 100 engine controller))))))

(define-server-test the-blocked-are-seen-before-they-are-suspects
  (with-workers (engine controller 20 :blocked)
    (let ((sample (engine::sample-workers engine controller 2)))
      (is (zerop (engine::worker-sample-stuck sample)))
      (is (= 20 (engine::worker-sample-serving sample)))
      (eventually ("nearly all to be seen")
        (<= 19 (engine::estimated-blocked engine controller sample) 20))
      (pretend-to-wait engine)
      (is (zerop (engine::estimated-blocked engine controller sample)) "Somebody waits."))))

;;; While nobody is stuck for long whoever was blocked for a moment is a suspect.

(define-server-test while-sampling-is-slow-one-sample-makes-nobody-stuck
  (with-workers (engine controller 1 :blocked)
    (setf (engine::controller-ticks-without-stuck controller) engine::*fast-sampling-ticks*)
    (is-true (eventually ("the first look at a blocked thread")
               (is (zerop (engine::worker-sample-stuck (engine::sample-workers engine controller 5))))
               (not (engine::slow-sampling-p controller))))
    (is (zerop (engine::ready-worker-stuck-stamp (first (engine::engine-workers engine)))))
    (is-true (eventually ("the worker to be stuck at one of the next looks")
               (= 1 (engine::worker-sample-stuck (engine::sample-workers engine controller 6)))))))

(define-server-test as-many-count-as-excess-as-should
  (with-resting-engine (engine)
    (let ((pool (engine::engine-pool-state engine)))
      (is (not (engine::one-of-excess-p pool)))
      (setf (engine::pool-state-excess pool) 2)
      (is (equal '(t t nil) (loop repeat 3 collect (engine::one-of-excess-p pool)))))))
