(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How long what is ready waits for a worker, sampled at no cost to requests.
;;;;
;;;; Of a connection only the kernel knows when it became ready.  So the sentinel, a few times a
;;;; second while there is work, makes something ready whose moment it knows: the poller's probe.
;;;; It takes its place at the end of the ready set, as a connection does to which octets come
;;;; then, and a worker that gets to it notes how long that took.
;;;;
;;;; One probe is under way at a time, so its slots have one writer at a time: while SENT is 0, the
;;;; sentinel, which sets it; then the worker that gets it, which sets it to 0 last.  A probe that
;;;; came to a thread that died is sent again, and is still the same: its wait is counted from
;;;; the first time.

(defstruct (probe (:include opaque))
  "The sample under way, and what came of those before; in MICROSECONDS."
  (sent 0 :type fixnum)                 ; when; 0 when none is under way
  (latest nil :type (or null fixnum))
  (sum 0 :type fixnum)
  (count 0 :type fixnum))

(defun sample-wait (probe poller)
  "Sends PROBE through POLLER, or sees to it that it is still under way."
  (when (zerop (probe-sent probe))
    (setf (probe-sent probe) (microseconds)))
  (send-probe poller))

(defun note-wait (probe)
  "Notes how long PROBE, which the caller got, has waited."
  (let ((sent (probe-sent probe)))
    (unless (zerop sent)                ; sent again when it was about to be noted
      (let ((wait (- (microseconds) sent)))
        (setf (probe-latest probe) wait)
        (incf (probe-sum probe) wait)
        (incf (probe-count probe))
        (setf (probe-sent probe) 0)))))

(defun probe-wait (probe)
  "Seconds that the latest sample of PROBE took, or the one under way so far if that is longer;
NIL before the first."
  (let* ((sent (probe-sent probe))
         (so-far (if (zerop sent) nil (- (microseconds) sent)))
         (waits (remove nil (list so-far (probe-latest probe)))))
    (and waits (/ (reduce #'max waits) 1000000.0))))
