(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Garbage is collected while the server rests, rather than amid the next requests, all of which would wait for it.
;;;;
;;;;   since the last collection   since the last look      the next timer   then
;;;;   little was made             -                        -                nothing
;;;;   much was made               somebody was served      -                the sentinel looks again soon
;;;;   much was made               nobody was               is due soon      likewise
;;;;   much was made               nobody was               is not           a worker collects
;;;;
;;;; It is a collection that would have come, only sooner: much is half of what the Lisp has made between two of them.
;;;; Threads that are none of ours count as well: where they make much, there is no rest.  Programs may have functions that
;;;; are called after a collection, in the thread that made it, and these may take long; so that is no work for the sentinel.

(defparameter *collect-share* 1/2
  "Which share of what is made between two collections of garbage is worth one while the server rests.")

(defparameter *quiet-milliseconds* 50
  "For how long nobody must have been served.")

(defparameter *quiet-octets* (* 256 1024)
  "How many octets of the heap may be made meanwhile.")

(defparameter *undisturbed-milliseconds* 100
  "A collection that may take so long, or twice as long as the last one, must end before the next timer is due.")

(defstruct (heap-watch (:include opaque) (:constructor make-heap-watch ()) (:copier nil))
  "What the sentinel remembers of the heap from look to look."
  (mark nil)                            ; of the last collection, its COLLECTION-MARK
  (base 0 :type unsigned-byte)          ; how many octets were in use after that
  (used 0 :type unsigned-byte)          ; how many are
  (work 0 :type unsigned-byte)          ; that was done
  (looked-at 0 :type fixnum)            ; in MILLISECONDS
  (collecting-p nil)                    ; a worker is to collect, or does
  (took 0 :type fixnum))                ; the last collection by a worker, MILLISECONDS

(defun note-heap (watch)
  "Notes how much of the heap is in use.  Returns how many octets were made since the last collection, as far as WATCH
can know."
  (let ((mark (collection-mark))
        (used (heap-used)))
    (unless (eq mark (shiftf (heap-watch-mark watch) mark))
      (setf (heap-watch-base watch) used))
    (setf (heap-watch-used watch) used)
    (- used (heap-watch-base watch))))

(defun quiet-p (engine watch used)
  "True when nobody was served by ENGINE, and little was made, since WATCH had last USED octets."
  (let ((work (work-done engine)))
    (and (= work (shiftf (heap-watch-work watch) work))
         (<= (- (heap-watch-used watch) used) *quiet-octets*))))

(defun timer-soon-p (engine watch)
  "True when a timer of ENGINE is due before a collection would surely be over."
  (let ((alarm (timers-alarm (engine-timers engine)))
        (now (microseconds)))
    (<= now alarm (+ now (* 1000 (max *undisturbed-milliseconds* (* 2 (heap-watch-took watch))))))))

(defun collect-for-rest (engine watch)
  "Has a worker of ENGINE collect young garbage.  WATCH is the worker's until that is done."
  (setf (heap-watch-collecting-p watch) t)
  (schedule engine 0
            (lambda ()
              (unwind-protect
                   (let ((start (milliseconds)))
                     (collect-young-garbage)
                     (setf (heap-watch-took watch) (- (milliseconds) start))
                     (note-heap watch))
                (setf (heap-watch-collecting-p watch) nil)))))

(defun collect-at-rest (engine watch)
  "Has garbage collected if there is much, and ENGINE rests.  Called by the sentinel, with its WATCH, again and again."
  (let ((now (milliseconds))
        (between (octets-between-collections)))
    (when (and between
               (>= (- now (heap-watch-looked-at watch)) *quiet-milliseconds*)
               (not (heap-watch-collecting-p watch))
               (collects-at-rest-p (engine-service engine)))
      (setf (heap-watch-looked-at watch) now)
      (let* ((used (heap-watch-used watch))
             (due-p (>= (note-heap watch) (* *collect-share* between)))
             (quiet-p (quiet-p engine watch used)))
        (cond ((and due-p quiet-p (not (timer-soon-p engine watch)))
               (collect-for-rest engine watch)
               (setf (pool-state-garbage-due-p (engine-pool-state engine)) nil))
              (t
               (setf (pool-state-garbage-due-p (engine-pool-state engine)) due-p)))))))
