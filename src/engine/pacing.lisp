(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How many workers of the ready engine are awake: the sentinel's rule.
;;;;
;;;;   the sentinel finds                            and does
;;;;   fewer workers than processors that are not    promotes as many as lack, and a quarter of those
;;;;   stuck                                         stuck briefly more: bursts grow by powers
;;;;   more workers waiting than the target          nothing: who is free next sits down
;;;;   a larger crowd than is needed to take         lets a part of the surplus sit down, who is free
;;;;   the place of who gets stuck                   next
;;;;   stuck workers, and several times nobody lacks looks less often: so as not to disturb
;;;;   nobody stuck for long, and somebody blocked   looks more often for a few ticks, before it decides
;;;;   nobody stuck and somebody waiting, for long   dozes until it is rung
;;;;
;;;; Who is stuck, and what the crowd is: see census.lisp.
;;;;
;;;; The target, processors + 1.25 x stuck, rises at once and falls by an eighth of the
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

(defun adjust-target (pace processors stuck)
  (let ((wanted (+ processors (ceiling (* 5 stuck) 4)))
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

(defun lacking-workers (engine pacemaker stuck reserve)
  "How many workers ENGINE should call to the ready set now, when STUCK are blocked: RESERVE
more than lack."
  (let ((free (- (worker-count engine :active :starting) stuck)))
    (if (< free (pacemaker-processors pacemaker))
        (+ (- (pacemaker-processors pacemaker) free) reserve)
        0)))

(defun reinforce (engine count)
  "Calls COUNT workers to the ready set: from the bench, and new ones where that is empty."
  (let ((new (- count (promote engine count))))
    (when (plusp new)
      (mapc #'launch
            (with-engine (engine)
              (loop repeat new
                    while (and (serving-p engine) (room-p engine))
                    collect (reserve-worker engine)))))))

(defun keep-the-door (engine)
  "Where connections are limited, accepts them when no worker may, only to refuse or park them."
  (unless (or (eq (engine-accept-limit engine) :unlimited)
              (with-engine (engine)
                (or (room-p engine) (plusp (coming-count engine)) (not (engine-accepting-p engine)))))
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
         (lacking (lacking-workers engine pacemaker stuck reserve)))
    (setf (pace-now pace) (milliseconds))
    (adjust-target pace (pacemaker-processors pacemaker) stuck)
    (adjust-surplus pace pacemaker census reserve)
    (cond ((plusp lacking)
           (setf (pacemaker-steady-looks pacemaker) 0)
           (reinforce engine lacking)
           (keep-the-door engine))
          (t
           (incf (pacemaker-steady-looks pacemaker))))
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
         (doze engine)
         ;; Whatever it was rung for.
         (look-closely pacemaker)
         (setf (pacemaker-rested-ticks pacemaker) 1
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
  (prepare-thread engine)
  (loop with pacemaker = (make-pacemaker (processor-count))
        until (eq (engine-phase engine) :stopped)
        do (rest-between-ticks engine pacemaker (tick-once engine pacemaker))))
