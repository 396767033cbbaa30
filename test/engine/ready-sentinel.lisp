(in-package #:hunchentoot-recycling-taskmaster-test)

;;; How the sentinel rests after a look.

(in-suite pool-sizing)

(defun rest-after (engine controller found &key (looks-without-need 0) (idle-looks 0))
  "How the sentinel rests after a look that FOUND what ADJUST-POOL returns, the decision that was
counted; and for how many ticks it naps then."
  (setf (controller-looks-without-need controller) looks-without-need
        (controller-idle-looks controller) idle-looks)
  (let ((naps (make-recorder)) (idle-waits (make-recorder)))
    (values (first (decisions-of (controller)
                     (recording (naps platform:nap)
                       (recording (idle-waits idle-wait)
                         (rest-after-look engine controller found)))))
            (and (recorded naps)
                 (/ (first (first (recorded naps))) *tick-microseconds*)))))

(define-server-test the-sentinel-naps-for-a-tick-while-it-may-be-needed-and-longer-otherwise
  (with-still-pool (engine controller)
    (let ((long *watch-looks*))
      (is (equal '(:short-nap 1)
                 (multiple-value-list (rest-after engine controller :needed
                                                  :looks-without-need long))))
      (is (eq :short-nap (rest-after engine controller :busy :looks-without-need (- long 2))))
      (is (equal (list :long-nap *long-nap-ticks*)
                 (multiple-value-list (rest-after engine controller :busy
                                                  :looks-without-need (1- long) :idle-looks 99))))
      (is (eq :long-nap (rest-after engine controller nil :looks-without-need long :idle-looks 98)))
      (is (equal '(:idle-wait nil)
                 (multiple-value-list (rest-after engine controller nil
                                                  :looks-without-need long :idle-looks 99))))
      (is (eq :long-nap (rest-after engine controller :busy
                                    :looks-without-need long :idle-looks 99))
          "No worker waits, or some are blocked.")
      (setf (engine-phase engine) :draining)
      (is (eq :long-nap (rest-after engine controller nil :looks-without-need long :idle-looks 99))
          "Somebody waits for the end of the drain."))))

(define-server-test a-sentinel-that-was-woken-looks-closely
  (with-still-pool (engine controller)
    (setf (controller-looks-without-need controller) *watch-looks*
          (controller-idle-looks controller) *idle-looks*)
    (with-function (idle-wait (original engine housekeeping) t)
      (rest-after-look engine controller nil))
    (is (not (long-naps-p controller)))
    (is (zerop (controller-idle-looks controller)))))

(defmacro within-a-second (&body body)
  "Evaluates BODY; checks that this takes less than what it may wait for."
  `(let ((begun (platform:milliseconds)))
     (multiple-value-prog1 (progn ,@body)
       (is (< (- (platform:milliseconds) begun) 5000) "It waited."))))

(define-server-test no-idle-wait-when-nobody-waits-or-all-is-over
  (with-globals ((*tick* 8) (*idle-tick* 8))
    (with-still-pool (engine controller)
      (within-a-second (is (not (idle-wait engine (platform:milliseconds)))))
      (is (not (pool-state-sentinel-idle-p (engine-pool-state engine))))
      (pretend-to-wait engine)
      (setf (engine-phase engine) :stopped)
      (within-a-second (is (not (idle-wait engine (platform:milliseconds))))))))

(define-server-test a-sentinel-that-waits-idly-is-woken-and-says-so
  (with-globals ((*tick* 8) (*idle-tick* 8))
    (with-still-pool (engine controller)
      (pretend-to-wait engine)
      (let* ((pool (engine-pool-state engine))
             (task (in-background ("sentinel") (idle-wait engine (platform:milliseconds)))))
        (eventually ("it to wait idly") (pool-state-sentinel-idle-p pool))
        (is (pool-state-clock-stopped-p pool) "Nobody ticks meanwhile.")
        (wake-sentinel-if-nobody-waits engine pool)
        (is (pool-state-sentinel-idle-p pool) "Somebody waits.")
        (platform:counter-add (pool-state-waiting pool) -1)
        (within-a-second
          (wake-sentinel-if-nobody-waits engine pool)
          (is (task-result task)))
        (is (not (pool-state-sentinel-idle-p pool)))
        (is (not (pool-state-clock-stopped-p pool)))))))

(define-server-test a-sentinel-that-is-woken-while-it-looks-at-deadlines-does-not-rest
  (with-globals ((*tick* 8) (*idle-tick* 8))
    (with-still-pool (engine controller)
      (pretend-to-wait engine)
      (with-function (next-deadline (original engine)
                       (prog1 (funcall original engine)
                         (wake-sentinel engine)))
        (within-a-second (is-true (idle-wait engine (platform:milliseconds))))))))

(define-server-test the-sentinel-waits-idly-until-the-next-deadline
  (with-globals ((*tick* 1/4) (*idle-tick* 20))
    (with-resting-engine (engine)
      (setf (engine-phase engine) :running)
      (flet ((seconds (&rest deadlines)
               (with-function (map-connections (original function table)
                                (loop for deadline in deadlines
                                      do (funcall function
                                                  (let ((connection (make-connection nil)))
                                                    (engine:set-deadline connection :idle deadline
                                                                          (platform:milliseconds))
                                                    connection))))
                 (idle-wait-seconds engine (platform:milliseconds)))))
        (is (= 20 (seconds)))
        (is (= 20 (seconds nil)))
        (is (= 20 (seconds 100)) "So as to look now and then.")
        (is (<= 5 (seconds 10) 10))
        (is (<= 5 (seconds 15 nil 10 18) 10) "The first one counts.")
        (is (<= 1/5 (seconds 10 0) 1/4) "Not less than until the next sweep.")
        (setf (accept-again-p (engine-accept-state engine)) t)
        (is (= 1/4 (seconds)))
        (setf (accept-again-p (engine-accept-state engine)) nil
              (threads-trouble-p (engine-threads engine)) t)
        (is (= 1/4 (seconds)))
        (setf (threads-trouble-p (engine-threads engine)) nil
              (engine-phase engine) :draining)
        (is (= 1/4 (seconds)))))))
