(in-package #:hunchentoot-recycling-taskmaster-test)

;;; How long the sentinel rests after a sample.

(in-suite pool-sizing)

(defun naps-after (engine controller found)
  "For how many ticks the sentinel naps after a look that FOUND what ADJUST-POOL returns; :IDLE when
it waits idly."
  (let ((naps (make-recorder)) (idle-waits (make-recorder)))
    (recording (naps platform:nap)
      (recording (idle-waits engine::idle-wait)
        (engine::rest-after-sample engine controller found)))
    (if (recorded idle-waits)
        :idle
        (let ((ticks (/ (first (first (recorded naps))) engine::*tick-microseconds*)))
          (is (= ticks (engine::controller-last-nap-ticks controller)))
          ticks))))

(define-server-test the-sentinel-naps-for-a-tick-while-it-may-be-needed-and-longer-otherwise
  (with-still-pool (engine controller)
    (flet ((naps (found) (naps-after engine controller found)))
      (setf (engine::controller-ticks-without-stuck controller) engine::*fast-sampling-ticks*)
      (is (= 1 (naps :stuck)))
      (is (= 1 (naps :busy)) "Somebody was stuck just now.")
      (loop repeat (- engine::*fast-sampling-ticks* 2) do (is (= 1 (naps nil))))
      (is (= 0 (engine::controller-idle-naps controller)) "Those were no long naps.")
      (is (= engine::*long-nap-ticks* (naps nil)))
      (is (= engine::*long-nap-ticks* (naps :busy)))
      (setf (engine::controller-samples-without-deficit controller) engine::*samples-before-back-off*)
      (is (= 1 (naps :stuck)))
      (incf (engine::controller-samples-without-deficit controller))
      (is (= engine::*long-nap-ticks* (naps :stuck)) "It found nobody lacking several times.")
      (is (= 0 (engine::controller-ticks-without-stuck controller)))
      (setf (engine::engine-phase engine) :draining)
      (is (= engine::*long-nap-ticks* (naps nil)) "Somebody waits for the end of the drain."))))

(define-server-test the-sentinel-waits-idly-after-many-naps-without-need
  (with-still-pool (engine controller)
    (flet ((naps (found) (naps-after engine controller found)))
      (dolist (busy '(:busy :stuck))
        (setf (engine::controller-ticks-without-stuck controller) (* 2 engine::*fast-sampling-ticks*)
              (engine::controller-idle-naps controller) 0)
        (loop repeat (1- engine::*naps-before-idle-wait*) do (is (eql engine::*long-nap-ticks* (naps nil))))
        (is (eq :idle (naps nil)))
        (is (= 1 (engine::controller-last-nap-ticks controller)))
        (is (eq :idle (naps nil)) "Nobody woke it.")
        (is (engine::slow-sampling-p controller))
        (naps busy)
        (setf (engine::controller-ticks-without-stuck controller) (* 2 engine::*fast-sampling-ticks*))
        (is (eql engine::*long-nap-ticks* (naps nil)) "It was ~A since." busy)))))

(define-server-test a-sentinel-that-was-woken-samples-fast
  (with-still-pool (engine controller)
    (setf (engine::controller-ticks-without-stuck controller) (* 2 engine::*fast-sampling-ticks*)
          (engine::controller-idle-naps controller) engine::*naps-before-idle-wait*)
    (with-function (engine::idle-wait (original engine housekeeping) t)
      (engine::rest-after-sample engine controller nil))
    (is (not (engine::slow-sampling-p controller)))
    (is (zerop (engine::controller-idle-naps controller)))))

(defmacro within-a-second (&body body)
  "Evaluates BODY; checks that this takes less than what it may wait for."
  `(let ((begun (platform:milliseconds)))
     (multiple-value-prog1 (progn ,@body)
       (is (< (- (platform:milliseconds) begun) 5000) "It waited."))))

(define-server-test no-idle-wait-when-nobody-waits-or-all-is-over
  (with-globals ((engine::*tick* 8) (engine::*idle-tick* 8))
    (with-still-pool (engine controller)
      (within-a-second (is (not (engine::idle-wait engine (platform:milliseconds)))))
      (is (not (engine::pool-state-sentinel-idle-p (engine::engine-pool-state engine))))
      (pretend-to-wait engine)
      (setf (engine::engine-phase engine) :stopped)
      (within-a-second (is (not (engine::idle-wait engine (platform:milliseconds))))))))

(define-server-test a-sentinel-that-waits-idly-is-woken-and-says-so
  (with-globals ((engine::*tick* 8) (engine::*idle-tick* 8))
    (with-still-pool (engine controller)
      (pretend-to-wait engine)
      (let* ((pool (engine::engine-pool-state engine))
             (task (in-background ("sentinel") (engine::idle-wait engine (platform:milliseconds)))))
        (eventually ("it to wait idly") (engine::pool-state-sentinel-idle-p pool))
        (is (engine::pool-state-clock-stopped-p pool) "Nobody ticks meanwhile.")
        (engine::wake-sentinel-if-nobody-waits engine pool)
        (is (engine::pool-state-sentinel-idle-p pool) "Somebody waits.")
        (platform:counter-add (engine::pool-state-waiting pool) -1)
        (within-a-second
          (engine::wake-sentinel-if-nobody-waits engine pool)
          (is (task-result task)))
        (is (not (engine::pool-state-sentinel-idle-p pool)))
        (is (not (engine::pool-state-clock-stopped-p pool)))))))

(define-server-test a-sentinel-that-is-woken-while-it-looks-at-deadlines-does-not-rest
  (with-globals ((engine::*tick* 8) (engine::*idle-tick* 8))
    (with-still-pool (engine controller)
      (pretend-to-wait engine)
      (with-function (engine::next-deadline (original engine)
                       (prog1 (funcall original engine)
                         (engine::wake-sentinel engine)))
        (within-a-second (is-true (engine::idle-wait engine (platform:milliseconds))))))))

(define-server-test the-sentinel-waits-idly-until-the-next-deadline
  (with-globals ((engine::*tick* 1/4) (engine::*idle-tick* 20))
    (with-resting-engine (engine)
      (setf (engine::engine-phase engine) :running)
      (flet ((seconds (&rest deadlines)
               (with-function (engine::map-connections (original function table)
                                (loop for deadline in deadlines
                                      do (funcall function
                                                  (let ((connection (engine::make-connection nil)))
                                                    (engine::set-deadline connection :idle deadline
                                                                          (platform:milliseconds))
                                                    connection))))
                 (engine::idle-wait-seconds engine (platform:milliseconds)))))
        (is (= 20 (seconds)))
        (is (= 20 (seconds nil)))
        (is (= 20 (seconds 100)) "So as to look now and then.")
        (is (<= 5 (seconds 10) 10))
        (is (<= 5 (seconds 15 nil 10 18) 10) "The first one counts.")
        (is (<= 1/5 (seconds 10 0) 1/4) "Not less than until the next sweep.")
        (setf (engine::engine-accept-again-p engine) t)
        (is (= 1/4 (seconds)))
        (setf (engine::engine-accept-again-p engine) nil
              (engine::engine-thread-trouble-p engine) t)
        (is (= 1/4 (seconds)))
        (setf (engine::engine-thread-trouble-p engine) nil
              (engine::engine-phase engine) :draining)
        (is (= 1/4 (seconds)))))))

(define-server-test the-sentinel-finds-out-at-its-start-whether-the-system-tells-of-threads
  (let ((checked (make-recorder)))
    (recording (checked engine::check-thread-states)
      (with-ready-engine (engine (constantly nil))
        (eventually ("the check") (recorded checked))))))
