(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite pacing :in engine
  :description "What the sentinel sees of workers, and what it concludes.")

(in-suite pacing)

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
             (funcall function engine (engine::make-pacemaker 2)))
        (bt:release-lock lock)
        (task-result task)
        (mapc #'close-status (engine::engine-workers engine))
        (setf (engine::engine-workers engine) '())))))

(defun close-status (worker)
  (when (engine::ready-worker-status worker)
    (platform:close-descriptor (engine::ready-worker-status worker))))

(defmacro with-workers ((engine pacemaker count state) &body body)
  "Evaluates BODY with an ENGINE that is not started, a PACEMAKER for two processors, and COUNT
workers that serve since a tick: :RUNNING in this thread, or :BLOCKED in another."
  `(call-with-workers (lambda (,engine ,pacemaker) ,@body) ,count (eq ,state :blocked)))

(defun surplus-of (ticks engine pacemaker)
  "How many workers are told to sit down when the sentinel looks TICKS times."
  (loop with pace = (engine::engine-pace engine)
        repeat ticks
        do (engine::adjust-surplus pace pacemaker (engine::take-census engine pacemaker 2) 0)
        sum (engine::pace-surplus pace)))

(define-server-test who-runs-beyond-what-is-needed-is-to-sit-down
  (with-workers (engine pacemaker 20 :running)
    (surplus-of 100 engine pacemaker)
    (is (<= 169 (surplus-of 320 engine pacemaker) 171) "320/32 of 20 less 3.")))

(define-server-test a-small-crowd-is-left-alone
  (with-workers (engine pacemaker 3 :running)
    (is (zerop (surplus-of 100 engine pacemaker)))))

;;; A thread that is blocked runs now and then, for the collector.

(define-server-test who-is-blocked-is-no-crowd
  (with-workers (engine pacemaker 20 :blocked)
    (is-true (eventually ("nobody to be told to sit down")
               (zerop (surplus-of 100 engine pacemaker))))))

(define-server-test the-blocked-are-seen-before-they-are-suspects
  (with-workers (engine pacemaker 20 :blocked)
    (let ((census (engine::take-census engine pacemaker 2)))
      (is (zerop (engine::census-stuck census)))
      (is (= 20 (engine::census-unsettled census)))
      (eventually ("nearly all to be seen")
        (<= 19 (engine::unseen-blocked engine pacemaker census) 20))
      (pretend-to-wait engine)
      (is (zerop (engine::unseen-blocked engine pacemaker census)) "Somebody waits."))))

;;; In all calm whoever was blocked for a moment is a suspect.

(define-server-test in-calm-one-look-makes-nobody-stuck
  (with-workers (engine pacemaker 1 :blocked)
    (setf (engine::pacemaker-calm-ticks pacemaker) engine::*watchful-ticks*)
    (is-true (eventually ("the first look at a blocked thread")
               (is (zerop (engine::census-stuck (engine::take-census engine pacemaker 5))))
               (not (engine::calm-p pacemaker))))
    (is (zerop (engine::ready-worker-verdict (first (engine::engine-workers engine)))))
    (is-true (eventually ("the worker to be stuck at one of the next looks")
               (= 1 (engine::census-stuck (engine::take-census engine pacemaker 6)))))))

(define-server-test as-many-leave-the-crowd-as-should
  (with-resting-engine (engine)
    (let ((pace (engine::engine-pace engine)))
      (is (not (engine::leave-crowd-p pace)))
      (setf (engine::pace-surplus pace) 2)
      (is (equal '(t t nil) (loop repeat 3 collect (engine::leave-crowd-p pace)))))))
