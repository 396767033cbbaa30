(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What the sentinel decides about the pool, one sample at a time, in an engine without threads:
;;; see the table of pool-sizing.lisp of the engine.

(in-suite pool-sizing)

(defmacro recording ((recorder name) &body body)
  "Evaluates BODY while the function NAME does nothing but note its arguments, a list, in RECORDER."
  `(with-function (,name (original &rest arguments) (record ,recorder arguments) nil)
     ,@body))

(defmacro with-still-pool ((engine controller &key (processors 4)) &body body)
  "Evaluates BODY with an ENGINE without threads that seems to run, and a CONTROLLER for PROCESSORS,
all of whom are wanted."
  `(with-resting-engine (,engine)
     (let ((,controller (engine::make-controller ,processors)))
       (declare (ignorable ,controller))
       (setf (engine::engine-phase ,engine) :running
             (engine::engine-accepting-p ,engine) t)
       ,@body)))

(defun pretend-workers (engine count state)
  "COUNT new workers of ENGINE, which have no threads, in STATE."
  (engine::with-engine (engine)
    (loop repeat count
          collect (let ((worker (engine::reserve-worker engine)))
                    (unless (eq state :starting)
                      (engine::set-worker-state worker state))
                    worker))))

(defun pretend-to-serve (workers)
  (dolist (worker workers)
    (setf (engine::ready-worker-stamp worker) 1)))

(defun forget-workers (engine)
  (engine::with-engine (engine)
    (mapc #'engine::retire (copy-list (engine::engine-workers engine)))))

;;; How many are wanted

(define-server-test the-target-rises-at-once-and-falls-by-an-eighth
  (with-still-pool (engine controller)
    (let ((pool (engine::engine-pool-state engine)))
      (flet ((target (awake stuck)
               (setf (engine::controller-awake controller) awake)
               (engine::adjust-target pool controller stuck)
               (engine::pool-state-target pool)))
        (is (= 12 (target 2 8)) "As many as are awake, and five for four who are stuck.")
        (is (= 14 (target 2 9)))
        (is (equal '(12 10 9 8 7 6 5 4 3 2 2) (loop repeat 11 collect (target 2 0))))))))

(define-server-test who-is-wanted-is-never-below-the-floor
  (with-still-pool (engine controller)
    (setf (engine::pool-state-floor (engine::engine-pool-state engine)) 3
          (engine::controller-awake controller) 1)
    (engine::adjust-awake engine controller 0)
    (is (= 3 (engine::controller-awake controller)) "Nobody waits.")
    (setf (engine::controller-awake controller) 1)
    (pretend-to-wait engine)
    (engine::adjust-awake engine controller 1)
    (is (= 3 (engine::controller-awake controller)))))

(define-server-test who-waits-now-and-then-is-not-taken-for-idle
  (with-still-pool (engine controller)
    (let ((waiting (engine::pool-state-waiting (engine::engine-pool-state engine))))
      (flet ((look (somebody-waits-p)
               (platform:counter-add waiting (if somebody-waits-p 1 0))
               (engine::adjust-awake engine controller 0)
               (platform:counter-add waiting (if somebody-waits-p -1 0))))
        (setf (engine::controller-awake controller) 4)
        (loop repeat 3
              do (loop repeat engine::*samples-before-shrink* do (look t))
                 (look nil))
        (is (= 4 (engine::controller-awake controller)))
        (loop repeat (1+ engine::*samples-before-shrink*) do (look t))
        (is (= 3 (engine::controller-awake controller)))))))

(define-server-test who-takes-the-place-of-the-blocked-is-no-excess
  (with-workers (engine controller 20 :running)
    (let ((pool (engine::engine-pool-state engine)))
      (flet ((excess (reserve)
               (setf (engine::controller-excess-fraction controller) 0.0)
               (loop repeat 100
                     do (engine::adjust-excess pool controller
                                               (engine::sample-workers engine controller 2) reserve)
                     sum (engine::pool-state-excess pool))))
        (is (zerop (excess 17)))
        (is (plusp (excess 10)))))))

(define-server-test who-is-beyond-a-lowered-limit-is-to-be-suspended
  (with-still-pool (engine controller)
    (let ((pool (engine::engine-pool-state engine)))
      (flet ((excess (limit before)
               (setf (engine::engine-thread-limit engine) limit
                     (engine::pool-state-excess pool) before)
               (engine::apply-thread-limit engine pool controller)
               (engine::pool-state-excess pool)))
        (pretend-workers engine 4 :active)
        (pretend-workers engine 1 :starting)
        (pretend-workers engine 3 :suspended)
        (is (= 3 (excess 2 0)))
        (is (= 4 (excess 2 4)) "More are to be suspended already.")
        (is (= 1 (excess 5 1)))
        (is (= 2 (excess nil 2)))
        (forget-workers engine)))))

(define-server-test as-many-are-called-as-lack-and-as-may-be-blocked-next
  (with-still-pool (engine controller)
    (loop for (free reserve called) in '((4 3 0) (5 3 0) (3 0 1) (3 3 4) (0 2 6))
          do (is (= called (engine::worker-deficit controller free reserve)) "~A" free))))

(define-server-test who-has-left-the-pool-is-not-resumed-and-its-descriptor-is-kept-once
  (with-still-pool (engine controller)
    (let ((worker (first (pretend-workers engine 1 :suspended)))
          (unused most-positive-fixnum))
      (setf (engine::engine-suspended engine) (list worker)
            (engine::ready-worker-status worker) unused)
      (engine::with-engine (engine) (engine::retire worker))
      (is (null (engine::engine-suspended engine)))
      (is (= 0 (engine::resume-workers engine 1)))
      (is (eq :ended (engine::worker-state worker)))
      (is (null (engine::ready-worker-status worker)) "Nobody can give it away again.")
      (is (equal (list unused) (shiftf (engine::engine-status-descriptors engine) '()))))))

(define-server-test suspended-workers-are-resumed-before-others-are-made-within-the-limit
  (with-still-pool (engine controller)
    (flet ((made (count)
             (let ((made '()))
               (with-function (engine::launch-all (original engine workers) (setf made workers))
                 (engine::add-workers engine controller count))
               (engine::with-engine (engine) (mapc #'engine::retire made))
               (length made))))
      (is (= 3 (made 3)))
      (setf (engine::engine-suspended engine) (pretend-workers engine 1 :suspended))
      (is (= 2 (made 3)))
      (forget-workers engine)
      (setf (engine::engine-thread-limit engine) 2)
      (is (= 2 (made 3)))
      (setf (engine::engine-suspended engine) (pretend-workers engine 1 :suspended))
      (is (= 0 (made 1)))
      (is (null (engine::engine-suspended engine)))
      (is (= 2 (statistic engine :resumes)))
      (is (= 1 (made 3)) "One is there already.")
      (setf (engine::engine-launch-after engine) (+ (platform:milliseconds) 100000))
      (is (= 0 (made 3)) "A thread could not be made a moment ago.")
      (setf (engine::engine-launch-after engine) 0
            (engine::engine-phase engine) :stopping)
      (is (= 0 (made 3)))
      (forget-workers engine))))

(define-server-test the-sentinel-accepts-the-overflow-where-no-worker-may
  (with-still-pool (engine controller)
    (let ((kept (make-recorder)))
      (flet ((keeps-p ()
               (let ((before (recorded-count kept)))
                 (recording (kept engine::accept-for-others)
                   (engine::accept-overflow engine controller))
                 (> (recorded-count kept) before))))
        (pretend-to-serve (pretend-workers engine 2 :active))
        (setf (engine::engine-thread-limit engine) 2
              (engine::engine-accept-limit engine) nil)
        (is (keeps-p))
        (setf (engine::engine-thread-limit engine) 3)
        (is (not (keeps-p)) "Another worker may be made.")
        (setf (engine::engine-thread-limit engine) 2
              (engine::engine-accept-limit engine) :unlimited)
        (is (not (keeps-p)) "Who comes waits in the kernel.")
        (setf (engine::engine-accept-limit engine) 5)
        (is (keeps-p))
        (let ((worker (first (pretend-workers engine 1 :suspended))))
          (setf (engine::engine-suspended engine) (list worker))
          (is (not (keeps-p)) "A worker can be called.")
          (engine::resume-workers engine 1)
          (is (not (keeps-p)) "A worker is going to accept.")
          (pretend-to-serve (list worker))
          (is (keeps-p)))
        (setf (engine::engine-accepting-p engine) nil)
        (is (not (keeps-p)))
        (forget-workers engine)))))

;;; A look

(defun adjust-recorded (engine controller)
  "What ADJUST-POOL finds at a look, and how many it called, without making threads."
  (let ((called (make-recorder)))
    (values (recording (called engine::add-workers)
              (engine::adjust-pool engine controller))
            (reduce #'+ (recorded called) :key #'third))))

(define-server-test a-sample-calls-who-lacks-and-nobody-who-is-coming
  (with-still-pool (engine controller :processors 3)
    (setf (engine::pool-state-floor (engine::engine-pool-state engine)) 3
          (engine::controller-samples-without-deficit controller) 7)
    (pretend-to-wait engine)
    (is (= 3 (nth-value 1 (adjust-recorded engine controller))))
    (is (= 0 (engine::controller-samples-without-deficit controller)))
    (pretend-workers engine 2 :starting)
    (is (= 1 (nth-value 1 (adjust-recorded engine controller))))
    (pretend-workers engine 1 :active)
    (is (= 0 (nth-value 1 (adjust-recorded engine controller))))
    (is (= 1 (engine::controller-samples-without-deficit controller)))
    (forget-workers engine)))

(define-server-test a-sample-moves-the-clock-by-the-last-nap
  (with-still-pool (engine controller)
    (let* ((pool (engine::engine-pool-state engine)) (tick (engine::pool-state-tick pool)))
      (setf (engine::controller-last-nap-ticks controller) 4
            (engine::pool-state-clock pool) 0)
      (adjust-recorded engine controller)
      (is (= (+ 4 tick) (engine::pool-state-tick pool)))
      (is (<= 0 (- (platform:milliseconds) (engine::pool-state-clock pool)) 10000)))))

(define-server-test a-sample-tells-what-the-next-one-should-look-at
  (with-still-pool (engine controller :processors 1)
    (let ((pool (engine::engine-pool-state engine)))
      (is (eq :busy (adjust-recorded engine controller)))
      (pretend-to-wait engine)
      (is (null (adjust-recorded engine controller)))
      (setf (engine::pool-state-target pool) 9)
      (is (eq :stuck (adjust-recorded engine controller)) "More may wait than at rest."))))

(define-server-test a-sample-applies-the-limit-and-accepts-the-overflow
  (with-still-pool (engine controller :processors 8)
    (let ((kept (make-recorder)))
      (setf (engine::engine-thread-limit engine) 2
            (engine::engine-accept-limit engine) nil)
      (pretend-to-serve (pretend-workers engine 3 :active))
      (recording (kept engine::accept-for-others)
        (adjust-recorded engine controller))
      (is (= 1 (engine::pool-state-excess (engine::engine-pool-state engine))))
      (is (= 1 (recorded-count kept)))
      (forget-workers engine))))

;;; Each decision is counted

(defun decision-counts (controller)
  (copy-list (engine::decision-counts (engine::controller-decisions controller))))

(defmacro decisions-of ((controller) &body body)
  "The decisions that CONTROLLER counts while BODY is evaluated, a list in the order of their
table."
  (let ((before (gensym "BEFORE")))
    `(let ((,before (decision-counts ,controller)))
       ,@body
       (loop for (decision count) on (decision-counts ,controller) by #'cddr
             append (make-list (- count (getf ,before decision)) :initial-element decision)))))

(define-server-test a-decision-about-who-is-wanted-is-counted
  (with-still-pool (engine controller)
    (flet ((decided-with (free)
             (setf (engine::controller-awake controller) 2)
             (decisions-of (controller) (engine::adjust-awake engine controller free))))
      (is (equal '(:grow) (decided-with 2)))
      (is (null (decided-with 1)) "Not all who are wanted are there.")
      (pretend-to-wait engine)
      (is (null (decided-with 2)) "Somebody waits.")
      (setf (engine::controller-samples-with-idle controller) engine::*samples-before-shrink*)
      (is (equal '(:shrink) (decided-with 2)))
      (setf (engine::pool-state-floor (engine::engine-pool-state engine)) 2)
      (is (null (decided-with 2)) "That is the floor."))))

(define-server-test a-decision-about-the-target-is-counted
  (with-still-pool (engine controller)
    (let ((pool (engine::engine-pool-state engine)))
      (setf (engine::pool-state-target pool) 4)
      (flet ((decided-with (stuck)
               (decisions-of (controller) (engine::adjust-target pool controller stuck))))
        (is (null (decided-with 0)) "Four are wanted.")
        (is (equal '(:raise-target) (decided-with 4)))
        (is (null (decided-with 4)))
        (is (equal '(:lower-target) (decided-with 0)))))))

(define-server-test a-decision-to-suspend-is-counted
  (with-still-pool (engine controller)
    (let ((pool (engine::engine-pool-state engine)) (running 5.0))
      (with-function (engine::estimated-runnable (original controller sample enough) running)
        (flet ((decided-to-suspend ()
                 (decisions-of (controller) (engine::adjust-excess pool controller nil 0))))
          (is (null (decided-to-suspend)) "One more than there are processors.")
          (setf running 37.0)
          (is (equal '(:suspend) (decided-to-suspend)))))
      (setf (engine::pool-state-excess pool) 0)
      (pretend-workers engine 4 :active)
      (flet ((decided-with (limit)
               (setf (engine::engine-thread-limit engine) limit)
               (decisions-of (controller) (engine::apply-thread-limit engine pool controller))))
        (is (null (decided-with nil)))
        (is (null (decided-with 4)))
        (is (equal '(:limit) (decided-with 3)))
        (is (null (decided-with 3)) "It is to be suspended already."))
      (forget-workers engine))))

(define-server-test a-decision-to-add-workers-is-counted
  (with-still-pool (engine controller)
    (flet ((decided-to-add (count)
             (with-function (engine::launch-all (original engine workers) t)
               (decisions-of (controller) (engine::add-workers engine controller count)))))
      (setf (engine::engine-suspended engine) (pretend-workers engine 2 :suspended))
      (is (equal '(:resume) (decided-to-add 1)))
      (is (equal '(:resume :launch) (decided-to-add 2)))
      (is (equal '(:launch) (decided-to-add 2)))
      (setf (engine::engine-thread-limit engine) 1)
      (is (null (decided-to-add 2)) "No more may be made.")
      (forget-workers engine))))

(define-server-test a-decision-to-accept-without-workers-is-counted
  (with-still-pool (engine controller)
    (pretend-to-serve (pretend-workers engine 1 :active))
    (setf (engine::engine-thread-limit engine) 1)
    (flet ((decided-with (accept-limit)
             (setf (engine::engine-accept-limit engine) accept-limit)
             (with-function (engine::accept-for-others (original engine) nil)
               (decisions-of (controller) (engine::accept-overflow engine controller)))))
      (is (equal '(:accept-overflow) (decided-with nil)))
      (is (null (decided-with :unlimited))))
    (forget-workers engine)))

(define-server-test a-decision-to-look-again-before-a-suspect-is-believed-is-counted
  (with-still-pool (engine controller)
    (with-function (engine::seems-blocked-p (original worker) t)
      (is (null (decisions-of (controller) (engine::blocked-p controller nil))) "One was stuck just now.")
      (setf (engine::controller-ticks-without-stuck controller) engine::*fast-sampling-ticks*)
      (is (equal '(:confirm) (decisions-of (controller) (engine::blocked-p controller nil)))))))

(define-server-test a-rest-is-counted-by-its-reason
  (with-still-pool (engine controller)
    (let ((naps (make-recorder)) (idle-waits (make-recorder)))
      (flet ((decided-after (found &key (ticks 0) (without-deficit 0) (idle-naps 0))
               (setf (engine::controller-ticks-without-stuck controller) ticks
                     (engine::controller-samples-without-deficit controller) without-deficit
                     (engine::controller-idle-naps controller) idle-naps)
               (recording (naps platform:nap)
                 (recording (idle-waits engine::idle-wait)
                   (decisions-of (controller) (engine::rest-after-sample engine controller found))))))
        (let ((long engine::*fast-sampling-ticks*))
          (is (equal '(:fast-nap) (decided-after :stuck :ticks long)))
          (is (equal '(:back-off-nap) (decided-after :stuck :without-deficit 9)))
          (is (equal '(:watch-nap) (decided-after :busy :ticks (- long 2))))
          (is (equal '(:busy-nap) (decided-after :busy :ticks (- long 1))))
          (is (equal '(:spare-nap) (decided-after nil :ticks long)))
          (is (equal '(:idle-wait) (decided-after nil :ticks long :idle-naps 99)))
          (setf (engine::engine-phase engine) :draining)
          (is (equal '(:drain-nap) (decided-after nil :ticks long :idle-naps 99))))))))

(define-server-test all-decisions-are-told
  (with-ready-engine (engine (constantly nil))
    (is (equal engine::*decisions*
               (loop for (decision) on (statistic engine :decisions) by #'cddr collect decision)))
    (eventually ("a rest to be counted")
      (plusp (reduce #'+ (member :drain-nap (statistic engine :decisions))
                     :key (lambda (each) (if (integerp each) each 0))))))
  (with-resting-engine (engine)
    (engine::count-decision (engine::make-engine-controller engine) :limit)
    (is (= 1 (getf (statistic engine :decisions) :limit)))))
