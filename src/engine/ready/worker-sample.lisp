(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What the sentinel sees of the workers.
;;;;
;;;; A worker whose request began more than a tick ago, and which waits for something other
;;;; than a processor, or computes for many ticks, is stuck: it does not count any more as one
;;;; who could take what comes.
;;;;
;;;; So is one that an interrupt, as by a debugger, holds up between two waits: it is AWAY, which is
;;;; asked about like a request.  Whoever is resumed has some ticks for coming.
;;;;
;;;; Whether a thread waits for a processor only the kernel knows; to ask costs microseconds,
;;;; so suspects alone are asked about, once for each request, and after several that were
;;;; blocked only one in as many, down to one in 64.
;;;;
;;;; Where the kernel does not tell, because /proc is not there or no descriptor is left, a suspect
;;;; is taken for blocked when its thread's own clock stood still between two looks.  On a busy
;;;; machine that is so, too, while it waits for a processor: the pool grows more than it need, but
;;;; it grows.
;;;;
;;;; While nobody is stuck for long the naps are long, and who was blocked for a moment, by a
;;;; collection of garbage say, is a suspect as well; so the first that is found blocked only has
;;;; the next looks follow closely.
;;;;
;;;; Of those that are not stuck one or two are asked about at each tick, at random, and the share
;;;; of what was found lately is taken for all of them:
;;;;
;;;; - Where handlers block for no longer than a few ticks, half of those that are blocked are no
;;;;   suspects yet.
;;;; - Who counts as waiting need not: where all processors are taken, most threads that turned to the
;;;;   poller have got an event already, and wait for a processor.  Only the kernel knows how many do.

(defparameter *tick-microseconds* 500
  "How long the sentinel naps between two looks while there is something to see.")

(defparameter *computing-ticks* 10
  "For how many ticks a request may compute before its worker counts as stuck.")

(defparameter *fast-sampling-ticks* 100
  "For how many ticks after somebody was stuck the sentinel naps no longer than one.")

(defstruct (controller (:include opaque)
                       (:constructor make-controller
                           (processors &optional (awake processors) (last-processor-count 0)
                                         (decisions (make-decision-counters)))))
  "What the sentinel of a ready engine remembers from tick to tick."
  (processors 1 :type fixnum)
  (awake 1 :type fixnum)                ; how many workers that are not stuck are wanted
  (samples-with-idle 0 :type fixnum)    ; since nobody waited
  (blocked-in-a-row 0 :type fixnum)     ; suspects found blocked since one was not
  (blocked-share 0.0 :type single-float) ; of workers that serve and are no suspects yet
  (running-share 0.0 :type single-float) ; of active workers that are not stuck
  (excess-fraction 0.0 :type single-float) ; less than one worker, of those to be suspended
  (samples-without-deficit 0 :type fixnum) ; since it found too few workers
  (last-nap-ticks 1 :type fixnum)       ; for how many it rested last
  (ticks-without-stuck 0 :type fixnum)  ; since somebody was stuck
  (idle-naps 0 :type fixnum)            ; since somebody was stuck, or nobody waited
  (last-housekeeping 0 :type fixnum)    ; of deadlines, in MILLISECONDS
  (last-processor-count 0 :type fixnum) ; of processors, likewise
  (work-done 0 :type integer)           ; see SAMPLE-WAIT-WHEN-BUSY
  (decisions nil :type (simple-array fixnum (*)) :read-only t)) ; counters, see pool-sizing.lisp

(defstruct (worker-sample (:include opaque))
  "The active workers at a tick: those that are STUCK, those that are AVAILABLE because they are
not, and of these the ones that are SERVING a request."
  (stuck 0 :type fixnum)
  (briefly-stuck 0 :type fixnum)        ; of the stuck, see *BRIEF-TICKS*
  (available 0 :type fixnum)
  (serving 0 :type fixnum)
  (available-one nil)                   ; one of them, at random
  (serving-one nil))                    ; likewise

;;; Asking the kernel

(defun worker-status (worker)
  "The descriptor that tells about the thread of WORKER; NIL when there is none to be had."
  (or (ready-worker-status worker)
      (uninterruptibly                  ; or nobody would close it
        (let ((status (open-thread-status (ready-worker-identity worker))))
          (when status
            (or (with-engine ((worker-engine worker))
                  (unless (eq (worker-state worker) :ended) ; or it has left meanwhile
                    (setf (ready-worker-status worker) status)))
                (progn (close-descriptor status)
                       nil)))))))

(defun gather-status-descriptors (engine)
  "Puts those of workers that are asked about no more with those that are to be closed: only who is
awake has one."
  (with-engine (engine)
    (dolist (worker (engine-suspended engine))
      (when (ready-worker-status worker)
        (push (shiftf (ready-worker-status worker) nil) (engine-status-descriptors engine))))))

(defun note-unknown-thread-states (engine)
  "Tells, once, that nobody tells the sentinel of ENGINE which threads are blocked."
  (unless (shiftf (engine-thread-states-unknown-p engine) t)
    (log-message engine :warning
                 "The system does not tell which threads are blocked (is /proc mounted, and are descriptors
left?).  Who does not get on for a tick or two counts as blocked, so there may be more threads than
needed.")))

(defun check-thread-states (engine)
  "Notes it if the system does not tell of threads at all."
  (with-acquired (status (open-thread-status (thread-identity))
                         (when status
                           (close-descriptor status)))
    (unless (and status (thread-state status))
      (note-unknown-thread-states engine))))

(defun ask-state (worker)
  "What the kernel tells of the thread of WORKER: :BLOCKED, :RUNNING, or NIL for nothing."
  (let ((status (worker-status worker)))
    (or (and status (thread-state status))
        (progn (note-unknown-thread-states (worker-engine worker))
               nil))))

(defun found-blocked-p (worker)
  "Asks the kernel whether the thread of WORKER is blocked."
  (eq :blocked (ask-state worker)))

(defun no-progress-p (worker)
  "True when the thread of WORKER, at the request that was asked about before, has had next to no
processor since it was asked about last."
  (and (= (busy-since worker) (ready-worker-suspect-stamp worker))
       (let ((run-time (thread-run-time (ready-worker-identity worker))))
         (< (- run-time (shiftf (ready-worker-latest-run-time worker) run-time))
            (floor *tick-microseconds* 4)))))

(defun seems-blocked-p (worker)
  "Whether the thread of WORKER, a suspect, is blocked, as the kernel tells, or else its own clock."
  (case (ask-state worker)
    (:blocked t)
    (:running nil)
    (t (no-progress-p worker))))

(defun slow-sampling-p (controller)
  "True when nobody has been stuck for long."
  (>= (controller-ticks-without-stuck controller) *fast-sampling-ticks*))

(defun resume-fast-sampling (controller)
  "Lets the next few naps be short."
  (setf (controller-ticks-without-stuck controller) (- *fast-sampling-ticks* 5)))

(defun blocked-p (controller worker)
  "Asks the kernel, or trusts the experience of CONTROLLER, whether the thread of WORKER is
blocked.  While it samples slowly none is at the first look, which has others follow soon."
  (if (and (>= (controller-blocked-in-a-row controller) 8)
           (plusp (random (min 64 (controller-blocked-in-a-row controller)))))
      t
      (let ((blocked (seems-blocked-p worker)))
        (setf (controller-blocked-in-a-row controller)
              (if blocked (1+ (controller-blocked-in-a-row controller)) 0))
        (cond ((and blocked (slow-sampling-p controller))
               (count-decision controller :confirm)
               (resume-fast-sampling controller)
               nil)
              (t blocked)))))

(defun computing-p (worker stamp)
  "True when the request that WORKER began at STAMP has computed for long since it was first asked
about.  Time in which the system let the thread wait for a processor does not count."
  (let ((run-time (thread-run-time (ready-worker-identity worker))))
    (cond ((= stamp (ready-worker-suspect-stamp worker))
           (> (- run-time (ready-worker-run-time worker))
              (* *computing-ticks* *tick-microseconds*)))
          (t
           (setf (ready-worker-suspect-stamp worker) stamp
                 (ready-worker-run-time worker) run-time
                 (ready-worker-latest-run-time worker) run-time)
           nil))))

;;; Counting

(defun stuck-p (controller worker tick)
  "True when WORKER should not be counted on at TICK."
  (let ((stamp (busy-since worker)))
    (cond ((zerop stamp) nil)
          ((= stamp (ready-worker-stuck-stamp worker)) t)
          ((<= (- tick stamp) 1) nil)
          ((or (blocked-p controller worker) (computing-p worker stamp))
           (setf (ready-worker-stuck-stamp worker) stamp)
           t))))

(defun count-stuck (sample worker tick)
  (incf (worker-sample-stuck sample))
  (when (<= (- tick (busy-since worker)) *brief-ticks*)
    (incf (worker-sample-briefly-stuck sample))))

(defun count-available (sample worker)
  (when (zerop (random (incf (worker-sample-available sample))))
    (setf (worker-sample-available-one sample) worker))
  (when (and (plusp (ready-worker-stamp worker))
             (zerop (random (incf (worker-sample-serving sample)))))
    (setf (worker-sample-serving-one sample) worker)))

(defun sample-workers (engine controller tick)
  "The WORKER-SAMPLE of ENGINE at TICK."
  (let ((sample (make-worker-sample)))
    (dolist (worker (engine-workers engine) sample)
      (when (eq (worker-state worker) :active)
        (if (stuck-p controller worker tick)
            (count-stuck sample worker tick)
            (count-available sample worker))))))

;;; Shares

(defun share-with (share found-p weight)
  "SHARE, of those of which something was found lately, with another one of which it was if
FOUND-P."
  (declare (type single-float share weight))
  (+ (* (- 1.0 weight) share) (if found-p weight 0.0)))

(defun estimated-blocked (engine controller sample)
  "How many workers of ENGINE are blocked that are no suspects yet in SAMPLE, after one more of them
was asked about.  0 while somebody waits: there is no need to know then."
  (let ((worker (worker-sample-serving-one sample)))
    (cond ((or (null worker) (somebody-waits-p engine)) 0)
          (t
           (setf (controller-blocked-share controller)
                 (share-with (controller-blocked-share controller) (found-blocked-p worker) 0.125))
           (floor (* (controller-blocked-share controller) (worker-sample-serving sample)))))))

(defun estimated-runnable (controller sample enough)
  "How many workers in SAMPLE run, or wait for a processor, and are not stuck, after one more of
them was asked about.  0 where they cannot be more than ENOUGH."
  (cond ((<= (worker-sample-available sample) enough)
         (setf (controller-running-share controller) 0.0)
         0)
        (t
         (setf (controller-running-share controller)
               (share-with (controller-running-share controller)
                           (not (found-blocked-p (worker-sample-available-one sample))) 0.0625))
         (* (controller-running-share controller) (worker-sample-available sample)))))
