(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Start, stop, and the last resort.

(define-condition stop-from-worker (recycling-error)
  ()
  (:report "A worker cannot stop the engine that it works for: it would wait for itself.
Call STOP from another thread.")
  (:documentation "Signalled instead of a deadlock."))

(defvar *engines* '()
  "The engines of this Lisp, a list, which is replaced whole: each from the beginning of its first
sentinel until it has stopped and no worker is left in it, not even one that a stop could not end.
The end of the process has to end them.")

(defun list-engine (engine &optional (function #'adjoin))
  "Lists ENGINE, which begins to serve; or no more, if FUNCTION is REMOVE."
  (loop for engines = *engines*
        until (compare-and-set (symbol-value '*engines*) engines
                               (funcall function engine engines))))

;;; Start

(defun start-engine (engine)
  "Starts ENGINE and returns it once a worker waits for connections.  When no thread can be made,
signals why; an ERROR when another thread stops ENGINE meanwhile, or its listener cannot be watched;
and leaves nothing behind."
  (with-engine (engine)
    (when (eq (engine-phase engine) :new)
      (setf (engine-phase engine) :running
            (engine-accepting-p engine) t
            (engine-started engine) (milliseconds))))
  (unless-returned
      (progn
        (finalize-classes)
        (with-listener (engine) (acquire-resources engine)) ; unless another thread stops it
        (make-workers engine #'worker-missing-p)
        (wait-for-change engine nil (lambda () (zerop (worker-count engine :starting))))
        (when (zerop (pool-size engine))
          (error (or (getf (engine-troubles engine) :threads) "Each worker has ended at once.")))
        (call-making-thread (lambda ()
                              (make-engine-thread (engine-service engine) :sentinel
                                                  (lambda () (run-sentinel engine)))))
        (wait-for-change engine 5 (lambda () (engine-sentinel engine))))
    (stop-engine engine :timeout 0)
    (unless (engine-sentinel engine)
      (release-resources engine)))
  engine)

;;; Stop
;;;
;;; A soft stop loses no request.  One may be under way on a connection that idles, so each has a
;;; moment for it; and so has a client whose connection the system has accepted, and we have not.
;;; Proxies may send a request on an idle connection at the moment at which it ends.  So where there
;;; are some, the engine first is leaving until they have learnt from replies, or from a check, that
;;; they should ask another server, and have closed the connections that idle.

(defparameter *least-stop-seconds* 1/10
  "Seconds that STOP waits, however short its time is, for threads that have nothing to finish: so
that nobody accepts from a listener that is closed next.")

(defparameter *drain-seconds* 1
  "How long a soft stop waits for a request on a connection that idles, or for the rest of a head;
and how long for what has come to be accepted.")

(defparameter *arrival-seconds* 1/5
  "How long a soft stop waits for connections that the system is about to accept.")

(defparameter *held-seconds* 6/5
  "How long a soft stop waits for connections that the system has held until their first octets
arrive, and holds no more.")

(defun advance-phase (engine phase)
  "Makes ENGINE go to PHASE from any earlier one.  True when it did."
  (with-engine (engine)
    (let ((order '(:new :running :leaving :draining :stopping :stopped)))
      (when (< (position (engine-phase engine) order) (position phase order))
        (bt:condition-notify (engine-changed engine))
        (setf (engine-phase engine) phase)))))

(defun drain (engine end)
  "Has every request that has come to ENGINE answered until END, in MILLISECONDS, or NIL for no
limit.  True if that succeeded."
  (flet ((await-other-phase (seconds)
           (wait-for-change engine (min seconds (or (seconds-left end) seconds))
                            (lambda () (not (draining-p engine))))))
    (when (advance-phase engine :draining)
      (show-phase engine)
      (let ((held (if (with-listener (engine) (admit-held (engine-listener engine)))
                      *held-seconds*
                      0)))
        (setf (engine-drain-end engine) (end-after (+ held *drain-seconds*)))
        ;; Until then it gets connections that the system has held.
        (await-other-phase held))
      (when (with-listener (engine) (stop-arrivals (engine-listener engine)))
        (await-other-phase *arrival-seconds*)
        ;; Not for ever: new connections may come as fast, and descriptors may be missing. Nobody
        ;; learns from the kernel when its queue is empty.
        (loop repeat 100
              while (with-listener (engine) (pending-connection-p (engine-listener engine)))
              until (await-other-phase (/ *drain-seconds* 100))))
      (end-accepting engine))
    (eq :finished
        (wait-for-change engine (seconds-left end)
                         (lambda ()
                           (cond ((and (zerop (open-count engine))
                                       ;; One in an accept may have got a connection already.
                                       (zerop (worker-count engine :starting :waiting)))
                                  :finished)
                                 ((not (draining-p engine)) :cut-short)))))))

(defun stop-engine (engine &key soft (timeout (if soft nil 1)) (delay 0) destroy-p)
  "Stops ENGINE: nothing more is accepted.  When SOFT, every request that runs or has come is
served, and its answer sent, and connections that idle have a moment for another; before that,
ENGINE goes on for DELAY seconds, a real, but keeps no connection after its next answer.  Otherwise
connections read nothing more.  Then waits up to TIMEOUT seconds, a real or NIL for no limit, for
the threads to end, and a tenth of a second at least for those that have nothing to finish.  If
DESTROY-P, destroys the others first, whatever they do.  Returns a list of plists, one for each
worker that had to be left behind, which ends with its request; and, when SOFT, one for each
connection without a worker that lacks an answer, or a part of one, as LIST-ENGINE-CONNECTIONS has
them.  Timers that are pending when the requests are served are dropped.  Signals STOP-FROM-WORKER
in a worker of ENGINE."
  (when (eq engine (current-engine))
    (error 'stop-from-worker))
  (when (and soft (plusp delay))
    (advance-phase engine :leaving)
    (wait-for-change engine delay (lambda () (not (eq :leaving (engine-phase engine))))))
  (let* ((end (end-after timeout))
         (drained-p (and soft (drain engine end)))
         (unanswered (and soft
                          (not drained-p)
                          (remove-if-not (lambda (connection)
                                           (member (getf connection :state)
                                                   '(:deferred :writing :queued)))
                                         (list-engine-connections engine)))))
    (flet ((end-all-input ()
             (unless (process-exits-p)  ; programs are told of the end of each connection
               (end-input engine))))
      (advance-phase engine :stopping)
      (show-phase engine)               ; or suspended workers would never learn of it
      (end-accepting engine)
      (close-timers (engine-timers engine))
      (unless destroy-p                 ; one that is told of the end is not to be destroyed then
        (end-all-input))
      ;; Threads that only wait leave by themselves: one that is destroyed while it comes or goes
      ;; might take a lock with it.  Each thread that stops ENGINE waits for them: else it might
      ;; close the listener before.
      (wait-for-change engine (min 5 (max *least-stop-seconds* (or (seconds-left end) 5)))
                       (lambda () (<= (pool-size engine) (busy-count engine))))
      (when destroy-p
        (dolist (worker (engine-workers engine))
          (handler-case (destroy-thread (worker-thread worker))
            (error () nil))))           ; it has not begun, or ended by itself
      (dolist (connection (with-engine (engine)
                            (shiftf (engine-queue engine) '())))
        (note-closed engine connection)
        (close-socket (connection-handle connection)))
      (when (and soft (not drained-p))  ; its time is over, or another thread has cut it short
        (setf end 0))
      (wait-for-change engine (seconds-left end) (lambda () (zerop (pool-size engine))))
      (when (advance-phase engine :stopped)
        (with-engine (engine)
          (notify-sentinel engine)))
      ;; For connections that RESUME-CONNECTION has parked meanwhile; later it ends them itself.
      (end-all-input))
    (let ((seconds (seconds-left end))
          (sentinel (engine-sentinel engine)))
      (when sentinel
        (join-thread sentinel (and seconds (max *least-stop-seconds* seconds)))))
    (with-engine (engine)
      (append (loop for worker in (engine-workers engine)
                    for (activity seconds) = (multiple-value-list (worker-activity worker))
                    ;; Those that wait end by themselves.
                    unless (member activity '(:waiting :suspended))
                      collect (list :worker (worker-number worker)
                                    :state (if (member activity '(:serving :blocked))
                                               :active
                                               activity)
                                    :seconds seconds))
              unanswered))))

;;; The end of the process

(defun stop-for-exit ()
  "Has the workers of all engines end.  An exit hook.  Those that have nothing to finish end by
themselves: an interrupt of the Lisp's exit that comes just before a worker waits in the system does
not cut that wait short.  The others are destroyed now, as the Lisp would do later: then it has the
lock that a handler needs to make a thread, and that handler would never end."
  (dolist (engine *engines*)
    (ignore-errors (stop-engine engine :timeout 1 :destroy-p t))))

(call-at-exit 'stop-for-exit)
