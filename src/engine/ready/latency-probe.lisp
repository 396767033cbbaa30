(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Samples of how long a ready connection waits for a worker, at no cost to requests.
;;;;
;;;; Only the kernel knows when a connection became ready.  So a few times a second, while there is
;;;; work, the sentinel makes something ready at a moment that it knows: the poller's probe.  The
;;;; probe takes its place at the end of the ready set, as a connection does that gets octets then.
;;;; The worker that gets it records how long that took.
;;;;
;;;; One probe is under way at a time, so its slots have one writer at a time: the sentinel while
;;;; SENT is 0, which sets it; then the worker that gets the probe, which sets SENT to 0 last.  If
;;;; that worker dies, the probe is sent again, and its wait still counts from the first time.

(defstruct (probe (:include opaque))
  "The sample under way, and the results of those before, in MICROSECONDS."
  (sent 0 :type fixnum)                 ; when; 0 when none is under way
  (latest nil :type (or null fixnum))
  (waits (make-tally-sheet) :type tally-sheet :read-only t))

(defun sample-wait (probe poller)
  "Sends PROBE through POLLER, or sends it again if it is still under way."
  (when (zerop (probe-sent probe))
    (setf (probe-sent probe) (microseconds)))
  (send-probe poller))

(defun note-wait (probe)
  "Records how long PROBE, which the caller got, has waited."
  (let ((sent (probe-sent probe)))
    (unless (zerop sent)                ; sent again when it was about to be noted
      (let ((wait (- (microseconds) sent)))
        (setf (probe-latest probe) wait)
        (note-duration (probe-waits probe) wait)
        (setf (probe-sent probe) 0)))))

(defun probe-wait (probe)
  "The seconds that the latest sample of PROBE took, or the one under way so far if that is
longer; NIL before the first."
  (let* ((sent (probe-sent probe))
         (so-far (if (zerop sent) nil (- (microseconds) sent)))
         (waits (remove nil (list so-far (probe-latest probe)))))
    (and waits (/ (reduce #'max waits) 1000000.0))))

(defun probe-milliseconds (probe)
  "For how many milliseconds PROBE has been under way; 0 when it is not."
  (let ((sent (probe-sent probe)))
    (if (zerop sent)
        0
        (floor (- (microseconds) sent) 1000))))
