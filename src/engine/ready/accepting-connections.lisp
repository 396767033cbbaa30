(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How connections come into the ready engine.
;;;;
;;;; The poller is edge-triggered: the listener makes one event when connections come.  So the
;;;; worker that gets the event makes sure that all of them are accepted:
;;;;
;;;;   after one connection, it finds                    and before it serves that, it
;;;;   no worker waits                                   queues the listener, first
;;;;   a worker waits, and a second connection           parks that one, queues the listener, first
;;;;   a worker waits, and no second connection          does nothing: the next one makes an event
;;;;   it has accepted many since it asked the poller    arms the listener anew: that event comes
;;;;                                                     after all that is ready now
;;;;
;;;; To accept all connections first, and park them, would cost two system calls more for each, and
;;;; most often another processor than the one that has the connection in its cache.

(defconstant +accept-batch+ 16
  "The number of connections that one worker accepts before other events have their turn.")

(defun open-connection (engine descriptor peer)
  "Makes a connection on DESCRIPTOR to PEER, which the caller owns.  If that fails, closes
DESCRIPTOR."
  (let ((table (engine-table engine))
        (connection nil))
    (unwind-protect
         (enter-connection table (setf connection
                                       (make-connection
                                        nil :descriptor descriptor
                                            :generation (next-generation table)
                                            :opened (coarse-now (engine-pool-state engine))
                                            :peer peer
                                            :parkable-p t)))
      (unless connection
        (close-descriptor descriptor)))
    (setf (send-queue-connection (connection-queue connection)) connection
          (send-queue-arm (connection-queue connection)) (engine-arm engine))
    (counter-add (tally-accepted (engine-tally engine)) 1)
    (counter-add (tally-open (engine-tally engine)) 1)
    connection))

(defun readable-p (engine connection)
  "True if CONNECTION of ENGINE is parked and has input.  The caller looks as its owner;
otherwise the descriptor might belong to another connection by then."
  (as-owner (claim-parked connection)
    (prog1 (or (eq :turn (connection-awaiting connection))
               (await-descriptor (connection-descriptor connection) :input :until (milliseconds)))
      (park-again engine connection))))

(defun busy-or-readable-count (engine most)
  "The number of connections of ENGINE that are served, or that have input and no worker; MOST if
there are more."
  (let ((count (with-engine (engine) (busy-count engine))))
    (block counting
      (map-connections (lambda (connection)
                         (when (>= count most)
                           (return-from counting))
                         (when (readable-p engine connection)
                           (incf count)))
                       (engine-table engine)))
    (min count most)))

(defun refused-p (engine worker)
  "True if ENGINE has no room for the connection that was just opened.  WORKER is the worker that
may serve it, T if another worker may, or NIL if all workers serve."
  (let ((limit (engine-accept-limit engine)))
    (and (null worker)
         (case limit
           (:unlimited nil)
           ((nil) t)
           ;; Most often few are open, and none has to be asked.  The new one is one of them.
           (t (and (> (open-count engine) limit)
                   (>= (busy-or-readable-count engine limit) limit)))))))

(defun refuse-connection (engine connection reason)
  (let ((told-p nil))
    (unwind-protect (progn (refuse-with-notice engine connection reason)
                           (setf told-p t))
      (if told-p
          (finish-connection engine connection :close nil)
          (drop-connection engine connection)))))

(defun refuse-descriptor (engine descriptor)
  "Closes DESCRIPTOR, a number too large for the table of ENGINE."
  (close-descriptor descriptor)
  (count-refused engine :descriptors)
  nil)

(defun adopt-descriptor (engine worker descriptor peer)
  "Makes a connection on DESCRIPTOR to PEER, which the caller owns; returns NIL if it was
refused.  WORKER is as for REFUSED-P."
  (let* ((connection (open-connection engine descriptor peer))
         (reason (cond ((not (enter-address engine connection)) :address)
                       ((refused-p engine worker) :threads))))
    (cond (reason
           (refuse-connection engine connection reason)
           nil)
          (t
           connection))))

(defun take-connection (engine worker)
  "Accepts a connection, which the caller owns; returns NIL if there is none, or it was refused.
WORKER is as for REFUSED-P.  The second value is true if there may be more connections, which the
poller will not report."
  (multiple-value-bind (descriptor peer) (accept-descriptor (engine-listener-descriptor engine))
    (cond ((minusp descriptor)
           (values nil (note-failed-accept engine (- descriptor))))
          (t
           (note-accepted engine)
           (values (if (< descriptor +most-descriptors+)
                       (adopt-descriptor engine worker descriptor peer)
                       (refuse-descriptor engine descriptor))
                   t)))))

(defun note-accepted (engine)
  "Forgets the trouble that kept ENGINE from accepting.  A lack of descriptors is not over when
one comes free."
  (when (and (accept-trouble (engine-accept-state engine))
             (not (eq (accept-trouble (engine-accept-state engine)) 'descriptors-exhausted)))
    (forget-accept-trouble engine)))

(defun note-failed-accept (engine number)
  "Records that accepting failed with the error NUMBER.  True if it may succeed at once."
  (let ((kind (accept-failure-kind number)))
    (case kind
      (:gone t)
      (:none
       (and (accept-again-p (engine-accept-state engine))
            (note-backlog-empty engine)))
      (t
       (when (accepting-p engine) ; the sentinel will try again
         (note-accept-trouble engine (make-accept-failure kind (error-text number))))
       (when (and (eq :exhausted kind) (evict-idle-connections engine))
         (rearm-listener engine))       ; behind the ends that are left to workers
       nil))))

(defun somebody-to-accept-p (engine)
  "True if a connection waits to be accepted by ENGINE."
  (await-descriptor (engine-listener-descriptor engine) :input :until (milliseconds)))

(defun note-backlog-empty (engine)
  "Records that no connection waited to be accepted by ENGINE.  A lack of descriptors is over
then; for other trouble only the next connection shows whether it lasts.  True if a connection
waits all the same, for which no event need come."
  (if (eq (accept-trouble (engine-accept-state engine)) 'descriptors-exhausted)
      (forget-accept-trouble engine)
      (with-engine (engine)
        (setf (accept-again-p (engine-accept-state engine)) nil)))
  ;; Another thread may have got the event of a later connection, failed to accept it, and recorded
  ;; that.  The lines above have just forgotten it.
  (somebody-to-accept-p engine))

(defun accept-again (engine)
  "Tries again to accept connections of ENGINE that could not be accepted.  The sentinel calls
this."
  (when (or (somebody-to-accept-p engine)
            ;; The clients are gone, or another process with the same listener accepted them.
            (note-backlog-empty engine))
    (rearm-listener engine)))

(defun accept-connections (engine worker)
  "Accepts a connection and serves it in WORKER, since its request has most often come already.
The table above says what happens to the connections that came with it."
  (multiple-value-bind (connection more-p) (take-connection engine worker)
    (when more-p
      (accept-others engine worker))
    (when connection
      (serve-connection engine worker connection))))

(defun accept-others (engine worker)
  "Makes sure that the connections are accepted that came with the one that WORKER serves next.
Never signals."
  (handler-case (when (or (not (somebody-waits-p engine))
                          (accept-and-park engine worker))
                  (requeue-listener engine worker))
    (error (condition)
      (count-failure engine)
      (log-message engine :error "Accepting a connection failed: ~A" condition))))

(defun accept-and-park (engine worker)
  "Accepts a connection and parks it for the worker that gets the event of its request.  True if
there may be more connections, for which no event will come."
  (uninterruptibly                      ; what was accepted is nobody else's to close
    (multiple-value-bind (connection more-p) (take-connection engine worker)
      (when connection
        (ecase (park engine connection)
          (:parked)
          (:again (requeue-connection engine connection))
          (:broken (drop-connection engine connection))))
      more-p)))

(defun requeue-listener (engine worker)
  "Lets another worker look whether connections wait."
  (if (< (incf (ready-worker-accepted worker)) +accept-batch+)
      ;; Behind connections that never pause, one would be accepted in each of their rounds.
      (queue-events engine (list (engine-listener-descriptor engine)) t)
      (rearm-listener engine)))

(defun rearm-listener (engine)
  "Makes another event of the listener of ENGINE if connections wait there.  If the system
refuses that, the sentinel tries again."
  (let* ((listener (engine-listener-descriptor engine))
         (result (rearm (engine-poller engine) listener listener)))
    (when (and (minusp result) (accepting-p engine))
      (note-accept-trouble engine (make-accept-failure :other (error-text (- result)))))))

(defmethod accept-rest ((engine ready-engine) seconds)
  (let ((left (countdown seconds)))
    ;; Another thread that stops ENGINE waits for the end of this before it closes the listener.
    (loop while (and (accepting-p engine) (plusp (funcall left)))
          do (unless (accept-and-park engine (not (all-serve-p engine)))
               ;; Else a connection could not be accepted.
               (unless (accept-again-p (engine-accept-state engine))
                 (return))
               (await-kernel engine)))))

(defun accept-for-others (engine)
  "Accepts connections when no worker of ENGINE is free, and parks or refuses them.  The sentinel
calls this."
  (loop repeat +accept-batch+
        unless (accept-and-park engine nil)
          return nil
        finally (rearm-listener engine)))
