(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How many workers of the ready engine are awake: the sentinel's rule.
;;;;
;;;; A worker whose request began more than a tick ago, and which waits for something other
;;;; than a processor, or computes for many ticks, is stuck: it does not count any more as one
;;;; who could take what comes.
;;;;
;;;;   the sentinel finds                            and does
;;;;   fewer workers than processors that are not    promotes as many as lack, and a quarter of
;;;;   stuck                                         the stuck ones more: bursts grow by powers
;;;;   more workers waiting than the target          nothing: who is free next sits down
;;;;   nobody stuck and somebody waiting, for long   dozes until it is rung
;;;;
;;;; The target, processors + 1.25 x stuck, rises at once and falls by an eighth of the
;;;; difference a tick, so that handlers of a few ticks do not make workers come and go.
;;;;
;;;; Whether a thread waits for a processor only the kernel knows; to ask costs microseconds,
;;;; so suspects alone are asked about, once for each request, and after several that were
;;;; blocked only one in as many, down to one in 64.
;;;;
;;;; Where handlers block for no longer than a few ticks, half of those that are blocked are no
;;;; suspects yet.  So when nobody is left waiting, one of the others is asked about too, at random,
;;;; and the share that was blocked lately is taken for all of them.

(defparameter *tick-microseconds* 500
  "How long the sentinel naps between two looks while there is something to see.")

(defparameter *computing-ticks* 10
  "For how many ticks a request may compute before its worker counts as stuck.")

(defparameter *watchful-ticks* 100
  "For how many ticks after somebody was stuck the sentinel naps no longer than one.")

(defparameter *long-nap-ticks* 4
  "How many ticks the sentinel naps at a time later.")

(defparameter *doze-naps* 100
  "After how many long naps, all of which found somebody waiting, the sentinel dozes.  To be rung
costs a worker more than several ticks, so it dozes only where that will be seldom.")

(defstruct (pacemaker (:constructor make-pacemaker (processors)))
  "What the sentinel of a ready engine remembers from tick to tick."
  (processors 1 :type fixnum :read-only t)
  (blocked-in-a-row 0 :type fixnum)     ; suspects found blocked since one was not
  (blocked-share 0.0 :type single-float) ; of workers that serve and are no suspects yet
  (rested-ticks 1 :type fixnum)         ; for how many it rested last
  (calm-ticks 0 :type fixnum)           ; since somebody was stuck
  (idle-naps 0 :type fixnum)            ; since somebody was stuck, or nobody waited
  (last-sweep 0 :type fixnum))          ; of deadlines, in MILLISECONDS

(defun blocked-p (pacemaker worker)
  "Asks the kernel, or trusts the experience of PACEMAKER, whether the thread of WORKER is
blocked."
  (if (and (>= (pacemaker-blocked-in-a-row pacemaker) 8)
           (plusp (random (min 64 (pacemaker-blocked-in-a-row pacemaker)))))
      t
      (let ((blocked (found-blocked-p worker)))
        (setf (pacemaker-blocked-in-a-row pacemaker)
              (if blocked (1+ (pacemaker-blocked-in-a-row pacemaker)) 0))
        blocked)))

(defun worker-status (worker)
  "The descriptor that tells about the thread of WORKER; NIL when there is none to be had."
  (or (ready-worker-status worker)
      (with-engine ((worker-engine worker))
        ;; Of who has left already, nobody would close it.
        (unless (eq (worker-state worker) :ended)
          (setf (ready-worker-status worker)
                (open-thread-status (ready-worker-identity worker)))))))

(defun found-blocked-p (worker)
  "Asks the kernel whether the thread of WORKER is blocked."
  (let ((status (worker-status worker)))
    (and status (thread-blocked-p status))))

(defun computing-p (worker stamp)
  "True when the request that WORKER began at STAMP has computed for long since it was first asked
about.  Time in which the system let the thread wait for a processor does not count."
  (let ((run-time (thread-run-time (ready-worker-identity worker))))
    (cond ((= stamp (ready-worker-suspected worker))
           (> (- run-time (ready-worker-run-time worker))
              (* *computing-ticks* *tick-microseconds*)))
          (t
           (setf (ready-worker-suspected worker) stamp
                 (ready-worker-run-time worker) run-time)
           nil))))

(defun stuck-p (pacemaker worker tick)
  "True when WORKER should not be counted on at TICK."
  (let ((stamp (ready-worker-stamp worker)))
    (cond ((zerop stamp) nil)
          ((= stamp (ready-worker-verdict worker)) t)
          ((<= (- tick stamp) 1) nil)
          ((or (blocked-p pacemaker worker) (computing-p worker stamp))
           (setf (ready-worker-verdict worker) stamp)
           t))))

(defun take-census (engine pacemaker tick)
  "How many workers of ENGINE are stuck at TICK; how many others serve; and one of these at random,
or NIL."
  (let ((stuck 0) (others 0) (sample nil))
    (dolist (worker (engine-workers engine) (values stuck others sample))
      (when (eq (worker-state worker) :active)
        (cond ((stuck-p pacemaker worker tick)
               (incf stuck))
              ((plusp (ready-worker-stamp worker))
               (incf others)
               (when (zerop (random others))
                 (setf sample worker))))))))

(defun note-sample (pacemaker worker)
  "Lets it count a little for the blocked share whether WORKER is."
  (setf (pacemaker-blocked-share pacemaker)
        (+ (* 7/8 (pacemaker-blocked-share pacemaker))
           (if (found-blocked-p worker) 0.125 0.0))))

(defun estimate-stuck (engine pacemaker tick)
  "How many workers of ENGINE are blocked at TICK: those known to be stuck, and of the others, when
nobody is left waiting, the share that was blocked when one of them was asked about lately."
  (multiple-value-bind (stuck others sample) (take-census engine pacemaker tick)
    (cond ((zerop stuck)
           (setf (pacemaker-blocked-share pacemaker) 0.0)
           0)
          ((somebody-waits-p engine)
           stuck)
          (t
           (when sample
             (note-sample pacemaker sample))
           (+ stuck (floor (* others (pacemaker-blocked-share pacemaker))))))))

(defun adjust-target (pace processors stuck)
  (let ((wanted (+ processors (ceiling (* 5 stuck) 4)))
        (target (pace-target pace)))
    (setf (pace-target pace)
          (if (>= wanted target)
              wanted
              (- target (ceiling (- target wanted) 8))))))

(defun lacking-workers (engine pacemaker stuck)
  "How many workers ENGINE should call to the ready set now."
  (let ((free (- (worker-count engine :active :starting) stuck)))
    (if (< free (pacemaker-processors pacemaker))
        (+ (- (pacemaker-processors pacemaker) free) (floor stuck 4))
        0)))

(defun reinforce (engine count)
  "Calls COUNT workers to the ready set: from the bench, and new ones where that is empty."
  (let ((new (- count (promote engine count))))
    (when (plusp new)
      (mapc #'launch
            (with-engine (engine)
              (loop repeat new
                    while (and (running-p engine) (room-p engine))
                    collect (reserve-worker engine)))))))

(defun keep-the-door (engine)
  "Where connections are limited, accepts them when no worker may, only to refuse or park them."
  (unless (or (eq (engine-accept-limit engine) :unlimited)
              (with-engine (engine)
                (or (room-p engine) (plusp (coming-count engine)) (not (running-p engine)))))
    (accept-for-others engine)))

(defun pace-workers (engine pacemaker)
  "One tick.  Returns what the next one should look at: :STUCK workers, or only :BUSY ones; or NIL
for nothing."
  (let* ((pace (engine-pace engine))
         (tick (incf (pace-tick pace) (pacemaker-rested-ticks pacemaker)))
         (stuck (estimate-stuck engine pacemaker tick))
         (lacking (lacking-workers engine pacemaker stuck)))
    (setf (pace-now pace) (milliseconds))
    (adjust-target pace (pacemaker-processors pacemaker) stuck)
    (when (plusp lacking)
      (reinforce engine lacking)
      (keep-the-door engine))
    (cond ((or (plusp stuck) (> (pace-target pace) (pacemaker-processors pacemaker))) :stuck)
          ((somebody-waits-p engine) nil)
          (t :busy))))

;;; The sentinel

(defun doze (engine)
  "Waits until the bell is rung, and at most until the next sweep."
  (let ((pace (engine-pace engine)))
    (bt:with-lock-held ((engine-lock engine))
      (setf (pace-dozing-p pace) t)
      ;; Who takes the last seat rings only when it sees that we doze: look once more.
      (when (and (not (eq (engine-phase engine) :stopped))
                 (somebody-waits-p engine))
        (wait-on (engine-bell engine) (engine-lock engine) *tick*))
      (setf (pace-dozing-p pace) nil))))

(defun rest-between-ticks (engine pacemaker found)
  "Rests after a tick that FOUND what PACE-WORKERS returns."
  (cond ((draining-p engine)
         (finish-one engine))
        ((eq found :stuck)
         (setf (pacemaker-calm-ticks pacemaker) 0
               (pacemaker-idle-naps pacemaker) 0)
         (rest-for pacemaker 1))
        ((< (incf (pacemaker-calm-ticks pacemaker)) *watchful-ticks*)
         (rest-for pacemaker 1))
        ((eq found :busy)
         (setf (pacemaker-idle-naps pacemaker) 0)
         (rest-for pacemaker *long-nap-ticks*))
        ((< (incf (pacemaker-idle-naps pacemaker)) *doze-naps*)
         (rest-for pacemaker *long-nap-ticks*))
        (t
         (doze engine)
         ;; Whatever it was rung for is looked at closely for a few ticks.
         (setf (pacemaker-rested-ticks pacemaker) 1
               (pacemaker-calm-ticks pacemaker) (- *watchful-ticks* 5)
               (pacemaker-idle-naps pacemaker) 0))))

(defun rest-for (pacemaker ticks)
  "Naps for TICKS, which count as such: or a request that takes less than a long nap would never
look as if it had begun more than a tick ago."
  (nap (* ticks *tick-microseconds*))
  (setf (pacemaker-rested-ticks pacemaker) ticks))

(defun tick-once (engine pacemaker)
  (handler-case
      (progn (sweep engine pacemaker)
             (pace-workers engine pacemaker))
    (error (condition)
      (count-failure engine)
      (tell engine :error "The sentinel stumbled: ~A" condition)
      nil)))

(defmethod watch-over ((engine ready-engine))
  (loop with pacemaker = (make-pacemaker (processor-count))
        until (eq (engine-phase engine) :stopped)
        do (rest-between-ticks engine pacemaker (tick-once engine pacemaker))))
