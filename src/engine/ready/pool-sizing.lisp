(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How many workers of the ready engine are awake, and how often the sentinel looks: all that it
;;;; decides.
;;;;
;;;; At a tick the sentinel takes a sample of the workers (worker-sample.lisp), decides, and rests.
;;;;
;;;;   a sample finds                              the sentinel                              decision
;;;;   nobody waiting, all workers that are        wants half as many more, and no more      :grow
;;;;   wanted there and not stuck                  than processors
;;;;   somebody waiting, as in the 50 before       wants fewer: an eighth of those beyond    :shrink
;;;;                                               the floor, down to that
;;;;   wanted + 1.25 x stuck above the target      raises the target to that                 :raise-target
;;;;   the same below the target                   lowers it by an eighth of the difference  :lower-target
;;;;   fewer workers awake that are not stuck      resumes as many as lack, and headroom     :resume
;;;;   than are wanted
;;;;   the same, and too few are suspended         makes others, within the limit            :launch
;;;;   the same, and all that may exist serve      accepts itself, only to refuse or park,   :accept-overflow
;;;;                                               where connections are limited
;;;;   more running than processors + 1 and        suspends 1/32 of the excess               :suspend
;;;;   headroom
;;;;   more workers than the thread limit          suspends the excess                       :limit
;;;;   a suspect blocked, nobody stuck for long    samples fast before it believes that      :confirm
;;;;
;;;;   then it finds                               and rests for                             decision
;;;;   the engine draining                         four ticks                                :drain-nap
;;;;   somebody stuck, or the target above the     a tick                                    :fast-nap
;;;;   floor
;;;;   the same, and nobody lacking in the last    four ticks: a look may take a processor   :back-off-nap
;;;;   8 samples                                   away from a request
;;;;   neither, but in the last 100 ticks          a tick                                    :watch-nap
;;;;   neither for long, nobody waiting            four ticks                                :busy-nap
;;;;   neither for long, somebody waiting          four ticks                                :spare-nap
;;;;   the same after 100 such naps                until a worker wakes it, or a deadline    :idle-wait
;;;;
;;;; Each decision is counted: see the statistic :DECISIONS.  Of the first table any number may come
;;;; at a sample, of the second exactly one.  Workers add two rules of their own between two
;;;; requests, which are in suspended-workers.lisp: one that finds as many waiting as the target, or
;;;; that is one of the excess, is suspended; and one that was suspended for long ends, where the
;;;; pool is larger than it is kept at rest.
;;;;
;;;;   floor      as many as there are processors, and no more than the pool has at rest: where processors
;;;;              are many, an idle server has no more threads than it was told to keep
;;;;   stuck      blocked, or computing for long, at one request: see worker-sample.lisp
;;;;   headroom   a quarter of those that are stuck briefly: as many others may be at the next tick.  So
;;;;              bursts grow by powers
;;;;   target     how many workers may wait.  It falls slowly, so that handlers of a few ticks do not make
;;;;              workers come and go
;;;;
;;;; Those that run have to become fewer, too, if more slowly: where all processors are taken nobody
;;;; waits, so of those that a burst has resumed nobody would be suspended any more, and each of
;;;; them makes the others wait longer for a processor, in the midst of a request.

(defparameter *long-nap-ticks* 4
  "For how many ticks the sentinel naps where a tick is not enough to change much.")

(defparameter *samples-before-back-off* 8
  "After how many samples that found nobody lacking the sentinel naps for so long although somebody
is stuck.  Each of its looks may take a processor away from a worker amid a request.")

(defparameter *naps-before-idle-wait* 100
  "After how many long naps, all of which found somebody waiting, the sentinel waits idly.  To wake
it costs a worker more than several ticks, so it does so only where that will be seldom.")

(defparameter *samples-before-shrink* 50
  "After how many samples at which somebody waited fewer workers are wanted.")

;;; Counters

(defparameter *decisions*
  '(:grow :shrink :raise-target :lower-target :resume :launch :accept-overflow :suspend :limit :confirm
    :drain-nap :fast-nap :back-off-nap :watch-nap :busy-nap :spare-nap :idle-wait)
  "What the sentinel decides, in the order of the tables above.")

(defun make-decision-counters ()
  "A vector of zeros, one for each of *DECISIONS*, which the sentinel alone writes."
  (make-array (length *decisions*) :element-type 'fixnum :initial-element 0))

(defun count-decision (controller decision)
  "Counts DECISION, one of *DECISIONS*."
  (incf (aref (controller-decisions controller) (position decision *decisions*))))

(defun decision-counts (counters)
  "A plist of *DECISIONS* and how often COUNTERS say that each was made."
  (loop for decision in *decisions*
        for count across counters
        collect decision
        collect count))

;;; How many are wanted

(defun awake-when-somebody-waits (controller floor)
  "How many workers CONTROLLER wants after one more sample at which somebody waited; FLOOR at
least."
  (let ((awake (controller-awake controller)))
    (max floor
         (if (> (incf (controller-samples-with-idle controller)) *samples-before-shrink*)
             (- awake (max 1 (floor (- awake floor) 8)))
             awake))))

(defun awake-when-nobody-waits (controller floor free)
  "How many workers CONTROLLER wants when FREE are there that are not stuck; FLOOR at least."
  (let ((awake (controller-awake controller)))
    (setf (controller-samples-with-idle controller) 0)
    (max floor
         (if (>= free awake)
             (min (controller-processors controller) (+ awake (max 1 (floor awake 2))))
             awake))))

(defun adjust-awake (engine controller free)
  "Settles how many workers of ENGINE are wanted that are not stuck, of whom FREE are there."
  (let* ((floor (pool-state-floor (engine-pool-state engine)))
         (before (controller-awake controller))
         (awake (if (somebody-waits-p engine)
                    (awake-when-somebody-waits controller floor)
                    (awake-when-nobody-waits controller floor free))))
    (setf (controller-awake controller) awake)
    (cond ((> awake before) (count-decision controller :grow))
          ((< awake before) (count-decision controller :shrink)))))

(defun adjust-target (pool controller stuck)
  "Tells the workers how many of them may wait while STUCK are stuck."
  (let ((wanted (+ (controller-awake controller) (ceiling (* 5 stuck) 4)))
        (target (pool-state-target pool)))
    (cond ((> wanted target)
           (count-decision controller :raise-target)
           (setf (pool-state-target pool) wanted))
          ((< wanted target)
           (count-decision controller :lower-target)
           (decf (pool-state-target pool) (ceiling (- target wanted) 8))))))

;;; Fewer

(defun adjust-excess (pool controller sample headroom)
  "Tells the workers how many of them are to be suspended before the next tick: HEADROOM are to be
had beyond those that run and one that takes the next event."
  (let* ((enough (+ (controller-processors controller) 1 headroom))
         (excess (max 0 (- (estimated-runnable controller sample enough) enough))))
    (setf (values (pool-state-excess pool) (controller-excess-fraction controller))
          (floor (+ (/ excess 32.0) (controller-excess-fraction controller))))
    (when (plusp (pool-state-excess pool))
      (count-decision controller :suspend))))

(defun apply-thread-limit (engine pool controller)
  "Has those suspended that are more than ENGINE may have, since its limit was made lower."
  (let ((limit (engine-thread-limit engine)))
    (when limit
      (let ((excess (- (worker-count engine :active :starting) limit)))
        (when (> excess (pool-state-excess pool))
          (count-decision controller :limit)
          (setf (pool-state-excess pool) excess))))))

;;; More

(defun worker-deficit (controller free headroom)
  "How many workers should be called to the ready set now, when FREE are there that are not stuck:
HEADROOM more than lack."
  (let ((awake (controller-awake controller)))
    (if (< free awake)
        (+ (- awake free) headroom)
        0)))

(defun reserve-workers (engine count)
  "Up to COUNT new workers of ENGINE, which have no threads yet; fewer where it may not have so
many."
  (with-engine (engine)
    (loop repeat count
          while (and (serving-p engine) (room-p engine) (may-launch-p engine))
          collect (reserve-worker engine))))

(defun add-workers (engine controller count)
  "Has COUNT more workers of ENGINE wait on the ready set: suspended ones, and new ones where these
are too few."
  (let ((resumed (resume-workers engine count)))
    (when (plusp resumed)
      (count-decision controller :resume))
    (when (< resumed count)
      (let ((made-before (tally-made (engine-tally engine))))
        (uninterruptibly                ; as for those that are missing
          (launch-all engine (reserve-workers engine (- count resumed))))
        (when (> (tally-made (engine-tally engine)) made-before)
          (count-decision controller :launch))))))

(defun accept-overflow (engine controller)
  "Where connections are limited, accepts them when no worker may, only to refuse or park them."
  (unless (or (eq (engine-accept-limit engine) :unlimited)
              (not (engine-accepting-p engine))
              (not (all-serve-p engine)))
    (count-decision controller :accept-overflow)
    (accept-for-others engine)))

(defun meet-deficit (engine controller deficit)
  "Adds DEFICIT workers to those of ENGINE that are awake, where that is not 0."
  (cond ((plusp deficit)
         (setf (controller-samples-without-deficit controller) 0)
         (add-workers engine controller deficit)
         (accept-overflow engine controller))
        (t
         (incf (controller-samples-without-deficit controller)))))

;;; One tick

(defun adjust-pool (engine controller)
  "Samples the workers of ENGINE and decides how many should be awake.  Returns what the next sample
should look at: :STUCK workers, or only :BUSY ones; or NIL for nothing."
  (let* ((pool (engine-pool-state engine))
         (tick (incf (pool-state-tick pool) (controller-last-nap-ticks controller)))
         (sample (sample-workers engine controller tick))
         (blocked-unseen (estimated-blocked engine controller sample))
         (stuck (+ (worker-sample-stuck sample) blocked-unseen))
         (headroom (floor (+ (worker-sample-briefly-stuck sample) blocked-unseen) 4))
         (free (- (worker-count engine :active :starting) stuck)))
    (setf (pool-state-clock pool) (milliseconds)
          (pool-state-calm-p pool) (slow-sampling-p controller))
    (adjust-awake engine controller free)
    (let ((deficit (worker-deficit controller free headroom)))
      (adjust-target pool controller stuck)
      (adjust-excess pool controller sample headroom)
      (apply-thread-limit engine pool controller)
      (meet-deficit engine controller deficit))
    (cond ((or (plusp stuck) (> (pool-state-target pool) (pool-state-floor pool))) :stuck)
          ((somebody-waits-p engine) nil)
          (t :busy))))

;;; How long to rest

(defun note-found (controller found)
  "Has CONTROLLER remember what a sample FOUND, as ADJUST-POOL returns it."
  (cond ((eq found :stuck)
         (setf (controller-ticks-without-stuck controller) 0
               (controller-idle-naps controller) 0))
        (t
         (incf (controller-ticks-without-stuck controller))
         (when (slow-sampling-p controller)
           (if (eq found :busy)
               (setf (controller-idle-naps controller) 0)
               (incf (controller-idle-naps controller)))))))

(defun next-rest (controller found)
  "How the sentinel rests after a sample that FOUND something, which CONTROLLER remembers."
  (cond ((eq found :stuck)
         (if (> (controller-samples-without-deficit controller) *samples-before-back-off*)
             :back-off-nap
             :fast-nap))
        ((not (slow-sampling-p controller)) :watch-nap)
        ((eq found :busy) :busy-nap)
        ((< (controller-idle-naps controller) *naps-before-idle-wait*) :spare-nap)
        (t :idle-wait)))

(defun decide-rest (engine controller found)
  "How the sentinel of ENGINE rests after a sample that FOUND something: the last of *DECISIONS*."
  (cond ((draining-p engine) :drain-nap) ; somebody waits for the end of it
        (t
         (note-found controller found)
         (next-rest controller found))))

(defun nap-ticks (rest)
  "For how many ticks the sentinel naps that rests as REST says."
  (ecase rest
    ((:fast-nap :watch-nap) 1)
    ((:drain-nap :back-off-nap :busy-nap :spare-nap) *long-nap-ticks*)))
