(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite pool-sizing :in engine
  :description "How many workers take events: the sentinel's rule, and the facts that it asks for.")

(in-suite pool-sizing)

(defmacro recording ((recorder name) &body body)
  "Evaluates BODY while the function NAME does nothing but note its arguments, a list, in RECORDER."
  `(with-function (,name (original &rest arguments) (record ,recorder arguments) nil)
     ,@body))

(defmacro with-still-pool ((engine controller &key (processors 4)) &body body)
  "Evaluates BODY with an ENGINE without threads that seems to run, and a CONTROLLER for PROCESSORS
that has found a worker missing just now."
  `(with-resting-engine (,engine)
     (let ((,controller (make-controller ,processors)))
       (declare (ignorable ,controller))
       (setf (engine-phase ,engine) :running
             (accept-open-p (engine-accept-state ,engine)) t)
       ,@body)))

(defun pretend-workers (engine count state)
  "COUNT new workers of ENGINE, which have no threads, in STATE."
  (with-engine (engine)
    (loop repeat count
          collect (let ((worker (reserve-worker engine)))
                    (unless (eq state :starting)
                      (set-worker-state worker state))
                    worker))))

(defun pretend-to-serve (workers)
  (dolist (worker workers)
    (setf (ready-worker-stamp worker) 1)))

