(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Garbage is collected while the server rests, rather than amid the next requests, all of which would wait for it.
;;;;
;;;;   since the last collection   since the last look            a timer         then
;;;;   little was made             -                              -               nothing
;;;;   much was made               somebody was served, or is     -               a sentinel looks again soon
;;;;   much was made               nobody was                     is due soon     likewise
;;;;   much was made               nobody was                     is not          a worker collects
;;;;   anything, and some engine wants no such collection                         nothing
;;;;   anything, and the engine may have one worker only                          nothing: who comes meanwhile would be refused
;;;;
;;;; It is a collection that would have come, only sooner: much is half of what the Lisp has made between two of them.
;;;;
;;;; The heap is that of all engines of this Lisp.  So they have one watch: the sentinel of a ready engine that comes first
;;;; looks for all, and there is no rest while any of them serves.  Other threads count as well: where they make
;;;; much, there is no rest.  Programs may have functions that are called after a collection, in the thread that made it,
;;;; and these may take long; so that is no work for a sentinel.

(defparameter *collect-share* 1/2
  "Which share of what is made between two collections of garbage is worth one while the server rests.")

(defparameter *quiet-milliseconds* 50
  "For how long nobody must have been served.")

(defparameter *quiet-octets* (* 256 1024)
  "How many octets of the heap may be made meanwhile.")

(defparameter *undisturbed-milliseconds* 100
  "A collection that may take so long, or twice as long as the last one, must end before the next timer is due.")

(defparameter *most-collecting-milliseconds* 10000
  "For how long a worker that is to collect is waited for: its engine may have stopped before that.")

;;; A look.  Under the lock.

(defun recently-p (moment milliseconds now)
  "True when MOMENT, in MILLISECONDS or NIL, was less than MILLISECONDS before NOW."
  (and moment
       (< -1 (- now moment) milliseconds))) ; in a saved Lisp that was started on another day, it may be to come

(defun note-heap (watch)
  "Notes how much of the heap is in use.  Returns how many octets were made since the last collection, as far as WATCH
can know."
  (let ((mark (collection-mark))
        (used (heap-used)))
    (unless (eq mark (shiftf (heap-watch-mark watch) mark))
      (setf (heap-watch-base watch) used))
    (setf (heap-watch-used watch) used)
    (- used (heap-watch-base watch))))

(defun quiet-p (watch used)
  "True when nobody was served by the engines of WATCH, and little was made, since it had last USED octets."
  (let ((work (reduce #'+ (heap-watch-engines watch) :key #'work-done)))
    (and (= work (shiftf (heap-watch-work watch) work))
         (<= (- (heap-watch-used watch) used) *quiet-octets*))))

(defun timer-soon-p (engine watch)
  "True when a timer of ENGINE is due, or will be before a collection would surely be over."
  (let ((deadline (first-deadline (engine-timers engine))))
    (and deadline
         (<= deadline
             (+ (microseconds) (* 1000 (max *undisturbed-milliseconds* (* 2 (heap-watch-took watch)))))))))

(defun collects-p (engine)
  "True when garbage may be collected while ENGINE rests."
  (collects-at-rest-p (engine-service engine)))

(defun disturbed-p (engine watch)
  "True when ENGINE serves somebody besides the current thread, or is about to."
  (or (< (if (worker-of engine) 1 0)
         (with-engine (engine)
           (- (busy-count engine) (worker-count engine :keep-alive)))) ; where workers wait for the next request
      (timer-soon-p engine watch)))

(defun undisturbed-p (watch)
  "True when no engine of WATCH is DISTURBED."
  (notany (lambda (engine) (disturbed-p engine watch)) (heap-watch-engines watch)))

(defun look-at-heap (watch between now)
  "Has WATCH look at the heap NOW, of which BETWEEN octets are made from one collection to the next.  Returns true when
garbage is to be collected, by the caller; second value, true when it is to be as soon as there is a rest."
  (let* ((used (heap-watch-used watch))
         (due-p (and (>= (note-heap watch) (* *collect-share* between))
                     (every #'collects-p (heap-watch-engines watch))))
         (quiet-p (quiet-p watch used))
         (collect-p (and due-p
                         quiet-p
                         (undisturbed-p watch))))
    (setf (heap-watch-looked-at watch) now)
    (when collect-p
      (setf (heap-watch-collecting-since watch) now))
    (values collect-p due-p)))

;;; What a sentinel does

(defun collect-for-rest (watch)
  "Collects young garbage, for WATCH, unless somebody is served again; then a sentinel looks again."
  (unwind-protect
       (let ((start (milliseconds)))
         (when (with-heap-watch (watch) (undisturbed-p watch))
           (collect-young-garbage)
           (setf (heap-watch-took watch) (- (milliseconds) start))))
    (with-heap-watch (watch)
      (note-heap watch)
      (setf (heap-watch-collecting-since watch) nil))))

(defun spares-worker-p (engine)
  "True when ENGINE may have a worker collect garbage, and another one serve meanwhile."
  (let ((limit (engine-thread-limit engine)))
    (or (null limit) (< 1 limit))))

(defun collect-at-rest (engine)
  "Has garbage collected if there is much, and all engines rest.  Called by the sentinel of ENGINE again and again."
  (let ((watch *heap-watch*)
        (between (octets-between-collections))
        (now (milliseconds)))
    (when (and between
               (spares-worker-p engine)
               (not (recently-p (heap-watch-looked-at watch) *quiet-milliseconds* now))
               (not (recently-p (heap-watch-collecting-since watch) *most-collecting-milliseconds* now)))
      (multiple-value-bind (collect-p due-p)
          (with-heap-watch (watch)
            (unless (recently-p (heap-watch-looked-at watch) *quiet-milliseconds* now) ; another one came first
              (look-at-heap watch between now)))
        (setf (pool-state-garbage-due-p (engine-pool-state engine)) (and due-p (not collect-p)))
        (when collect-p
          (schedule engine 0 (lambda () (collect-for-rest watch))))))))
