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

(defconstant +econnaborted+ 103)

(defconstant +accept-batch+ 16
  "How many connections one worker accepts before what else is ready has its turn.")

(defun open-connection (engine descriptor peer)
  "A connection, owned by the caller, on DESCRIPTOR, to PEER."
  (let* ((table (engine-table engine))
         (connection (make-connection nil :descriptor descriptor
                                          :generation (next-generation table)
                                          :opened (pace-now (engine-pace engine))
                                          :peer peer)))
    (counter-add (engine-accept-count engine) 1)
    (counter-add (engine-open-count engine) 1)
    (enter-connection table connection)
    connection))

(defun refused-p (engine worker)
  "True when ENGINE has no room for the connection that was just opened by WORKER, who may serve
it, or by the sentinel, when NIL, because all workers serve."
  (let ((limit (engine-accept-limit engine)))
    (case limit
      (:unlimited nil)
      ((nil) (null worker))
      (t (> (open-count engine) limit)))))

(defun refuse-connection (engine connection)
  (with-engine (engine)
    (incf (engine-refused engine)))
  (handler-case (refuse (engine-service engine) connection)
    (error () (count-failure engine)))
  (say-good-bye engine connection))

(defun take-connection (engine worker)
  "A new connection, owned by the caller; NIL when there is none, or it was refused.  WORKER is as
for REFUSED-P.  The second value is true when there may be more, which the poller will not tell."
  (multiple-value-bind (descriptor peer) (accept-descriptor (engine-listener-descriptor engine))
    (cond ((minusp descriptor)
           (values nil (note-failed-accept engine descriptor)))
          (t
           (let ((connection (open-connection engine descriptor peer)))
             (cond ((refused-p engine worker)
                    (refuse-connection engine connection)
                    (values nil t))
                   (t
                    (values connection t))))))))

(defun note-failed-accept (engine result)
  "Notes that accepting failed with RESULT.  True when it may succeed if tried again at once."
  (cond ((= result (- +econnaborted+)) t) ; the peer was gone already
        ((would-block-p result)
         (when (engine-accept-trouble engine)
           (forget-accept-trouble engine))
         nil)
        (t
         (when (engine-accepting-p engine) ; the sentinel will try again
           (note-accept-trouble
            engine (make-condition 'descriptors-exhausted
                                   :cause (format nil "error number ~D" (- result)))))
         nil)))

(defun accept-connections (engine worker)
  "Accepts a connection and serves it: its request is most often there already.  See above for
those that came with it."
  (multiple-value-bind (connection more-p) (take-connection engine worker)
    (when (and more-p
               (or (not (somebody-waits-p engine))
                   (accept-and-park engine worker)))
      (leave-listener engine worker))
    (when connection
      (serve-while-ready engine worker connection))))

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
  "Lets the poller tell of the listener of ENGINE again if connections wait there."
  (watch-again (engine-poller engine) (engine-listener-descriptor engine)
               (engine-listener-descriptor engine)))

(defmethod accept-rest ((engine ready-engine))
  (loop while (accept-and-park engine nil)))

(defun accept-for-others (engine)
  "What the sentinel does when no worker of ENGINE is free to accept: parks what comes, or refuses
it."
  (loop repeat +accept-batch+
        unless (accept-and-park engine nil)
          return nil
        finally (listen-again engine)))
