(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The sentinel's rule one look at a time, in an engine without threads: see pacing.lisp and census.lisp
;;; of the engine.

(in-suite pacing)

(defmacro recording ((recorder name) &body body)
  "Evaluates BODY while the function NAME does nothing but note its arguments, a list, in RECORDER."
  `(with-function (,name (original &rest arguments) (record ,recorder arguments) nil)
     ,@body))

(defmacro with-look ((engine pacemaker &key (processors 4)) &body body)
  "Evaluates BODY with an ENGINE without threads that seems to run, and a PACEMAKER for PROCESSORS, all
of whom are wanted."
  `(with-resting-engine (,engine)
     (let ((,pacemaker (engine::make-pacemaker ,processors)))
       (declare (ignorable ,pacemaker))
       (setf (engine::engine-phase ,engine) :running
             (engine::engine-accepting-p ,engine) t)
       ,@body)))

(defun pretend-workers (engine count state)
  "COUNT new workers of ENGINE, which have no threads, in STATE."
  (engine::with-engine (engine)
    (loop repeat count
          collect (let ((worker (engine::reserve-worker engine)))
                    (unless (eq state :starting)
                      (engine::move worker state))
                    worker))))

(defun pretend-to-serve (workers)
  (dolist (worker workers)
    (setf (engine::ready-worker-stamp worker) 1)))

(defun forget-workers (engine)
  (engine::with-engine (engine)
    (mapc #'engine::retire (copy-list (engine::engine-workers engine)))))

;;; How many are wanted

(define-server-test the-target-rises-at-once-and-falls-by-an-eighth
  (with-look (engine pacemaker)
    (let ((pace (engine::engine-pace engine)))
      (flet ((target (awake stuck)
               (engine::adjust-target pace awake stuck)
               (engine::pace-target pace)))
        (is (= 12 (target 2 8)) "As many as are awake, and five for four who are stuck.")
        (is (= 14 (target 2 9)))
        (is (equal '(12 10 9 8 7 6 5 4 3 2 2) (loop repeat 11 collect (target 2 0))))))))

(define-server-test who-is-wanted-is-never-below-the-floor
  (with-look (engine pacemaker)
    (setf (engine::pace-floor (engine::engine-pace engine)) 3
          (engine::pacemaker-awake pacemaker) 1)
    (pretend-to-wait engine)
    (engine::adjust-awake engine pacemaker 1)
    (is (= 3 (engine::pacemaker-awake pacemaker)))))

(define-server-test who-waits-now-and-then-is-not-taken-for-idle
  (with-look (engine pacemaker)
    (let ((waiting (engine::pace-waiting (engine::engine-pace engine))))
      (flet ((look (somebody-waits-p)
               (platform:counter-add waiting (if somebody-waits-p 1 0))
               (engine::adjust-awake engine pacemaker 0)
               (platform:counter-add waiting (if somebody-waits-p -1 0))))
        (setf (engine::pacemaker-awake pacemaker) 4)
        (loop repeat 3
              do (loop repeat engine::*quiet-looks* do (look t))
                 (look nil))
        (is (= 4 (engine::pacemaker-awake pacemaker)))
        (loop repeat (1+ engine::*quiet-looks*) do (look t))
        (is (= 3 (engine::pacemaker-awake pacemaker)))))))

(define-server-test who-takes-the-place-of-the-blocked-is-no-surplus
  (with-workers (engine pacemaker 20 :running)
    (let ((pace (engine::engine-pace engine)))
      (flet ((surplus (reserve)
               (setf (engine::pacemaker-surplus-left pacemaker) 0.0)
               (loop repeat 100
                     do (engine::adjust-surplus pace pacemaker
                                                (engine::take-census engine pacemaker 2) reserve)
                     sum (engine::pace-surplus pace))))
        (is (zerop (surplus 17)))
        (is (plusp (surplus 10)))))))

(define-server-test who-is-beyond-a-lowered-limit-is-to-sit-down
  (with-look (engine pacemaker)
    (let ((pace (engine::engine-pace engine)))
      (flet ((surplus (limit before)
               (setf (engine::engine-thread-limit engine) limit
                     (engine::pace-surplus pace) before)
               (engine::heed-limit engine pace)
               (engine::pace-surplus pace)))
        (pretend-workers engine 4 :active)
        (pretend-workers engine 1 :starting)
        (pretend-workers engine 3 :benched)
        (is (= 3 (surplus 2 0)))
        (is (= 4 (surplus 2 4)) "More are to sit down already.")
        (is (= 1 (surplus 5 1)))
        (is (= 2 (surplus nil 2)))
        (forget-workers engine)))))

(define-server-test as-many-are-called-as-lack-and-as-may-be-blocked-next
  (with-look (engine pacemaker)
    (loop for (free reserve called) in '((4 3 0) (5 3 0) (3 0 1) (3 3 4) (0 2 6))
          do (is (= called (engine::lacking-workers pacemaker free reserve)) "~A" free))))

(define-server-test who-is-called-comes-from-the-bench-first-and-stays-within-the-limit
  (with-look (engine pacemaker)
    (flet ((made (count)
             (let ((made '()))
               (with-function (engine::launch-all (original engine workers) (setf made workers))
                 (engine::reinforce engine count))
               (engine::with-engine (engine) (mapc #'engine::retire made))
               (length made))))
      (is (= 3 (made 3)))
      (setf (engine::engine-thread-limit engine) 2)
      (is (= 2 (made 3)))
      (setf (engine::engine-benched engine) (pretend-workers engine 1 :benched))
      (is (= 0 (made 1)))
      (is (null (engine::engine-benched engine)))
      (is (= 1 (statistic engine :promotions)))
      (is (= 1 (made 3)) "One is there already.")
      (setf (engine::engine-launch-after engine) (+ (platform:milliseconds) 100000))
      (is (= 0 (made 3)) "A thread could not be made a moment ago.")
      (setf (engine::engine-launch-after engine) 0
            (engine::engine-phase engine) :stopping)
      (is (= 0 (made 3)))
      (forget-workers engine))))

(define-server-test the-sentinel-keeps-the-door-where-no-worker-may
  (with-look (engine pacemaker)
    (let ((kept (make-recorder)))
      (flet ((keeps-p ()
               (let ((before (recorded-count kept)))
                 (recording (kept engine::accept-for-others)
                   (engine::keep-the-door engine))
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
        (let ((worker (first (pretend-workers engine 1 :benched))))
          (setf (engine::engine-benched engine) (list worker))
          (is (not (keeps-p)) "A worker can be called.")
          (engine::promote engine 1)
          (is (not (keeps-p)) "A worker is going to accept.")
          (pretend-to-serve (list worker))
          (is (keeps-p)))
        (setf (engine::engine-accepting-p engine) nil)
        (is (not (keeps-p)))
        (forget-workers engine)))))

;;; A look

(defun look-recorded (engine pacemaker)
  "What PACE-WORKERS finds at a look, and how many it called, without making threads."
  (let ((called (make-recorder)))
    (values (recording (called engine::reinforce)
              (engine::pace-workers engine pacemaker))
            (reduce #'+ (recorded called) :key #'second))))

(define-server-test a-look-calls-who-lacks-and-nobody-who-is-coming
  (with-look (engine pacemaker :processors 3)
    (setf (engine::pace-floor (engine::engine-pace engine)) 3)
    (pretend-to-wait engine)
    (is (= 3 (nth-value 1 (look-recorded engine pacemaker))))
    (is (= 0 (engine::pacemaker-steady-looks pacemaker)))
    (pretend-workers engine 2 :starting)
    (is (= 1 (nth-value 1 (look-recorded engine pacemaker))))
    (pretend-workers engine 1 :active)
    (is (= 0 (nth-value 1 (look-recorded engine pacemaker))))
    (is (= 1 (engine::pacemaker-steady-looks pacemaker)))
    (forget-workers engine)))

(define-server-test a-look-moves-the-clock-by-what-was-rested
  (with-look (engine pacemaker)
    (let* ((pace (engine::engine-pace engine)) (tick (engine::pace-tick pace)))
      (setf (engine::pacemaker-rested-ticks pacemaker) 4
            (engine::pace-clock pace) 0)
      (look-recorded engine pacemaker)
      (is (= (+ 4 tick) (engine::pace-tick pace)))
      (is (<= 0 (- (platform:milliseconds) (engine::pace-clock pace)) 10000)))))

(define-server-test a-look-tells-what-is-to-be-looked-at-next
  (with-look (engine pacemaker :processors 1)
    (let ((pace (engine::engine-pace engine)))
      (is (eq :busy (look-recorded engine pacemaker)))
      (pretend-to-wait engine)
      (is (null (look-recorded engine pacemaker)))
      (setf (engine::pace-target pace) 9)
      (is (eq :stuck (look-recorded engine pacemaker)) "More may wait than at rest."))))

(define-server-test a-look-heeds-the-limit-and-keeps-the-door
  (with-look (engine pacemaker :processors 8)
    (let ((kept (make-recorder)))
      (setf (engine::engine-thread-limit engine) 2
            (engine::engine-accept-limit engine) nil)
      (pretend-to-serve (pretend-workers engine 3 :active))
      (recording (kept engine::accept-for-others)
        (look-recorded engine pacemaker))
      (is (= 1 (engine::pace-surplus (engine::engine-pace engine))))
      (is (= 1 (recorded-count kept)))
      (forget-workers engine))))

;;; Its rests

(defun naps-after (engine pacemaker found)
  "For how many ticks the sentinel naps after a look that FOUND what PACE-WORKERS returns; :DOZE when it
dozes."
  (let ((naps (make-recorder)) (dozes (make-recorder)))
    (recording (naps platform:nap)
      (recording (dozes engine::doze)
        (engine::rest-between-ticks engine pacemaker found)))
    (if (recorded dozes)
        :doze
        (let ((ticks (/ (first (first (recorded naps))) engine::*tick-microseconds*)))
          (is (= ticks (engine::pacemaker-rested-ticks pacemaker)))
          ticks))))

(define-server-test the-sentinel-naps-for-a-tick-while-it-may-be-needed-and-longer-otherwise
  (with-look (engine pacemaker)
    (flet ((naps (found) (naps-after engine pacemaker found)))
      (setf (engine::pacemaker-calm-ticks pacemaker) engine::*watchful-ticks*)
      (is (= 1 (naps :stuck)))
      (is (= 1 (naps :busy)) "Somebody was stuck just now.")
      (loop repeat (- engine::*watchful-ticks* 2) do (is (= 1 (naps nil))))
      (is (= engine::*long-nap-ticks* (naps nil)))
      (is (= engine::*long-nap-ticks* (naps :busy)))
      (setf (engine::pacemaker-steady-looks pacemaker) engine::*steady-looks*)
      (is (= 1 (naps :stuck)))
      (incf (engine::pacemaker-steady-looks pacemaker))
      (is (= engine::*long-nap-ticks* (naps :stuck)) "It found nobody lacking several times.")
      (is (= 0 (engine::pacemaker-calm-ticks pacemaker)))
      (setf (engine::engine-phase engine) :draining)
      (is (= engine::*long-nap-ticks* (naps nil)) "Somebody waits for the end of the drain."))))

(define-server-test the-sentinel-dozes-after-many-quiet-naps
  (with-look (engine pacemaker)
    (flet ((naps (found) (naps-after engine pacemaker found)))
      (dolist (busy '(:busy :stuck))
        (setf (engine::pacemaker-calm-ticks pacemaker) (* 2 engine::*watchful-ticks*)
              (engine::pacemaker-idle-naps pacemaker) 0)
        (loop repeat (1- engine::*doze-naps*) do (is (eql engine::*long-nap-ticks* (naps nil))))
        (is (eq :doze (naps nil)))
        (is (= 1 (engine::pacemaker-rested-ticks pacemaker)))
        (is (eq :doze (naps nil)) "Nobody rang.")
        (is (engine::calm-p pacemaker))
        (naps busy)
        (setf (engine::pacemaker-calm-ticks pacemaker) (* 2 engine::*watchful-ticks*))
        (is (eql engine::*long-nap-ticks* (naps nil)) "It was ~A since." busy)))))

(define-server-test who-was-rung-looks-closely
  (with-look (engine pacemaker)
    (setf (engine::pacemaker-calm-ticks pacemaker) (* 2 engine::*watchful-ticks*)
          (engine::pacemaker-idle-naps pacemaker) engine::*doze-naps*)
    (with-function (engine::doze (original engine) t)
      (engine::rest-between-ticks engine pacemaker nil))
    (is (not (engine::calm-p pacemaker)))
    (is (zerop (engine::pacemaker-idle-naps pacemaker)))))

(defmacro within-a-second (&body body)
  "Evaluates BODY; checks that this takes less than what it may wait for."
  `(let ((begun (platform:milliseconds)))
     (multiple-value-prog1 (progn ,@body)
       (is (< (- (platform:milliseconds) begun) 5000) "It waited."))))

(define-server-test nobody-dozes-when-nobody-waits-or-all-is-over
  (with-globals ((engine::*tick* 8) (engine::*rest* 8))
    (with-look (engine pacemaker)
      (within-a-second (is (not (engine::doze engine))))
      (is (not (engine::pace-dozing-p (engine::engine-pace engine))))
      (pretend-to-wait engine)
      (setf (engine::engine-phase engine) :stopped)
      (within-a-second (is (not (engine::doze engine)))))))

(define-server-test who-dozes-is-rung-and-says-so
  (with-globals ((engine::*tick* 8) (engine::*rest* 8))
    (with-look (engine pacemaker)
      (pretend-to-wait engine)
      (let* ((pace (engine::engine-pace engine))
             (task (in-background ("sentinel") (engine::doze engine))))
        (eventually ("it to doze") (engine::pace-dozing-p pace))
        (engine::wake-sentinel-if-nobody-waits engine pace)
        (is (engine::pace-dozing-p pace) "Somebody waits.")
        (platform:counter-add (engine::pace-waiting pace) -1)
        (within-a-second
          (engine::wake-sentinel-if-nobody-waits engine pace)
          (is (task-result task)))
        (is (not (engine::pace-dozing-p pace)))
        (is (not (engine::pace-clock-stands-p pace)))))))

(define-server-test the-sentinel-dozes-until-the-next-deadline
  (with-globals ((engine::*tick* 1/4) (engine::*rest* 20))
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
                 (engine::doze-seconds engine))))
        (is (= 20 (seconds)))
        (is (= 20 (seconds nil)))
        (is (= 20 (seconds 100)) "So as to look now and then.")
        (is (<= 5 (seconds 10) 10))
        (is (<= 5 (seconds 15 nil 10 18) 10) "The first one counts.")
        (is (= 1/4 (seconds 10 0)) "Not much less than until the next sweep.")
        (setf (engine::engine-accept-again-p engine) t)
        (is (= 1/4 (seconds)))
        (setf (engine::engine-accept-again-p engine) nil
              (engine::engine-thread-trouble-p engine) t)
        (is (= 1/4 (seconds)))
        (setf (engine::engine-thread-trouble-p engine) nil
              (engine::engine-phase engine) :draining)
        (is (= 1/4 (seconds)))))))

;;; Samples

(define-server-test waits-are-sampled-while-there-is-work
  (with-look (engine pacemaker)
    (let ((samples (make-recorder)) (probe (engine::engine-probe engine)))
      (flet ((sampled-p ()
               (let ((before (recorded-count samples)))
                 (recording (samples engine::sample-wait)
                   (engine::sample-wait-when-busy engine pacemaker))
                 (> (recorded-count samples) before))))
        (is (sampled-p) "There is none yet.")
        (setf (engine::probe-count probe) 1)
        (is (not (sampled-p)))
        (platform:counter-add (engine::engine-accept-count engine) 1)
        (is (sampled-p))
        (is (not (sampled-p)))
        (incf (engine::engine-served-before engine))
        (is (sampled-p))
        (setf (engine::probe-sent probe) 1)
        (is (sampled-p) "One is under way.")
        (setf (engine::probe-sent probe) 0)
        (is (not (sampled-p)))
        (setf (engine::ready-worker-stamp (first (pretend-workers engine 1 :active))) 1)
        (is (sampled-p) "One serves.")
        (forget-workers engine)))))

(define-server-test a-sample-is-noted-once-and-from-its-first-time
  (with-resting-engine (engine)
    (let ((probe (engine::engine-probe engine)) (now 1000000))
      (with-function (platform:microseconds (original) now)
        (is (null (engine::probe-wait probe)))
        (engine::note-wait probe)
        (is (zerop (engine::probe-count probe)) "None was sent.")
        (loop repeat 2
              do (engine::sample-wait probe (engine::engine-poller engine))
                 (incf now 200000))
        (is (= 0.4 (engine::probe-wait probe)) "It is under way.")
        (loop repeat 2 do (engine::note-wait probe))
        (is (= 1 (engine::probe-count probe)))
        (is (= 400000 (engine::probe-sum probe)))
        (engine::sample-wait probe (engine::engine-poller engine))
        (incf now 100000)
        (is (= 0.4 (engine::probe-wait probe)) "The latest one took longer.")
        (engine::note-wait probe)
        (is (= 0.1 (engine::probe-wait probe)))
        (is (= 2 (engine::probe-count probe)))
        (is (= 500000 (engine::probe-sum probe)))))))

;;; Who is stuck

(defmacro with-suspect ((worker engine pacemaker run-time &optional (state :running)) &body body)
  "Evaluates BODY with a WORKER whose request began at tick 1, whose thread has run for RUN-TIME, in
microseconds, and of which the system tells STATE."
  `(with-look (,engine ,pacemaker)
     (let ((,worker (first (pretend-workers ,engine 1 :active))))
       (setf (engine::ready-worker-stamp ,worker) 1)
       (with-function (platform:thread-run-time (original identity) ,run-time)
         (with-function (engine::ask-state (original worker) ,state)
           ,@body))
       (forget-workers ,engine))))

(define-server-test who-computes-for-long-is-stuck-and-not-before
  (let ((run-time 1000) (limit (* engine::*computing-ticks* engine::*tick-microseconds*)))
    (with-suspect (worker engine pacemaker run-time)
      (flet ((stuck-p (tick) (engine::stuck-p pacemaker worker tick)))
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
  (with-suspect (worker engine pacemaker 0 :blocked)
    (is (not (engine::stuck-p pacemaker worker 1)))
    (is (not (engine::stuck-p pacemaker worker 2)))
    (is (engine::stuck-p pacemaker worker 3))))

(define-server-test who-stands-still-is-blocked-where-the-system-does-not-tell
  (let ((run-time 1000))
    (with-suspect (worker engine pacemaker run-time nil)
      (flet ((blocked-p () (engine::seems-blocked-p worker)))
        (is (not (blocked-p)) "It is asked about for the first time.")
        (engine::computing-p worker 1)
        (is (blocked-p))
        (incf run-time (floor engine::*tick-microseconds* 4))
        (is (not (blocked-p)))
        (incf run-time 10)
        (is (blocked-p))))))

(define-server-test who-runs-is-not-blocked-though-it-stands-still
  (with-suspect (worker engine pacemaker 1000 :running)
    (engine::computing-p worker 1)
    (is (not (engine::seems-blocked-p worker)))))

(define-server-test after-many-blocked-in-a-row-few-are-asked-about
  (let ((asked 0) (blocked t))
    (with-look (engine pacemaker)
      (with-function (engine::seems-blocked-p (original worker) (incf asked) blocked)
        (flet ((ask (times)
                 (setf asked 0)
                 (loop repeat times count (engine::blocked-p pacemaker nil))))
          (is (= 8 (ask 8)))
          (is (= 8 asked))
          (is (= 1000 (ask 1000)))
          (is (< 0 asked 500))
          (setf blocked nil)
          (loop repeat 10000 while (engine::blocked-p pacemaker nil))
          (is (= 0 (ask 5)) "One that was not ended that.")
          (is (= 5 asked)))))))

(define-server-test in-calm-the-first-who-is-blocked-has-the-next-looks-follow-closely
  (with-look (engine pacemaker)
    (setf (engine::pacemaker-calm-ticks pacemaker) engine::*watchful-ticks*)
    (with-function (engine::seems-blocked-p (original worker) t)
      (is (engine::calm-p pacemaker))
      (is (not (engine::blocked-p pacemaker nil)))
      (is (not (engine::calm-p pacemaker)))
      (is (engine::blocked-p pacemaker nil)))))

(define-server-test a-census-counts-who-is-at-the-ready-set
  (with-look (engine pacemaker)
    (destructuring-bind (free serving brief long)
        (pretend-workers engine 4 :active)
      (declare (ignore free))
      (pretend-workers engine 2 :benched)
      (pretend-workers engine 1 :starting)
      (let ((tick 1000))
        (loop for (worker stamp) in `((,serving ,tick)
                                      (,brief ,(- tick engine::*brief-ticks*))
                                      (,long ,(- tick engine::*brief-ticks* 1)))
              do (setf (engine::ready-worker-stamp worker) stamp))
        (with-function (engine::blocked-p (original pacemaker worker) t)
          (let ((census (engine::take-census engine pacemaker tick)))
            (is (= 2 (engine::census-stuck census)))
            (is (= 1 (engine::census-briefly-stuck census)))
            (is (= 2 (engine::census-loose census)))
            (is (= 1 (engine::census-unsettled census)))
            (is (eq serving (engine::census-unsettled-one census))))))
      (forget-workers engine))))

(define-server-test nobody-opens-anything-to-ask-about-a-worker-that-has-ended
  (with-look (engine pacemaker)
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

(define-server-test a-crowd-that-was-small-again-is-counted-anew
  (with-workers (engine pacemaker 20 :running)
    (let ((census (engine::take-census engine pacemaker 2)))
      (loop repeat 200 do (engine::crowd pacemaker census 3))
      (is (< 19 (engine::crowd pacemaker census 3)))
      (is (zerop (engine::crowd pacemaker census 20)))
      (is (> 2 (engine::crowd pacemaker census 3))))))