(defun forget-workers (engine)
  (with-engine (engine)
    (mapc #'retire (copy-list (engine-workers engine)))))

;;; The rule

(defun sized (waiting active blocked asleep lately &key (free-p t) (floor 2) (processors 2))
  "What SIZE-POOL says, a list; how many were blocked lately as an integer."
  (multiple-value-bind (missing excess-p blocked-lately asleep-lately)
      (size-pool :waiting waiting :active active :blocked blocked :asleep asleep
                 :free-p free-p :floor floor :processors processors
                 :blocked-lately lately :asleep-lately lately)
    (declare (ignore blocked-lately))
    (list missing excess-p (round asleep-lately))))

(define-server-test as-many-workers-as-processors-take-events
  (loop for (waiting active blocked asleep lately . decision)
          in '((2 2 0 0 0  0 nil 0)     ; at rest
               (0 2 0 0 0  0 nil 0)     ; both serve
               (1 2 1 0 0  2 nil 1)     ; one is blocked, and is replaced; another may be next
               (1 2 1 0 1  1 nil 1)     ; the same, and no more than lately
               (0 2 2 0 0  4 nil 2)     ; both are
               (0 6 6 0 2  6 nil 6)     ; so are those that replaced them: bursts grow faster
               (0 8 6 0 6  0 nil 6)     ; as many as lately, and all were replaced
               (0 9 4 8 4  1 nil 8)     ; requests block for less than a look: one more at each
               (0 9 0 8 0  1 nil 8)     ; the same
               (0 3 0 0 0  0 nil 0)     ; one more than processors may run
               (0 4 0 0 0  0 t 0)       ; two may not
               (1 4 0 0 0  0 nil 0)     ; unless one waits: then a free worker finds out by itself
               (0 9 0 0 4  0 nil 4)     ; some were blocked lately, and soon may be again
               (0 10 0 0 4  0 t 4))
        do (is (equal decision (sized waiting active blocked asleep lately))
               "~A of ~A wait, ~A are blocked, ~A sleep, lately ~A"
               waiting active blocked asleep lately)))

(define-server-test a-burst-grows-faster-and-faster-though-its-new-workers-seem-asleep
  (is (equal '(2 6 12 20)
             (loop with lately = 0
                   for workers = 2 then (+ workers missing)
                   for (missing nil blocked-lately)
                     = (multiple-value-list
                        (size-pool :waiting 0 :active workers :blocked workers
                                   :asleep workers :free-p t :floor 2 :processors 2
                                   :blocked-lately lately :asleep-lately workers))
                   repeat 4
                   do (setf lately blocked-lately)
                   collect workers))))

(define-server-test an-idle-pool-may-have-fewer-workers-than-processors
  (flet ((missing (waiting active blocked)
           (first (sized waiting active blocked 0 0 :processors 64))))
    (is (= 0 (missing 2 2 0)))
    (is (= 1 (missing 0 2 0)) "No worker waits, and a processor may be free.")
    (is (= 0 (missing 0 64 0)))
    (is (= 0 (missing 1 8 0)))))

(define-server-test a-pool-of-one-processor-follows-the-same-rule
  (flet ((missing (waiting active blocked lately)
           (first (sized waiting active blocked 0 lately :processors 1 :floor 1))))
    (is (= 0 (missing 1 1 0 0)))
    (is (= 2 (missing 0 1 1 0)))
    (is (= 1 (missing 0 1 1 1)))
    (is (= 0 (missing 0 2 1 1)))))

(define-server-test half-of-those-that-were-blocked-lately-are-forgotten-in-11-looks-or-177
  (flet ((left (looks waiting free-p)
           (let ((lately 64))
             (loop repeat looks
                   do (setf lately (nth-value 3 (size-pool
                                                 :waiting waiting :active 9 :blocked 0 :asleep 0
                                                 :free-p free-p :floor 2 :processors 2
                                                 :blocked-lately 0 :asleep-lately lately))))
             lately)))
    (is (< 31 (left 11 0 t) 33))
    (is (< 31 (left 11 1 nil) 33) "A worker waits: there are enough.")
    (is (< 31 (left 177 0 nil) 33) "No processor is free: it is not known who sleeps briefly.")
    (is (eql 0 (left 100 0 t)))
    (is (eql 0 (left 2000 0 nil)))))

;;; What the sentinel sees

(defun look (engine controller tick &key (free-p t))
  "What LOOK-AT-WORKERS tells: WAITING, ACTIVE, BLOCKED and ASLEEP, a list; and whether only the
next look is to tell.  FREE-P says whether a processor is free."
  (multiple-value-bind (look suspect-p)
      (with-function (processor-free-p (original controller) free-p)
        (with-function (platform:online-processors (original) 100)
          (look-at-workers engine controller tick)))
    (values (loop for name in '(:waiting :active :blocked :asleep)
                  collect (getf look name))
            suspect-p)))

(define-server-test a-worker-that-is-on-a-request-at-two-looks-and-sleeps-is-blocked
  (with-still-pool (engine controller)
    (destructuring-bind (free young old) (pretend-workers engine 3 :active)
      (declare (ignore free))
      (pretend-workers engine 2 :suspended)
      (pretend-workers engine 1 :starting)
      (setf (ready-worker-stamp young) 100
            (ready-worker-stamp old) 99)
      (let ((asleep-p nil))
        (with-function (asleep-p (original worker) asleep-p)
          (with-function (computed-for-long-p (original worker) nil)
            (is (equal '(0 4 0 0) (look engine controller 101)) "It waits for a processor.")
            (setf asleep-p t)
            (is (equal '(0 4 1 0) (look engine controller 101)))
            (setf asleep-p nil)
            (is (equal '(0 4 1 0) (look engine controller 102)) "It has been found so.")
            (setf (ready-worker-stamp old) 102)
            (is (equal '(0 4 0 0) (look engine controller 103)) "That is another request.")
            (setf (ready-worker-stamp old) 0
                  (ready-worker-stamp young) 0
                  (ready-worker-away old) 102
                  asleep-p t)
            (is (equal '(0 4 1 0) (look engine controller 104)) "An interrupt holds it up."))))
      (forget-workers engine))))

(define-server-test one-worker-is-asked-about-for-all-that-seem-blocked
  (with-still-pool (engine controller)
    (let ((asked 0) (asleep-p t))
      (pretend-to-serve (pretend-workers engine 20 :active))
      (with-function (asleep-p (original worker) (incf asked) asleep-p)
        (with-function (computed-for-long-p (original worker) nil)
          (setf asleep-p nil)
          (is (equal '(0 20 0 0) (look engine controller 9)))
          (setf asleep-p t)
          (is (equal '(0 20 20 0) (look engine controller 10)))
          (is (= 2 asked))
          (look engine controller 11)
          (is (= 2 asked) "None is in doubt.")))
      (forget-workers engine))))

(define-server-test a-worker-that-computes-for-long-counts-as-blocked-and-not-before
  (with-still-pool (engine controller)
    (let ((run-time 1000) (worker (first (pretend-workers engine 1 :active))))
      (setf (ready-worker-stamp worker) 1)
      (with-function (platform:thread-run-time (original identity) run-time)
        (with-function (asleep-p (original worker) nil)
          (flet ((blocked (tick) (third (look engine controller tick))))
            (is (= 0 (blocked 100)) "It is asked about for the first time.")
            (incf run-time *computing-microseconds*)
            (is (= 0 (blocked 101)))
            (incf run-time 1)
            (is (= 1 (blocked 102)))
            (setf (ready-worker-stamp worker) 102)
            (is (= 0 (blocked 104)) "That is another request."))))
      (forget-workers engine))))

(define-server-test a-worker-that-has-no-processor-is-asleep-where-the-system-does-not-tell
  (with-still-pool (engine controller)
    (let ((run-time 1000) (worker (first (pretend-workers engine 1 :active))))
      (setf (ready-worker-stamp worker) 1)
      (with-function (platform:thread-run-time (original identity) run-time)
        (with-function (platform:thread-state (original identity) nil)
          (is (asleep-p worker))
          (incf run-time 10)
          (is (not (asleep-p worker)))
          (is (asleep-p worker))))
      (forget-workers engine))))

(define-server-test the-first-who-seems-blocked-has-the-next-looks-follow-closely
  (with-still-pool (engine controller)
    (pretend-to-serve (pretend-workers engine 1 :active))
    (with-function (asleep-p (original worker) t)
      (setf (pool-state-calm-p (engine-pool-state engine)) t)
      (multiple-value-bind (look suspect-p) (look engine controller 9)
        (is (= 0 (third look)))
        (is-true suspect-p))
      (setf (pool-state-calm-p (engine-pool-state engine)) nil)
      (multiple-value-bind (look suspect-p) (look engine controller 10)
        (is (= 1 (third look)))
        (is (not suspect-p))))
    (forget-workers engine)))

(define-server-test while-no-processor-is-free-a-worker-is-blocked-after-3-ms
  (with-still-pool (engine controller)
    (let ((worker (first (pretend-workers engine 1 :active)))
          (now (pool-state-clock (engine-pool-state engine))))
      (setf (ready-worker-stamp worker) 1)
      (with-function (asleep-p (original worker) t)
        (with-function (computed-for-long-p (original worker) nil)
          (flet ((blocked (milliseconds free-p)
                   (setf (ready-worker-begun worker) (- now milliseconds)
                         (ready-worker-blocked-stamp worker) 0)
                   (third (look engine controller 9 :free-p free-p))))
            (is (= 0 (blocked 2 nil)))
            (is (= 1 (blocked 3 nil)))
            (is (= 1 (blocked 0 t)))))))
    (forget-workers engine)))

(define-server-test workers-that-no-processor-runs-are-asleep-while-one-is-free-and-none-waits
  (with-still-pool (engine controller)
    (pretend-to-serve (pretend-workers engine 5 :active))
    (flet ((asleep (free-p processors)
             (with-function (processor-free-p (original controller) free-p)
               (with-function (platform:online-processors (original) processors)
                 (getf (look-at-workers engine controller 2) :asleep)))))
      (is (= 4 (asleep t 2)))
      (is (= 5 (asleep t 1)))
      (is (= 0 (asleep t 8)))
      (is (= 0 (asleep nil 2)))
      (pretend-to-wait engine)
      (is (= 0 (asleep t 2))))
    (forget-workers engine)))

(defun call-with-processor-facts (function)
  "Calls FUNCTION with a function of three arguments that returns whether a processor is free so
many microseconds later, with so many more microseconds of stall and of idle time in total; if the
former is NIL, the system does not count stalls."
  (with-still-pool (engine controller)
    (let ((now 1000000) (stall 500) (idle 700))
      (with-function (platform:microseconds (original) now)
        (with-function (platform:processor-stall (original) stall)
          (with-function (platform:processor-idle-time (original) idle)
            (funcall function
                     (lambda (microseconds more-stall &optional (more-idle 0))
                       (incf now microseconds)
                       (incf idle more-idle)
                       (setf stall (and more-stall (+ (or stall 0) more-stall)))
                       (processor-free-p controller)))))))))

(define-server-test a-processor-is-free-while-threads-wait-for-less-than-half-of-4-ms
  (call-with-processor-facts
   (lambda (free-p-after)
     (flet ((free-p (microseconds more-stall) (funcall free-p-after microseconds more-stall)))
       (is-true (free-p 0 0))
       (is-true (free-p 4000 1999))
       (is (not (free-p 4000 2000)))
       (is (not (free-p 3999 0)) "It was measured a moment ago.")
       (is-true (free-p 1 0))))))

(define-server-test a-processor-is-free-if-some-were-idle-where-the-system-counts-no-stalls
  (call-with-processor-facts
   (lambda (free-p-after)
     (flet ((free-p (microseconds more-idle) (funcall free-p-after microseconds nil more-idle)))
       (free-p 40000 0)
       (is-true (free-p 40000 10000))
       (is (not (free-p 40000 9999)))
       (is (not (free-p 39999 80000)) "It was measured a moment ago.")
       (is-true (free-p 1 0))))))

;;; Fewer

(define-server-test as-many-count-as-excess-as-should
  (with-resting-engine (engine)
    (let ((pool (engine-pool-state engine)))
      (is (not (one-of-excess-p pool)))
      (setf (pool-state-excess pool) 2)
      (is (equal '(t t nil) (loop repeat 3 collect (one-of-excess-p pool)))))))

(define-server-test a-worker-that-is-beyond-a-lowered-limit-is-to-be-suspended
  (with-still-pool (engine controller)
    (let ((pool (engine-pool-state engine)))
      (flet ((excess (limit before)
               (setf (engine:engine-thread-limit engine) limit
                     (pool-state-excess pool) before)
               (apply-thread-limit engine pool controller)
               (pool-state-excess pool)))
        (pretend-workers engine 4 :active)
        (pretend-workers engine 1 :starting)
        (pretend-workers engine 3 :suspended)
        (is (= 3 (excess 2 0)))
        (is (= 4 (excess 2 4)) "More are to be suspended already.")
        (is (= 1 (excess 5 1)))
        (is (= 2 (excess nil 2)))
        (forget-workers engine)))))

(define-server-test a-worker-that-has-left-the-pool-is-not-resumed
  (with-still-pool (engine controller)
    (let ((worker (first (pretend-workers engine 1 :suspended))))
      (setf (engine-suspended engine) (list worker))
      (with-engine (engine) (retire worker))
      (is (null (engine-suspended engine)))
      (is (= 0 (resume-workers engine 1)))
      (is (eq :ended (worker-state worker))))))

;;; More

(define-server-test suspended-workers-are-resumed-before-others-are-made-within-the-limit
  (with-still-pool (engine controller)
    (flet ((made (count)
             (let ((made '()))
               (with-function (launch-all (original engine workers) (setf made workers))
                 (add-workers engine controller count))
               (with-engine (engine) (mapc #'retire made))
               (length made))))
      (is (= 3 (made 3)))
      (setf (engine-suspended engine) (pretend-workers engine 1 :suspended))
      (is (= 2 (made 3)))
      (forget-workers engine)
      (setf (engine:engine-thread-limit engine) 2)
      (is (= 2 (made 3)))
      (setf (engine-suspended engine) (pretend-workers engine 1 :suspended))
      (is (= 0 (made 1)))
      (is (null (engine-suspended engine)))
      (is (= 2 (statistic engine :resumes)))
      (is (= 1 (made 3)) "One is there already.")
      (setf (launch-after engine) (+ (platform:milliseconds) 100000))
      (is (= 0 (made 3)) "A thread could not be made a moment ago.")
      (setf (launch-after engine) 0
            (engine-phase engine) :stopping)
      (is (= 0 (made 3)))
      (forget-workers engine))))

;;; The limit was lowered to 3 once, under load, and 60 went on to serve: each was suspended when it
;;; became free, and resumed at the next look.
(define-server-test suspended-workers-beyond-the-limit-are-not-resumed
  (with-still-pool (engine controller)
    (setf (engine-suspended engine) (pretend-workers engine 4 :suspended))
    (pretend-to-serve (pretend-workers engine 2 :active))
    (setf (engine:engine-thread-limit engine) 3)
    (add-workers engine controller 4)
    (is (= 3 (worker-count engine :active)))
    (setf (engine:engine-thread-limit engine) 1)
    (add-workers engine controller 4)
    (is (= 3 (worker-count engine :active)))
    (setf (engine:engine-thread-limit engine) nil)
    (with-function (launch-all (original engine workers) nil)
      (add-workers engine controller 4))
    (is (= 6 (worker-count engine :active)))
    (forget-workers engine)))

(define-server-test a-limit-that-was-lowered-under-load-is-kept
  (with-gated-engine (engine gate connections 10)
    (send-each connections "w")
    (wait-for-statistic engine :busy 10)
    (engine:resize-pool engine :standby 1 :thread-limit 3)
    (open-gate gate)
    (expect-each connections "w")
    (eventually ("the workers beyond the limit to be suspended")
      (<= (worker-count engine :active) 3))
    (let ((again (make-gate)) (tick (pool-state-tick (engine-pool-state engine))))
      (setf gate again)
      (send-each connections "w")
      (wait-for-statistic engine :busy 3)
      (eventually ("the sentinel to look for some time")
        (> (pool-state-tick (engine-pool-state engine)) (+ tick 100)))
      (is (= 3 (statistic engine :busy)))
      (open-gate again)
      (expect-each connections "w"))))

(define-server-test the-sentinel-accepts-the-overflow-where-no-worker-may
  (with-still-pool (engine controller)
    (let ((kept (make-recorder)))
      (flet ((keeps-p ()
               (let ((before (recorded-count kept)))
                 (recording (kept accept-for-others)
                   (accept-overflow engine controller))
                 (> (recorded-count kept) before))))
        (pretend-to-serve (pretend-workers engine 2 :active))
        (setf (engine:engine-thread-limit engine) 2
              (engine:engine-accept-limit engine) nil)
        (is (keeps-p))
        (setf (engine:engine-thread-limit engine) 3)
        (is (not (keeps-p)) "Another worker may be made.")
        (setf (engine:engine-thread-limit engine) 2
              (engine:engine-accept-limit engine) :unlimited)
        (is (not (keeps-p)) "Who comes waits in the kernel.")
        (setf (engine:engine-accept-limit engine) 5)
        (is (keeps-p))
        (let ((worker (first (pretend-workers engine 1 :suspended))))
          (setf (engine-suspended engine) (list worker))
          (is (not (keeps-p)) "A worker can be called.")
          (resume-workers engine 1)
          (is (not (keeps-p)) "A worker is going to accept.")
          (pretend-to-serve (list worker))
          (is (keeps-p)))
        (setf (accept-open-p (engine-accept-state engine)) nil)
        (is (not (keeps-p)))
        (forget-workers engine)))))

;;; One look

(defun adjust-recorded (engine controller)
  "What ADJUST-POOL finds at a look while no processor is free, and how many it called, without
making threads."
  (let ((called (make-recorder)))
    (values (recording (called add-workers)
              (with-function (processor-free-p (original controller) nil)
                (adjust-pool engine controller)))
            (reduce #'+ (recorded called) :key #'third))))

(define-server-test a-look-calls-who-is-missing-and-nobody-who-is-coming
  (with-still-pool (engine controller :processors 3)
    (setf (pool-state-floor (engine-pool-state engine)) 3)
    (pretend-to-wait engine)
    (is (= 3 (nth-value 1 (adjust-recorded engine controller))))
    (pretend-workers engine 2 :starting)
    (is (= 1 (nth-value 1 (adjust-recorded engine controller))))
    (pretend-workers engine 1 :active)
    (is (= 0 (nth-value 1 (adjust-recorded engine controller))))
    (forget-workers engine)))

(define-server-test a-look-moves-the-clock-and-tells-what-it-found
  (with-still-pool (engine controller :processors 1)
    (let* ((pool (engine-pool-state engine)) (tick (pool-state-tick pool)))
      (setf (pool-state-clock pool) 0)
      (is (eq :needed (adjust-recorded engine controller)))
      (is (= (1+ tick) (pool-state-tick pool)))
      (is (<= 0 (- (platform:milliseconds) (pool-state-clock pool)) 10000))
      (pretend-workers engine 1 :active)
      (is (eq :busy (adjust-recorded engine controller)))
      (pretend-to-wait engine)
      (is (null (adjust-recorded engine controller)))
      (setf (controller-asleep-lately controller) 4)
      (is (eq :busy (adjust-recorded engine controller)) "Some were blocked lately.")
      (is (= 7 (pool-state-target pool)) "Nearly four were, so six may wait, and one.")
      (forget-workers engine))))

(define-server-test a-look-applies-the-limit-and-accepts-the-overflow
  (with-still-pool (engine controller :processors 8)
    (let ((kept (make-recorder)))
      (setf (engine:engine-thread-limit engine) 2
            (engine:engine-accept-limit engine) nil)
      (pretend-to-serve (pretend-workers engine 3 :active))
      (recording (kept accept-for-others)
        (adjust-recorded engine controller))
      (is (= 1 (pool-state-excess (engine-pool-state engine))))
      (is (= 1 (recorded-count kept)))
      (forget-workers engine))))

(define-server-test a-worker-that-is-missing-and-may-not-be-added-needs-no-close-looks
  (with-still-pool (engine controller :processors 1)
    (pretend-to-serve (pretend-workers engine 2 :active))
    (setf (engine:engine-accept-limit engine) :unlimited)
    (with-function (asleep-p (original worker) t)
      (setf (pool-state-tick (engine-pool-state engine)) 9)
      (is (eq :needed (adjust-recorded engine controller)))
      (setf (engine:engine-thread-limit engine) 3)
      (is (eq :needed (adjust-recorded engine controller)))
      (setf (engine:engine-thread-limit engine) 2)
      (is (eq :busy (adjust-recorded engine controller)))
      (setf (engine:engine-thread-limit engine) 1)
      (is (eq :busy (adjust-recorded engine controller))))
    (forget-workers engine)))

;;; Each decision is counted

(defun decision-counts (controller)
  (copy-list (engine::decision-counts (controller-decisions controller))))

(defmacro decisions-of ((controller) &body body)
  "The decisions that CONTROLLER counts while BODY is evaluated, a list in the order of their
table."
  (let ((before (gensym "BEFORE")))
    `(let ((,before (decision-counts ,controller)))
       ,@body
       (loop for (decision count) on (decision-counts ,controller) by #'cddr
             append (make-list (- count (getf ,before decision)) :initial-element decision)))))

(define-server-test a-decision-to-add-workers-is-counted
  (with-still-pool (engine controller)
    (flet ((decided-to-add (count)
             (with-function (launch-all (original engine workers) t)
               (decisions-of (controller) (add-workers engine controller count)))))
      (setf (engine-suspended engine) (pretend-workers engine 2 :suspended))
      (is (equal '(:resume) (decided-to-add 1)))
      (is (equal '(:resume :launch) (decided-to-add 2)))
      (is (equal '(:launch) (decided-to-add 2)))
      (setf (engine:engine-thread-limit engine) 1)
      (is (null (decided-to-add 2)) "No more may be made.")
      (forget-workers engine))))

(define-server-test a-decision-to-accept-without-workers-is-counted
  (with-still-pool (engine controller)
    (pretend-to-serve (pretend-workers engine 1 :active))
    (setf (engine:engine-thread-limit engine) 1)
    (flet ((decided-with (accept-limit)
             (setf (engine:engine-accept-limit engine) accept-limit)
             (with-function (accept-for-others (original engine) nil)
               (decisions-of (controller) (accept-overflow engine controller)))))
      (is (equal '(:accept-overflow) (decided-with nil)))
      (is (null (decided-with :unlimited))))
    (forget-workers engine)))

(define-server-test a-decision-to-suspend-is-counted
  (with-still-pool (engine controller :processors 1)
    (pretend-workers engine 3 :active)
    (is (equal '(:suspend) (decisions-of (controller) (adjust-recorded engine controller))))
    (setf (engine:engine-thread-limit engine) 1)
    (is (equal '(:suspend :limit) (decisions-of (controller) (adjust-recorded engine controller))))
    (forget-workers engine)))

(define-server-test all-decisions-are-told
  (with-ready-engine (engine (constantly nil))
    (is (equal *decisions*
               (loop for (decision) on (statistic engine :decisions) by #'cddr collect decision)))
    (eventually ("a rest to be counted")
      (plusp (reduce #'+ (member :short-nap (statistic engine :decisions))
                     :key (lambda (each) (if (integerp each) each 0))))))
  (with-resting-engine (engine)
    (count-decision (make-engine-controller engine) :limit)
    (is (= 1 (getf (statistic engine :decisions) :limit)))))
