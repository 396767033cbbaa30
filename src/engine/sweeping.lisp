(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What the sentinel of the ready engine looks after a few times a second: deadlines, above all.

(defun end-overdue-connection (engine connection now)
  (when (overdue-p connection now)
    (flet ((count-it ()
             (with-engine (engine)
               (count-expired engine (connection-deadline-kind connection)))))
      (if (become-owner-if-parked connection)
          ;; It may have been served and parked again since: look again, as its owner.
          (cond ((overdue-p connection now)
                 (count-it)
                 (dismiss engine connection now))
                ((not (give-up-ownership connection))
                 (tend-connection-later engine connection)))
          (call-while-expiring connection
                               (lambda ()
                                 (when (overdue-p connection now)
                                   (count-it)
                                   (shut-descriptor (connection-descriptor connection) :io))))))))

(defun dismiss (engine connection now)
  "Ends CONNECTION, which is overdue and the sentinel's.  Where its peer was told why, gently."
  (cond ((and (not (unfinished-p connection)) ; or it would stand within an answer
              (notice-given-p engine connection))
         (let-go engine connection)
         (begin-to-linger connection now)
         (tend-connection-later engine connection))
        (t
         (drop-connection engine connection))))

(defun notice-given-p (engine connection)
  (handler-case (give-notice (engine-service engine) connection)
    (error ()
      (count-failure engine)
      nil)))

(defun tend-connection-later (engine connection)
  "Lets somebody be told again of CONNECTION, which the sentinel owns but must not serve."
  (setf (connection-ownership connection) :parked)
  (watch-connection-again engine connection))

(defun note-idle-seconds (engine)
  "Lets the workers of ENGINE know what their service says of idle connections."
  (setf (pace-idle (engine-pace engine))
        (as-milliseconds (idle-seconds (engine-service engine)))))

(defun sweep (engine pacemaker)
  "Ends the overdue connections of ENGINE, a few times a second."
  (let ((now (milliseconds)))
    (when (> (- now (pacemaker-last-sweep pacemaker)) (* 1000 *tick*))
      (setf (pacemaker-last-sweep pacemaker) now)
      (note-idle-seconds engine)
      (map-connections (lambda (connection) (end-overdue-connection engine connection now))
                       (engine-table engine))
      (close-status-descriptors engine)
      (sample-wait (engine-probe engine) (engine-poller engine))
      (when (engine-accept-trouble engine)
        (make-room engine)
        (listen-again engine))
      (tend-pool engine))))

(defun longest-idle (engine)
  "The parked connections of ENGINE, those first that have waited for longest."
  (sort (parked-connections (engine-table engine)) #'<
        :key (lambda (connection) (or (connection-deadline connection) 0))))

(defun make-room (engine)
  "Ends some connections of ENGINE that only idle: without descriptors nobody else comes in."
  (loop repeat +accept-batch+
        for connection in (longest-idle engine)
        when (become-owner-if-parked connection)
          do (cond ((await-descriptor (connection-descriptor connection) :input :until (milliseconds))
                    (tend-connection-later engine connection))
                   (t
                    (with-engine (engine)
                      (count-expired engine :crowd))
                    (drop-connection engine connection)))))

(defun close-status-descriptors (engine)
  (mapc #'close-descriptor
        (with-engine (engine) (shiftf (engine-status-descriptors engine) '()))))
