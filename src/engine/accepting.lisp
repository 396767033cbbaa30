(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How connections come into the ready engine.
;;;;
;;;; The poller tells of the listener once when something comes there, so whoever is told sees to
;;;; it that all of it is taken:
;;;;
;;;;   having accepted one connection, a worker finds    and does, before it serves that
;;;;   nobody waits                                      leaves the listener on the tray
;;;;   somebody waits, and there is a second one         parks that, leaves the listener on the tray
;;;;   somebody waits, and there is none                 nothing: the next one will be told
;;;;   it has accepted many since it asked the poller    has the listener told of again, after all
;;;;                                                     that is ready now
;;;;
;;;; When all connections are accepted first, and parked, each costs two calls of the system more,
;;;; and most often another processor than the one that has it in its cache.

(defconstant +accept-batch+ 16
  "How many connections one worker accepts before what else is ready has its turn.")

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
                                            :opened (pace-now (engine-pace engine))
                                            :peer peer)))
      (unless connection
        (close-descriptor descriptor)))
    (counter-add (engine-accept-count engine) 1)
    (counter-add (engine-open-count engine) 1)
    connection))

(defun wanting-p (engine connection)
  "True when CONNECTION of ENGINE is parked and has something to be read.  Asks as its owner: else the
descriptor might be another's by then."
  (and (claim-parked connection)
       (prog1 (await-descriptor (connection-descriptor connection) :input :until (milliseconds))
         (park-again engine connection))))

(defun wanting-count (engine most)
  "How many connections of ENGINE are served, or are parked and have something to be read, which no
worker is free for; MOST where they are more."
  (let ((count (with-engine (engine) (attended-count engine))))
    (block counting
      (map-connections (lambda (connection)
                         (when (>= count most)
                           (return-from counting))
                         (when (uninterruptibly (wanting-p engine connection))
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
                   (>= (wanting-count engine limit) limit)))))))

(defun refuse-connection (engine connection)
  (with-engine (engine)
    (incf (engine-refused engine)))
  (let ((told-p nil))
    (unwind-protect (progn (handler-case (refuse (engine-service engine) connection)
                             (error () (count-failure engine)))
                           (setf told-p t))
      (if told-p
          (say-good-bye engine connection)
          (drop-connection engine connection)))))

(defun refuse-descriptor (engine descriptor)
  "Closes DESCRIPTOR, which is a larger number than the table of ENGINE has room for."
  (close-descriptor descriptor)
  (with-engine (engine)
    (incf (engine-refused engine)))
  nil)

(defun adopt-descriptor (engine worker descriptor peer)
  "A new connection on DESCRIPTOR, to PEER, owned by the caller; NIL when it was refused.  WORKER is as
for REFUSED-P."
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
  "Forgets what kept ENGINE from accepting.  While descriptors lack one comes free now and then, which
is not the end of that."
  (when (and (engine-accept-trouble engine)
             (not (eq (engine-accept-trouble engine) 'descriptors-exhausted)))
    (forget-accept-trouble engine)))

(defun note-failed-accept (engine number)
  "Notes that accepting failed with the error NUMBER.  True when it may succeed if tried again at once."
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
trouble only the next connection tells whether it lasts.  True when somebody waits all the same, of whom
the poller need not tell."
  (if (eq (engine-accept-trouble engine) 'descriptors-exhausted)
      (forget-accept-trouble engine)
      (with-engine (engine)
        (setf (engine-accept-again-p engine) nil)))
  ;; Another thread may have been told of somebody who came since, failed to accept that connection, and
  ;; noted so before: that was just forgotten.
  (somebody-to-accept-p engine))

(defun accept-again (engine)
  "What the sentinel does about connections of ENGINE that could not be accepted."
  (when (or (somebody-to-accept-p engine)
            ;; They are gone, or went to another process that has the same listener.
            (note-backlog-empty engine))
    (when (eq (engine-accept-trouble engine) 'descriptors-exhausted)
      (make-room engine))
    (listen-again engine)))

(defun accept-connections (engine worker)
  "Accepts a connection and serves it: its request is most often there already.  See above for
those that came with it."
  (multiple-value-bind (connection more-p) (take-connection engine worker)
    (when more-p
      (see-to-others engine worker connection))
    (when connection
      (serve-while-ready engine worker connection))))

(defun see-to-others (engine worker connection)
  "Has those accepted that may have come with CONNECTION, which WORKER accepted and is going to serve,
whatever fails here."
  (let ((done-p nil))
    (unwind-protect
         (progn
           (handler-case (when (or (not (somebody-waits-p engine))
                                   (accept-and-park engine worker))
                           (leave-listener engine worker))
             (error (condition)
               (count-failure engine)
               (tell engine :error "Accepting a connection failed: ~A" condition)))
           (setf done-p t))
      (when (and connection (not done-p))
        (drop-connection engine connection)))))

(defun accept-and-park (engine worker)
  "Accepts a connection for whoever is told of its request.  True when there may be more, which the
poller will not tell."
  (multiple-value-bind (connection more-p) (take-connection engine worker)
    (when connection
      (ecase (park engine connection)
        (:parked (end-if-parked-too-late engine connection))
        (:again (tend-connection-later engine connection))
        (:broken (drop-connection engine connection))))
    more-p))

(defun leave-listener (engine worker)
  "Lets somebody else look whether connections wait."
  (if (< (incf (ready-worker-accepted worker)) +accept-batch+)
      (leave-on-tray engine (list (engine-listener-descriptor engine)))
      (listen-again engine)))

(defun listen-again (engine)
  "Lets the poller tell of the listener of ENGINE again if connections wait there.  If the system does
not take that, it is tried again."
  (let* ((listener (engine-listener-descriptor engine))
         (result (watch-again (engine-poller engine) listener listener)))
    (when (and (minusp result) (engine-accepting-p engine))
      (note-accept-trouble engine (make-accept-failure :other (error-text (- result)))))))

(defun all-serve-p (engine)
  "True when no worker of ENGINE is free, and none may be made."
  (with-engine (engine)
    (not (or (room-p engine) (plusp (coming-count engine))))))

(defmethod accept-rest ((engine ready-engine) seconds)
  (let ((left (countdown seconds)))
    ;; Somebody else may stop ENGINE, and waits until this is done, to close the listener.
    (loop while (and (engine-accepting-p engine) (plusp (funcall left)))
          do (unless (uninterruptibly (accept-and-park engine (not (all-serve-p engine))))
               (unless (eq (engine-accept-trouble engine) 'descriptors-exhausted)
                 (return))
               (make-room engine)       ; the sentinel and who is served make some, too
               (await-kernel engine)))))

(defun accept-for-others (engine)
  "What the sentinel does when no worker of ENGINE is free to accept: parks what comes, or refuses
it."
  (loop repeat +accept-batch+
        unless (uninterruptibly (accept-and-park engine nil))
          return nil
        finally (listen-again engine)))
