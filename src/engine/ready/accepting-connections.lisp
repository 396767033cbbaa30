(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How connections come into the ready engine.
;;;;
;;;; The poller is edge-triggered: the listener makes one event when connections come.  So the
;;;; worker that gets it sees to it that all of them are accepted:
;;;;
;;;;   having accepted one connection, a worker finds    and does, before it serves that
;;;;   nobody waits                                      queues the listener, first
;;;;   somebody waits, and there is a second one         parks that, queues the listener, first
;;;;   somebody waits, and there is none                 nothing: the next one makes an event
;;;;   it has accepted many since it asked the poller    arms the listener anew: its event comes after all
;;;;                                                     that is ready now
;;;;
;;;; When all connections are accepted first, and parked, each costs two calls of the system more,
;;;; and most often another processor than the one that has it in its cache.

(defun open-connection (engine descriptor peer)
  "A connection, owned by the caller, on DESCRIPTOR, to PEER.  Where none can be made, DESCRIPTOR is
closed."
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
    (counter-add (tally-accepted (engine-tally engine)) 1)
    (counter-add (tally-open (engine-tally engine)) 1)
    connection))

(defun readable-p (engine connection)
  "True when CONNECTION of ENGINE is parked and has something to be read.  Asks as its owner: else
the descriptor might be another's by then."
  (as-owner (claim-parked connection)
    (prog1 (or (connection-turn-over-p connection)
               (await-descriptor (connection-descriptor connection) :input :until (milliseconds)))
      (park-again engine connection))))

(defun busy-or-readable-count (engine most)
  "How many connections of ENGINE are served, or have something to be read, which no worker is free
for; MOST where they are more."
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
  "True when ENGINE has no room for the connection that was just opened by WORKER, who may serve
it, or, when that is T, for another worker who may; NIL when all workers serve."
  (let ((limit (engine-accept-limit engine)))
    (and (null worker)
         (case limit
           (:unlimited nil)
           ((nil) t)
           ;; Most often few are open, and none has to be asked.  The new one is one of them.
           (t (and (> (open-count engine) limit)
                   (>= (busy-or-readable-count engine limit) limit)))))))

(defun refuse-connection (engine connection)
  (with-engine (engine)
    (incf (tally-refused (engine-tally engine))))
  (let ((told-p nil))
    (unwind-protect (progn (handler-case (refuse (engine-service engine) connection)
                             ((or error storage-condition) () (count-failure engine)))
                           (setf told-p t))
      (if told-p
          (close-gracefully engine connection)
          (drop-connection engine connection)))))

(defun refuse-descriptor (engine descriptor)
  "Closes DESCRIPTOR, which is a larger number than the table of ENGINE has room for."
  (close-descriptor descriptor)
  (with-engine (engine)
    (incf (tally-refused (engine-tally engine))))
  nil)

(defun adopt-descriptor (engine worker descriptor peer)
  "A new connection on DESCRIPTOR, to PEER, owned by the caller; NIL when it was refused.  WORKER is
as for REFUSED-P."
  (let ((connection (open-connection engine descriptor peer)))
    (cond ((refused-p engine worker)
           (refuse-connection engine connection)
           nil)
          (t
           connection))))

