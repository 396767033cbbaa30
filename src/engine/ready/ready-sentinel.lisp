(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The sentinel of the ready engine.  A few times a second it looks at all connections.  At each
;;;; tick it sizes the pool (see pool-sizing.lisp), and rests.

(defmethod sentinel-loop ((engine ready-engine))
  (schedule-as-batch)
  (let-timers-be-late 100)              ; it has to see soon that workers are blocked
  (resume-clock (engine-pool-state engine))
  (let ((controller (make-controller (usable-processors) (milliseconds)
                                     (engine-decisions engine))))
    (flet ((housekeep () (housekeep-when-due engine controller))
           (see-to-workers ()
             (rest-after-look engine controller (adjust-pool engine controller))))
      (declare (dynamic-extent #'housekeep #'see-to-workers)) ; two thousand times a second
      ;; It heeds no interrupt, and SBCL's exit would wait a minute for that.
      (loop until (or (engine-stopped-p engine) (process-exits-p))
            do (call-surviving engine :housekeeping #'housekeep)
               (clear-stack)            ; a rest must keep no connection alive
            unless (call-surviving engine :pool-size #'see-to-workers)
              ;; ADJUST-POOL may have failed before it set the clock.
              do (setf (pool-state-clock-stopped-p (engine-pool-state engine)) t)
                 (rest-until-woken engine *tick*)
                 (resume-clock (engine-pool-state engine)))))
  (setf (pool-state-clock-stopped-p (engine-pool-state engine)) t)) ; no tick follows

(defun resume-clock (pool)
  "Lets COARSE-NOW use the clock of the sentinel, which is the current thread, from now on."
  (setf (pool-state-clock pool) (milliseconds)
        (pool-state-clock-stopped-p pool) nil))

;;; Its rests

(defparameter *long-nap-ticks* 4
  "The length of a nap, in ticks, when no worker was missing for some looks.")

(defun rest-after-look (engine controller found)
  "Rests after a look at which ADJUST-POOL returned FOUND.  If a worker has ended an idle wait,
the next few looks follow closely, the first after requests had time to block."
  (if (eq found :needed)
      (setf (controller-looks-without-need controller) 0)
      (incf (controller-looks-without-need controller)))
  (if found
      (setf (controller-idle-looks controller) 0)
      (incf (controller-idle-looks controller)))
  (let ((rest (cond ((draining-p engine) :long-nap) ; somebody waits for the end of it
                    ((not (long-naps-p controller)) :short-nap)
                    ((< (controller-idle-looks controller) *idle-looks*) :long-nap)
                    (t :idle-wait))))
    (count-decision controller rest)
    (ecase rest
      (:short-nap (nap *tick-microseconds*))
      (:long-nap (nap (* *long-nap-ticks* *tick-microseconds*)))
      (:idle-wait
       (when (idle-wait engine (+ (controller-last-housekeeping controller)
                                  (as-milliseconds *tick*)))
         (setf (controller-looks-without-need controller) 0
               (controller-idle-looks controller) 0)
         (nap *tick-microseconds*))))))

(defun idle-wait (engine housekeeping)
  "Waits until the sentinel of ENGINE is woken: at most until the next deadline, but at least until
HOUSEKEEPING, in MILLISECONDS, and for *IDLE-TICK*.  True if a thread woke it, because no worker
waits any more or a deadline comes soon."
  (let ((pool (engine-pool-state engine))
        (now (milliseconds))
        (first nil))
    (setf (pool-state-clock-stopped-p pool) t
          (pool-state-sentinel-idle-p pool) t)
    ;; The last worker that waits first stops counting itself, and then reads SENTINEL-IDLE-P.  So
    ;; all threads must see that slot before the count is read here; otherwise each might miss the
    ;; other's write.  The same holds for a thread that sets an early deadline.
    (order-memory)
    (map-connections (lambda (connection)
                       (setf first (earlier first (connection-deadline connection))))
                     (engine-table engine))
    (rest-until-woken engine
                      (cond ((or (engine-accept-again-p engine)
                                 (trouble engine :threads)
                                 (not (running-p engine)))
                             *tick*)
                            (first
                             (max 0
                                  (/ (- housekeeping now) 1000)
                                  (min *idle-tick* (/ (- first now) 1000))))
                            (t *idle-tick*))
                      (lambda ()        ; no thread has woken it by now
                        (not (and (pool-state-sentinel-idle-p pool)
                                  (somebody-waits-p engine)))))
    (resume-clock pool)
    (not (shiftf (pool-state-sentinel-idle-p pool) nil))))

;;; Its look at all connections, a few times a second
;;;
;;;   a connection that is                and                         is
;;;   parked, with output left            its peer is too slow        shut down, for a worker to
;;;                                                                   close
;;;   overdue, parked                     queued for a worker         left to the workers, however
;;;                                                                   long they are busy
;;;   overdue, parked, no output left     has input that no worker    queued for a worker
;;;                                       has looked at
;;;   overdue, parked                     its service asked for       queued for a worker
;;;                                       that time
;;;   overdue, parked                     the service gives notice    closed gently
;;;   overdue, parked                     otherwise                   closed
;;;   overdue, owned                      its owner has not begun to  left to its owner
;;;                                       look at its input
;;;   overdue, owned                      otherwise                   shut down, for its owner to
;;;                                                                   close
;;;   overdue, owned                      its handler has run too long  left to its service
;;;   idle when a drain is over                                       treated as overdue

(defparameter *count-milliseconds* 20000
  "The sentinel counts the processors this often: they come and go while we run.")

(defun housekeep-when-due (engine controller)
  "Ends the overdue connections of ENGINE, and does what else is due a few times a second."
  (let ((now (milliseconds)))
    (when (<= (+ (controller-last-housekeeping controller) (as-milliseconds *tick*)) now)
      (setf (controller-last-housekeeping controller) now)
      (map-connections (lambda (connection)
                         (time-out-if-due engine connection now)
                         (when (and (connection-output connection)
                                    (parked-p connection)
                                    (taker-given-up-p (connection-queue connection) now))
                           (give-output-up engine connection :write)))
                       (engine-table engine))
      (when (> (- now (controller-last-processor-count controller)) *count-milliseconds*)
        (setf (controller-last-processor-count controller) now
              (controller-processors controller) (usable-processors)))
      (setf (pool-state-floor (engine-pool-state engine))
            (min (controller-processors controller) (engine-standby engine)))
      (sample-wait engine)
      (when (engine-accept-again-p engine)
        (accept-again engine))
      (maintain-pool engine))))

(defun due-p (engine connection now)
  "True if CONNECTION is overdue at NOW, or idle when the drain of ENGINE is over."
  (or (overdue-p connection now)
      (and (drain-over-p engine now)
           (not (unfinished-p connection)))))

(defun time-out-if-due (engine connection now)
  "Ends CONNECTION if it is overdue at NOW."
  (cond ((or (not (due-p engine connection now)) (eq :turn (connection-awaiting connection))))
        ((awaits-p connection :handler)
         (when (overdue-p connection now)
           (time-out-handler (engine-service engine) connection)))
        ((as-owner (claim-parked connection)
           (time-out-parked engine connection now)
           t))
        (t
         (with-send-queue ((connection-queue connection)) ; its descriptor stays open meanwhile
           (when (and (owned-p connection)
                      ;; May its owner be waiting for its peer?  One that has just set a deadline
                      ;; for the rest of a request is about to park.  One that has not begun to look
                      ;; at the input waits for a processor only.  It takes the deadline away before
                      ;; it begins, so a deadline that is read after this holds.
                      (not (awaits-p connection :pause :body :deferred))
                      (or (not (connection-untouched-p connection)) (unfinished-p connection))
                      (progn (order-reads)
                             (overdue-p connection now)))
             (count-time-out engine connection)
             (setf (connection-deadline connection) nil)
             (shut-descriptor (connection-descriptor connection) :io))))))

(defun time-out-parked (engine connection now)
  "Ends CONNECTION, which the sentinel owns and found to be due at NOW, unless its peer waits for
us."
  (cond ((not (due-p engine connection now)) ; it was served and parked again since
         (park-again engine connection))
        ((left-to-workers-p engine connection now))
        ((not (overdue-p connection now))
         (end-with-notice engine connection now))
        ((awaits-p connection :pause :deferred)
         (setf (connection-deadline connection) nil)
         (requeue-connection engine connection))
        (t
         (count-time-out engine connection)
         (end-with-notice engine connection now))))

(defun left-to-workers-p (engine connection now)
  "True if CONNECTION, which the sentinel owns, has input that no worker had time for: then it is
queued for one.  But if the service was called for its input and left that unread, it would do so
again."
  (when (and (not (unfinished-p connection))
             (await-descriptor (connection-descriptor connection) :input :until now)
             (or (eq :read (connection-input connection))
                 (not (eql (connection-served-when-left connection)
                           (connection-served connection)))))
    (setf (connection-served-when-left connection) (connection-served connection)
          (connection-awaiting connection) :turn)
    (requeue-connection engine connection)
    t))

(defun end-with-notice (engine connection now)
  "Ends CONNECTION, which the sentinel owns; gently if the service told its peer why."
  (cond ((and (not (unfinished-p connection)) ; else the notice would land inside an answer
              (notice-given-p engine connection))
         (release-owned engine connection)
         (begin-to-linger connection now)
         (requeue-connection engine connection))
        (t
         (drop-connection engine connection))))

(defun count-time-out (engine connection)
  (count-late engine (connection-deadline-kind connection)))

(defmethod wake-from-client ((engine ready-engine) connection direction)
  (shut-if-owned connection (if (eq :input direction) :input :io)))

;;; Parked connections that end because others need their descriptor or their memory

(defun connections-by (engine key)
  "The connections of ENGINE for which KEY, a function, returns a number, the least first."
  (let ((entries '()))
    (map-connections (lambda (connection)
                       (let ((number (funcall key connection)))
                         (when number
                           (push (cons number connection) entries))))
                     (engine-table engine))
    (mapcar #'cdr (stable-sort (nreverse entries) #'< :key #'car))))

(defun give-output-up (engine connection kind)
  "Drops the output of CONNECTION at once, and counts that by KIND.  A worker closes it."
  (end-queue (connection-queue connection) t)
  (count-late engine kind))

(defun order-of-giving-way (connection)
  "A number by which CONNECTION gives way to others, if it is parked: first those that have idled
longest; then those that wait for the rest of a request, whose deadlines come soon; last those whose
peers do not take their output.  NIL if it does not."
  (let ((deadline (or (connection-deadline connection) 0)))
    (cond ((not (parked-p connection)) nil)
          ((connection-output connection) (+ deadline most-positive-fixnum))
          ((unfinished-p connection) nil)
          ((awaits-p connection :pause :body) (+ deadline (ash 1 50)))
          (t deadline))))

(defun evict-idle-connections (engine)
  "Ends some parked connections of ENGINE: without descriptors no other client comes in.  True if
there were any that might end."
  (let ((connections (connections-by engine #'order-of-giving-way))
        (freed-p nil))
    ;; A share of them, or each new client would search all connections again.
    (loop repeat (ceiling (length connections) 64)
          for connection in connections
          until (and freed-p (connection-output connection))
          do (if (connection-output connection)
                 (give-output-up engine connection :evicted)
                 (as-owner (claim-parked connection)
                   ;; It may have been served, and parked again, since it was found to idle.
                   (cond ((unfinished-p connection)
                          (park-again engine connection))
                         ((not (left-to-workers-p engine connection (milliseconds)))
                          (count-late engine :evicted)
                          (drop-connection engine connection)
                          (setf freed-p t))))))
    connections))

(defun evict-oldest (engine)
  "Ends an eighth of the connections of ENGINE that have memory, if it is a ready engine: first
those without a deadline, whose peers do not take their output, and then those that would end first
anyway.  True if any memory came free at once.  The caller owns none of them."
  (flet ((output-p (connection)
           (plusp (send-queue-reserved (connection-queue connection))))
         (input-p (connection)
           (input-kept-p (engine-service engine) connection)))
    (let ((keepers (and (typep engine 'ready-engine)
                        (connections-by engine
                                        (lambda (connection)
                                          (and (or (output-p connection)
                                                   (and (parked-p connection)
                                                        (not (dead-p (connection-queue connection)))
                                                        (input-p connection)))
                                               (or (connection-deadline connection) 0))))))
          (before (client-memory-reserved)))
      ;; An eighth, not one: otherwise each new octet would search all connections again.
      (loop repeat (ceiling (length keepers) 8)
            for connection in keepers
            do (if (output-p connection)
                   (give-output-up engine connection :evicted)
                   (as-owner (claim-parked connection)
                     (cond ((not (input-p connection)) ; it was served meanwhile
                            (park-again engine connection))
                           ((unfinished-p connection)
                            (give-output-up engine connection :evicted)
                            (park-again engine connection))
                           (t
                            (setf (connection-deadline-kind connection) :evicted)
                            (count-time-out engine connection)
                            (end-with-notice engine connection (milliseconds)))))))
      (< (client-memory-reserved) before))))

(defun make-room-for-output (engine queue)
  "Called after something was queued in QUEUE, of a connection of ENGINE, perhaps by a thread that
does not own it.  If more memory is reserved than may wait for clients, others give way.  If the
heap has no room for as much by each worker, collects garbage."
  (let ((octets (send-queue-reserved queue)))
    (when (plusp octets)
      (loop until (reserve-client-memory 0 *waiting-share*)
            while (evict-oldest engine))
      (make-room-in-heap (* octets (worker-count engine :active :starting))))))
