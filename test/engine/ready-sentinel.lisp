(in-package #:hunchentoot-recycling-taskmaster-test)

;;; How the sentinel rests after a look.

(in-suite pool-sizing)

(defun rest-after (engine controller found &key (looks-without-need 0) (idle-looks 0))
  "How the sentinel rests after a look that FOUND what ADJUST-POOL returns, the decision that was
counted; and for how many ticks it naps then."
  (setf (engine::controller-looks-without-need controller) looks-without-need
        (engine::controller-idle-looks controller) idle-looks)
  (let ((naps (make-recorder)) (idle-waits (make-recorder)))
    (values (first (decisions-of (controller)
                     (recording (naps platform:nap)
                       (recording (idle-waits engine::idle-wait)
                         (engine::rest-after-look engine controller found)))))
            (and (recorded naps)
                 (/ (first (first (recorded naps))) engine::*tick-microseconds*)))))

(define-server-test the-sentinel-naps-for-a-tick-while-it-may-be-needed-and-longer-otherwise
  (with-still-pool (engine controller)
    (let ((long engine::*watch-looks*))
      (is (equal '(:short-nap 1)
                 (multiple-value-list (rest-after engine controller :needed :looks-without-need long))))
      (is (eq :short-nap (rest-after engine controller :busy :looks-without-need (- long 2))))
      (is (equal (list :long-nap engine::*long-nap-ticks*)
                 (multiple-value-list (rest-after engine controller :busy
                                                  :looks-without-need (1- long) :idle-looks 99))))
      (is (eq :long-nap (rest-after engine controller nil :looks-without-need long :idle-looks 98)))
      (is (equal '(:idle-wait nil)
                 (multiple-value-list (rest-after engine controller nil
                                                  :looks-without-need long :idle-looks 99))))
      (is (eq :long-nap (rest-after engine controller :busy :looks-without-need long :idle-looks 99))
          "No worker waits, or some are blocked.")
      (setf (engine::engine-phase engine) :draining)
      (is (eq :long-nap (rest-after engine controller nil :looks-without-need long :idle-looks 99))
          "Somebody waits for the end of the drain."))))

(define-server-test a-sentinel-that-was-woken-looks-closely
  (with-still-pool (engine controller)
    (setf (engine::controller-looks-without-need controller) engine::*watch-looks*
          (engine::controller-idle-looks controller) engine::*idle-looks*)
    (with-function (engine::idle-wait (original engine housekeeping) t)
      (engine::rest-after-look engine controller nil))
    (is (not (engine::long-naps-p controller)))
    (is (zerop (engine::controller-idle-looks controller)))))

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
                                                    (engine:set-deadline connection :idle deadline
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