(defun take-connection (engine worker)
  "A new connection, owned by the caller; NIL when there is none, or it was refused.  WORKER is as
for REFUSED-P.  The second value is true when there may be more, which the poller will not tell."
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
  "Forgets what kept ENGINE from accepting.  While descriptors lack one comes free now and then,
which is not the end of that."
  (when (and (engine-accept-trouble engine)
             (not (eq (engine-accept-trouble engine) 'descriptors-exhausted)))
    (forget-accept-trouble engine)))

(defun note-failed-accept (engine number)
  "Notes that accepting failed with the error NUMBER.  True when it may succeed if tried again at
once."
  (let ((kind (accept-failure-kind number)))
    (case kind
      (:gone t)
      (:none
       (and (engine-accept-again-p engine)
            (note-backlog-empty engine)))
      (t
       (when (engine-accepting-p engine) ; the sentinel will try again
         (note-accept-trouble engine (make-accept-failure kind (error-text number))))
       nil))))

(defun somebody-to-accept-p (engine)
  "True when a connection waits to be accepted by ENGINE."
  (await-descriptor (engine-listener-descriptor engine) :input :until (milliseconds)))

(defun note-backlog-empty (engine)
  "Notes that nobody waited to be accepted by ENGINE.  If descriptors lacked, that is over; of other
trouble only the next connection tells whether it lasts.  True when somebody waits all the same, of
whom no event need come."
  (if (eq (engine-accept-trouble engine) 'descriptors-exhausted)
      (forget-accept-trouble engine)
      (with-engine (engine)
        (setf (engine-accept-again-p engine) nil)))
  ;; Another thread may have got the event of somebody who came since, failed to accept that
  ;; connection, and noted so before: that was just forgotten.
  (somebody-to-accept-p engine))

(defun accept-again (engine)
  "What the sentinel does about connections of ENGINE that could not be accepted."
  (when (or (somebody-to-accept-p engine)
            ;; They are gone, or went to another process that has the same listener.
            (note-backlog-empty engine))
    (when (eq (engine-accept-trouble engine) 'descriptors-exhausted)
      (evict-idle-connections engine))
    (rearm-listener engine)))

(defun accept-connections (engine worker)
  "Accepts a connection and serves it: its request is most often there already.  See above for
those that came with it."
  (multiple-value-bind (connection more-p) (take-connection engine worker)
    (when more-p
      (accept-others engine worker connection))
    (when connection
      (serve-connection engine worker connection))))

(defun accept-others (engine worker connection)
  "Has those accepted that may have come with CONNECTION, which WORKER accepted and is going to
serve, whatever fails here."
  (unless-returned (handler-case (when (or (not (somebody-waits-p engine))
                                           (accept-and-park engine worker))
                                   (requeue-listener engine worker))
                     (error (condition)
                       (count-failure engine)
                       (log-message engine :error "Accepting a connection failed: ~A" condition)))
    (when connection
      (drop-connection engine connection))))

(defun accept-and-park (engine worker)
  "Accepts a connection for the worker that gets the event of its request.  True when there may be
more, of which no event will come."
  (uninterruptibly                      ; what was accepted is nobody else's to close
    (multiple-value-bind (connection more-p) (take-connection engine worker)
      (when connection
        (ecase (park engine connection)
          (:parked (end-if-parked-too-late engine connection))
          (:again (requeue-connection engine connection))
          (:broken (drop-connection engine connection))))
      more-p)))

(defun requeue-listener (engine worker)
  "Lets somebody else look whether connections wait."
  (if (< (incf (ready-worker-accepted worker)) +accept-batch+)
      ;; Behind connections that never pause, one would be accepted in each of their rounds.
      (queue-first engine (engine-listener-descriptor engine))
      (rearm-listener engine)))

(defun rearm-listener (engine)
  "Makes another event of the listener of ENGINE if connections wait there.  If the system does
not take that, it is tried again."
  (let* ((listener (engine-listener-descriptor engine))
         (result (rearm (engine-poller engine) listener listener)))
    (when (and (minusp result) (engine-accepting-p engine))
      (note-accept-trouble engine (make-accept-failure :other (error-text (- result)))))))

(defmethod accept-rest ((engine ready-engine) seconds)
  (let ((left (countdown seconds)))
    ;; Somebody else may stop ENGINE, and waits until this is done, to close the listener.
    (loop while (and (engine-accepting-p engine) (plusp (funcall left)))
          do (unless (accept-and-park engine (not (all-serve-p engine)))
               (unless (engine-accept-again-p engine) ; else somebody could not be accepted
                 (return))
               (when (eq (engine-accept-trouble engine) 'descriptors-exhausted)
                 (evict-idle-connections engine)) ; the sentinel and who is served make some, too
               (await-kernel engine)))))

(defun accept-for-others (engine)
  "What the sentinel does when no worker of ENGINE is free to accept: parks what comes, or refuses
it."
  (loop repeat +accept-batch+
        unless (accept-and-park engine nil)
          return nil
        finally (rearm-listener engine)))
