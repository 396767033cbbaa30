(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How many workers of the ready engine are awake: the sentinel's rule.
;;;;
;;;;   the sentinel finds                            and does
;;;;   fewer workers awake that are not stuck than   promotes as many as lack, and a quarter of those
;;;;   it wants                                      stuck briefly more: bursts grow by powers
;;;;   all whom it wants serving, and more           wants half as many more
;;;;   processors
;;;;   somebody waiting at many looks in a row       wants fewer, step by step, down to the floor
;;;;   more workers waiting than the target          nothing: who is free next sits down
;;;;   a larger crowd than is needed to take         lets a part of the surplus sit down, who is free
;;;;   the place of who gets stuck                   next
;;;;   stuck workers, and several times nobody lacks looks less often: so as not to disturb
;;;;   nobody stuck for long, and somebody blocked   looks more often for a few ticks, before it decides
;;;;   nobody stuck and somebody waiting, for long   dozes until it is rung
;;;;
;;;; Who is stuck, and what the crowd is: see census.lisp.
;;;;
;;;; The floor is as many as there are processors, and no more than the pool has at rest: where processors
;;;; are many, an idle server has no more threads than it was told to keep.
;;;;
;;;; The target, those wanted + 1.25 x stuck, rises at once and falls by an eighth of the
;;;; difference a tick, so that handlers of a few ticks do not make workers come and go.  The crowd
;;;; is let shrink more slowly, by 1/32 of the surplus.  But it has to shrink: where all processors
;;;; are taken nobody waits, so of those whom a burst has called nobody would sit down any more, and
;;;; each of them makes the others wait longer for a processor, in the midst of a request.

(defparameter *long-nap-ticks* 4
  "How many ticks the sentinel naps at a time later.")

(defparameter *steady-looks* 8
  "After how many looks that found nobody lacking the sentinel naps for so long although somebody is
stuck.  Each of its looks may take a processor away from a worker amid a request.")

(defparameter *doze-naps* 100
  "After how many long naps, all of which found somebody waiting, the sentinel dozes.  To be rung
costs a worker more than several ticks, so it dozes only where that will be seldom.")

(defparameter *quiet-looks* 50
  "After how many looks at which somebody waited fewer workers are wanted.")

(defparameter *count-milliseconds* 20000
  "How often the sentinel counts processors.")

(defun count-processors (engine pacemaker now)
  "Lets PACEMAKER and the workers of ENGINE know how many processors there are NOW: they may be given and
taken away while we run, and the pool's floor, too, may have changed."
  (when (> (- now (pacemaker-last-count pacemaker)) *count-milliseconds*)
    (setf (pacemaker-last-count pacemaker) now
          (pacemaker-processors pacemaker) (usable-processors)))
  (setf (pace-floor (engine-pace engine))
        (min (pacemaker-processors pacemaker) (engine-standby engine))))

(defun adjust-awake (engine pacemaker free)
  "Settles how many workers of ENGINE are wanted that are not stuck, of whom FREE are there."
  (let ((floor (pace-floor (engine-pace engine)))
        (awake (pacemaker-awake pacemaker)))
    (setf (pacemaker-awake pacemaker)
          (cond ((somebody-waits-p engine)
                 (if (> (incf (pacemaker-quiet-looks pacemaker)) *quiet-looks*)
                     (max floor (- awake (max 1 (floor (- awake floor) 8))))
                     (max floor awake)))
                (t
                 (setf (pacemaker-quiet-looks pacemaker) 0)
                 (max floor (if (>= free awake)
                                (min (pacemaker-processors pacemaker)
                                     (+ awake (max 1 (floor awake 2))))
                                awake)))))))

(defun adjust-target (pace awake stuck)
  (let ((wanted (+ awake (ceiling (* 5 stuck) 4)))
        (target (pace-target pace)))
    (setf (pace-target pace)
          (if (>= wanted target)
              wanted
              (- target (ceiling (- target wanted) 8))))))

(defun adjust-surplus (pace pacemaker census reserve)
  "Tells the workers how many of them should sit down before the next tick: RESERVE are to be had
beyond those that run and one that takes the next event."
  (let* ((enough (+ (pacemaker-processors pacemaker) 1 reserve))
         (surplus (max 0 (- (crowd pacemaker census enough) enough))))
    (setf (values (pace-surplus pace) (pacemaker-surplus-left pacemaker))
          (floor (+ (/ surplus 32.0) (pacemaker-surplus-left pacemaker))))))

(defun heed-limit (engine pace)
  "Lets those sit down who are more than ENGINE may have, since its limit was made lower."
  (let ((limit (engine-thread-limit engine)))
    (when limit
      (let ((excess (- (worker-count engine :active :starting) limit)))
        (when (> excess (pace-surplus pace))
          (setf (pace-surplus pace) excess))))))

(defun lacking-workers (pacemaker free reserve)
  "How many workers should be called to the ready set now, when FREE are there that are not stuck:
RESERVE more than lack."
  (let ((awake (pacemaker-awake pacemaker)))
    (if (< free awake)
        (+ (- awake free) reserve)
        0)))

(defun reinforce (engine count)
  "Calls COUNT workers to the ready set: from the bench, and new ones where that is empty."
  (let ((new (- count (promote engine count))))
    (when (plusp new)
      (launch-all engine
                  (with-engine (engine)
                    (loop repeat new
                          while (and (serving-p engine) (room-p engine) (may-launch-p engine))
                          collect (reserve-worker engine)))))))

(defun keep-the-door (engine)
  "Where connections are limited, accepts them when no worker may, only to refuse or park them."
  (unless (or (eq (engine-accept-limit engine) :unlimited)
              (not (engine-accepting-p engine))
              (not (all-serve-p engine)))
    (accept-for-others engine)))

(defun pace-workers (engine pacemaker)
  "One tick.  Returns what the next one should look at: :STUCK workers, or only :BUSY ones; or NIL
for nothing."
  (let* ((pace (engine-pace engine))
         (tick (incf (pace-tick pace) (pacemaker-rested-ticks pacemaker)))
         (census (take-census engine pacemaker tick))
         (unseen (unseen-blocked engine pacemaker census))
         (stuck (+ (census-stuck census) unseen))
         ;; While some are blocked briefly, as many others may be at the next tick.
         (reserve (floor (+ (census-briefly-stuck census) unseen) 4))
         (free (- (worker-count engine :active :starting) stuck))
         (lacking (progn (adjust-awake engine pacemaker free)
                         (lacking-workers pacemaker free reserve))))
    (setf (pace-clock pace) (milliseconds))
    (adjust-target pace (pacemaker-awake pacemaker) stuck)
    (adjust-surplus pace pacemaker census reserve)
    (heed-limit engine pace)
    (cond ((plusp lacking)
           (setf (pacemaker-steady-looks pacemaker) 0)
           (reinforce engine lacking)
           (keep-the-door engine))
          (t
           (incf (pacemaker-steady-looks pacemaker))))
    (cond ((or (plusp stuck) (> (pace-target pace) (pace-floor pace))) :stuck)
          ((somebody-waits-p engine) nil)
          (t :busy))))

;;; The sentinel

(defun next-deadline (engine)
  "The first deadline of a connection of ENGINE, in MILLISECONDS, or NIL."
  (let ((first nil))
    (map-connections (lambda (connection)
                       (let ((deadline (connection-deadline connection)))
                         (when (and deadline (or (null first) (< deadline first)))
                           (setf first deadline))))
                     (engine-table engine))
    first))

(defun doze-seconds (engine)
  "How long the sentinel of ENGINE may doze: until the next deadline, but not much less than until the
next sweep nor longer than *REST*."
  (if (or (engine-accept-again-p engine) (engine-thread-trouble-p engine) (not (running-p engine)))
      *tick*
      (let ((deadline (next-deadline engine)))
        (if deadline
            (max *tick* (min *rest* (/ (- deadline (milliseconds)) 1000)))
            *rest*))))

(defun doze (engine)
  "Waits until the bell is rung, and at most as long as there is nothing else to do.  True when a worker
of ENGINE rang because nobody waits any more."
  (let ((pace (engine-pace engine))
        (seconds (doze-seconds engine)))
    (unwind-protect
         (bt:with-lock-held ((engine-lock engine))
           (setf (pace-clock-stands-p pace) t
                 (pace-dozing-p pace) t)
           ;; Who takes the last seat counts itself off, and then reads DOZING-P; so DOZING-P must be
           ;; seen by all before the count is read here, or each might miss what the other wrote.
           (order-memory)
           (when (and (not (eq (engine-phase engine) :stopped))
                      (somebody-waits-p engine))
             (wait-on (engine-bell engine) (engine-lock engine) seconds))
           (not (pace-dozing-p pace)))
      (setf (pace-dozing-p pace) nil)
      (resume-clock pace))))

(defun rest-between-ticks (engine pacemaker found)
  "Rests after a tick that FOUND what PACE-WORKERS returns."
  (cond ((draining-p engine)            ; somebody waits for the end of it
         (rest-for pacemaker *long-nap-ticks*))
        ((eq found :stuck)
         (setf (pacemaker-calm-ticks pacemaker) 0
               (pacemaker-idle-naps pacemaker) 0)
         (rest-for pacemaker (if (> (pacemaker-steady-looks pacemaker) *steady-looks*)
                                 *long-nap-ticks*
                                 1)))
        ((progn (incf (pacemaker-calm-ticks pacemaker))
                (not (calm-p pacemaker)))
         (rest-for pacemaker 1))
        ((eq found :busy)
         (setf (pacemaker-idle-naps pacemaker) 0)
         (rest-for pacemaker *long-nap-ticks*))
        ((< (incf (pacemaker-idle-naps pacemaker)) *doze-naps*)
         (rest-for pacemaker *long-nap-ticks*))
        (t
         (when (doze engine)
           (look-closely pacemaker)
           (setf (pacemaker-idle-naps pacemaker) 0))
         (setf (pacemaker-rested-ticks pacemaker) 1))))

(defun rest-for (pacemaker ticks)
  "Naps for TICKS, which count as such: or a request that takes less than a long nap would never
look as if it had begun more than a tick ago."
  (nap (* ticks *tick-microseconds*))
  (setf (pacemaker-rested-ticks pacemaker) ticks))

(defun sample-wait-when-busy (engine pacemaker)
  "Samples how long what is ready waits, if something was since the last time or a worker serves: at rest
each sample would wake a thread."
  (let ((done (+ (requests-served engine) (counter-count (engine-accept-count engine))))
        (probe (engine-probe engine)))
    (when (or (/= done (shiftf (pacemaker-work-done pacemaker) done))
              (zerop (probe-count probe))
              (plusp (probe-sent probe))
              (plusp (with-engine (engine) (attended-count engine))))
      (sample-wait probe (engine-poller engine)))))

(defun make-engine-pacemaker (engine)
  "A pacemaker for ENGINE, whose workers know their floor."
  (let ((processors (usable-processors)))
    (make-pacemaker processors (pace-floor (engine-pace engine)) (milliseconds))))

(defmethod watch-over ((engine ready-engine))
  (prepare-thread engine)
  (resume-clock (engine-pace engine))
  (check-sight engine)
  (loop with pacemaker = (make-engine-pacemaker engine)
        until (eq (engine-phase engine) :stopped)
        do (call-surviving engine :sweep (lambda () (sweep engine pacemaker)))
        unless (call-surviving engine :pace
                               (lambda ()
                                 (rest-between-ticks engine pacemaker
                                                     (pace-workers engine pacemaker))))
          ;; PACE-WORKERS may have failed before it set the clock.
          do (setf (pace-clock-stands-p (engine-pace engine)) t)
             (pause-after-failure engine)
             (resume-clock (engine-pace engine))))

(defun resume-clock (pace)
  "Lets PACE-NOW be what the current thread, the sentinel's, says from now on.  Nobody else does."
  (setf (pace-clock pace) (milliseconds)
        (pace-clock-stands-p pace) nil))

(defmethod call-for-sentinel ((engine ready-engine))
  ;; As long as nobody ticks, deadlines must not count from the last tick.
  (setf (pace-clock-stands-p (engine-pace engine)) t)
  (summon (engine-poller engine)))
