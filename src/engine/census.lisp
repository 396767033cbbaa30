(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What the sentinel sees of the workers.
;;;;
;;;; A worker whose request began more than a tick ago, and which waits for something other
;;;; than a processor, or computes for many ticks, is stuck: it does not count any more as one
;;;; who could take what comes.
;;;;
;;;; Whether a thread waits for a processor only the kernel knows; to ask costs microseconds,
;;;; so suspects alone are asked about, once for each request, and after several that were
;;;; blocked only one in as many, down to one in 64.
;;;;
;;;; Where the kernel does not tell, because /proc is not there or no descriptor is left, a suspect is
;;;; taken for blocked when its thread's own clock stood still between two looks.  On a busy machine that
;;;; is so, too, while it waits for a processor: the pool grows more than it need, but it grows.
;;;;
;;;; While all is calm the naps are long, and who was blocked for a moment, by a collection of garbage
;;;; say, is a suspect as well; so the first that is found blocked only has the next looks follow
;;;; closely.
;;;;
;;;; Of those that are not stuck one or two are asked about at each tick, at random, and the share
;;;; of what was found lately is taken for all of them:
;;;;
;;;; - Where handlers block for no longer than a few ticks, half of those that are blocked are no
;;;;   suspects yet.
;;;; - Who counts as waiting need not: where all processors are taken, most threads that turned to the
;;;;   poller have been told already, and wait for a processor.  Only the kernel knows how large the
;;;;   crowd is that does.

(defparameter *tick-microseconds* 500
  "How long the sentinel naps between two looks while there is something to see.")

(defparameter *computing-ticks* 10
  "For how many ticks a request may compute before its worker counts as stuck.")

(defparameter *watchful-ticks* 100
  "For how many ticks after somebody was stuck the sentinel naps no longer than one.")

(defparameter *brief-ticks* 20
  "A worker that is stuck for no longer may well be free again at the next tick.")

(defstruct (pacemaker (:include opaque)
                      (:constructor make-pacemaker
                          (processors &optional (awake processors) (last-count 0))))
  "What the sentinel of a ready engine remembers from tick to tick."
  (processors 1 :type fixnum)
  (awake 1 :type fixnum)                ; how many workers that are not stuck are wanted
  (quiet-looks 0 :type fixnum)          ; since nobody waited
  (blocked-in-a-row 0 :type fixnum)     ; suspects found blocked since one was not
  (blocked-share 0.0 :type single-float) ; of workers that serve and are no suspects yet
  (running-share 0.0 :type single-float) ; of active workers that are not stuck
  (surplus-left 0.0 :type single-float) ; less than one worker, of those that should sit down
  (steady-looks 0 :type fixnum)         ; since it found workers lacking
  (rested-ticks 1 :type fixnum)         ; for how many it rested last
  (calm-ticks 0 :type fixnum)           ; since somebody was stuck
  (idle-naps 0 :type fixnum)            ; since somebody was stuck, or nobody waited
  (last-sweep 0 :type fixnum)           ; of deadlines, in MILLISECONDS
  (last-count 0 :type fixnum)           ; of processors, likewise
  (work-done 0 :type integer))          ; see SAMPLE-WAIT-WHEN-BUSY

(defstruct (census (:include opaque))
  "The active workers at a tick.  Others are stuck, LOOSE ones are not, and of these the UNSETTLED
serve a request."
  (stuck 0 :type fixnum)
  (briefly-stuck 0 :type fixnum)        ; of the stuck, see *BRIEF-TICKS*
  (loose 0 :type fixnum)
  (unsettled 0 :type fixnum)
  (loose-one nil)                       ; one of them, at random
  (unsettled-one nil))                  ; likewise

;;; Asking the kernel

(defun worker-status (worker)
  "The descriptor that tells about the thread of WORKER; NIL when there is none to be had."
  (or (ready-worker-status worker)
      (with-engine ((worker-engine worker))
        ;; Of who has left already, nobody would close it.
        (unless (eq (worker-state worker) :ended)
          (setf (ready-worker-status worker)
                (open-thread-status (ready-worker-identity worker)))))))

(defun gather-status-descriptors (engine)
  "Puts those of workers that are asked about no more with those that are to be closed: only who is
awake has one."
  (with-engine (engine)
    (dolist (worker (engine-benched engine))
      (when (ready-worker-status worker)
        (push (shiftf (ready-worker-status worker) nil) (engine-status-descriptors engine))))))

(defun note-blindness (engine)
  "Tells, once, that nobody tells the sentinel of ENGINE which threads are blocked."
  (unless (shiftf (engine-blind-p engine) t)
    (tell engine :warning
          "The system does not tell which threads are blocked (is /proc mounted, and are descriptors
left?).  Who does not get on for a tick or two counts as blocked, so there may be more threads than
needed.")))

(defun check-sight (engine)
  "Notes it if the system does not tell of threads at all."
  (with-acquired (status (open-thread-status (thread-identity))
                         (when status
                           (close-descriptor status)))
    (unless (and status (thread-state status))
      (note-blindness engine))))

(defun ask-state (worker)
  "What the kernel tells of the thread of WORKER: :BLOCKED, :RUNNING, or NIL for nothing."
  (let ((status (worker-status worker)))
    (or (and status (thread-state status))
        (progn (note-blindness (worker-engine worker))
               nil))))

(defun found-blocked-p (worker)
  "Asks the kernel whether the thread of WORKER is blocked."
  (eq :blocked (ask-state worker)))

(defun standing-still-p (worker)
  "True when the thread of WORKER, at the request that was asked about before, has had next to no
processor since it was asked about last."
  (and (= (ready-worker-stamp worker) (ready-worker-suspected worker))
       (let ((run-time (thread-run-time (ready-worker-identity worker))))
         (< (- run-time (shiftf (ready-worker-latest-run-time worker) run-time))
            (floor *tick-microseconds* 4)))))

(defun seems-blocked-p (worker)
  "Whether the thread of WORKER, a suspect, is blocked, as the kernel tells, or else its own clock."
  (case (ask-state worker)
    (:blocked t)
    (:running nil)
    (t (standing-still-p worker))))

(defun calm-p (pacemaker)
  "True when nobody has been stuck for long."
  (>= (pacemaker-calm-ticks pacemaker) *watchful-ticks*))

(defun look-closely (pacemaker)
  "Lets the next few naps be short."
  (setf (pacemaker-calm-ticks pacemaker) (- *watchful-ticks* 5)))

(defun blocked-p (pacemaker worker)
  "Asks the kernel, or trusts the experience of PACEMAKER, whether the thread of WORKER is
blocked.  In a calm, none is at the first look, which has others follow soon."
  (if (and (>= (pacemaker-blocked-in-a-row pacemaker) 8)
           (plusp (random (min 64 (pacemaker-blocked-in-a-row pacemaker)))))
      t
      (let ((blocked (seems-blocked-p worker)))
        (setf (pacemaker-blocked-in-a-row pacemaker)
              (if blocked (1+ (pacemaker-blocked-in-a-row pacemaker)) 0))
        (cond ((and blocked (calm-p pacemaker))
               (look-closely pacemaker)
               nil)
              (t blocked)))))

(defun computing-p (worker stamp)
  "True when the request that WORKER began at STAMP has computed for long since it was first asked
about.  Time in which the system let the thread wait for a processor does not count."
  (let ((run-time (thread-run-time (ready-worker-identity worker))))
    (cond ((= stamp (ready-worker-suspected worker))
           (> (- run-time (ready-worker-run-time worker))
              (* *computing-ticks* *tick-microseconds*)))
          (t
           (setf (ready-worker-suspected worker) stamp
                 (ready-worker-run-time worker) run-time
                 (ready-worker-latest-run-time worker) run-time)
           nil))))

;;; Counting

(defun stuck-p (pacemaker worker tick)
  "True when WORKER should not be counted on at TICK."
  (let ((stamp (ready-worker-stamp worker)))
    (cond ((zerop stamp) nil)
          ((= stamp (ready-worker-verdict worker)) t)
          ((<= (- tick stamp) 1) nil)
          ((or (blocked-p pacemaker worker) (computing-p worker stamp))
           (setf (ready-worker-verdict worker) stamp)
           t))))

(defun count-stuck (census worker tick)
  (incf (census-stuck census))
  (when (<= (- tick (ready-worker-stamp worker)) *brief-ticks*)
    (incf (census-briefly-stuck census))))

(defun count-loose (census worker)
  (when (zerop (random (incf (census-loose census))))
    (setf (census-loose-one census) worker))
  (when (and (plusp (ready-worker-stamp worker))
             (zerop (random (incf (census-unsettled census)))))
    (setf (census-unsettled-one census) worker)))

(defun take-census (engine pacemaker tick)
  "The CENSUS of ENGINE at TICK."
  (let ((census (make-census)))
    (dolist (worker (engine-workers engine) census)
      (when (eq (worker-state worker) :active)
        (if (stuck-p pacemaker worker tick)
            (count-stuck census worker tick)
            (count-loose census worker))))))

;;; Shares

(defun share-with (share found-p weight)
  "SHARE, of those of whom something was found lately, with another one of whom it was if FOUND-P."
  (+ (* (- 1.0 weight) share) (if found-p weight 0.0)))

(defun unseen-blocked (engine pacemaker census)
  "How many workers of ENGINE are blocked that are no suspects yet in CENSUS, after one more of them was
asked about.  0 while somebody waits: there is no need to know then."
  (let ((sample (census-unsettled-one census)))
    (cond ((or (null sample) (somebody-waits-p engine)) 0)
          (t
           (setf (pacemaker-blocked-share pacemaker)
                 (share-with (pacemaker-blocked-share pacemaker) (found-blocked-p sample) 0.125))
           (floor (* (pacemaker-blocked-share pacemaker) (census-unsettled census)))))))

(defun crowd (pacemaker census enough)
  "How many workers in CENSUS run, or wait for a processor, and are not stuck, after one more of them was
asked about.  0 where they cannot be more than ENOUGH."
  (cond ((<= (census-loose census) enough)
         (setf (pacemaker-running-share pacemaker) 0.0)
         0)
        (t
         (setf (pacemaker-running-share pacemaker)
               (share-with (pacemaker-running-share pacemaker)
                           (not (found-blocked-p (census-loose-one census))) 0.0625))
         (* (pacemaker-running-share pacemaker) (census-loose census)))))
