(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; One thread for each engine sees to what no worker can: it makes workers where some
;;;; died or could not be made, and ends connections that overstay.

(defun count-expired (engine kind)
  "Counts a connection of ENGINE as ended by the sentinel because of KIND.  Under the lock."
  (incf (engine-expired engine))
  (incf (getf (engine-expired-by engine) kind 0)))

(defun end-connection (engine worker kind)
  "Ends what WORKER reads or writes, because of KIND; it will notice, and release the connection
itself.  Under the lock, so that the socket cannot be closed, and its descriptor reused, meanwhile."
  (count-expired engine kind)
  (setf (connection-deadline (worker-connection worker)) nil)
  (shut-down (connection-socket (worker-connection worker))
             (if (eq (worker-state worker) :idling) :input :io)))

(defun end-overdue-connections (engine)
  (loop with now = (milliseconds)
        for worker in (engine-workers engine)
        for connection = (worker-connection worker)
        when (and connection (overdue-p connection now))
          do (end-connection engine worker (connection-deadline-kind connection))))

(defun tend-pool (engine)
  "Clears away the workers of ENGINE that are gone, and makes those that it misses.  True when
none failed."
  (bury-dead-workers engine)
  (join-leavers engine)
  (outlive-thread-trouble engine)
  (refill engine))

(defun call-surviving (engine part function)
  "Calls FUNCTION, which does PART, a keyword, of the sentinel's work.  True when it succeeds; when it fails,
notes that, unless it failed the last time as well."
  (handler-case (funcall function)
    (serious-condition (condition)
      (count-failure engine)
      (unless (member part (engine-stumbling engine))
        (push part (engine-stumbling engine))
        (tell engine :error "The sentinel stumbled: ~A" condition))
      nil)
    (:no-error (&rest values)
      (declare (ignore values))
      (when (engine-stumbling engine)
        (setf (engine-stumbling engine) (remove part (engine-stumbling engine))))
      t)))

(defun pause-after-failure (engine)
  (bt:with-lock-held ((engine-lock engine))
    (unless (eq (engine-phase engine) :stopped)
      (wait-on (engine-bell engine) (engine-lock engine) *tick*))))

(defun look-after (engine)
  "What the sentinel of ENGINE does at a tick.  True when all that was missing was made."
  (with-engine (engine)
    (end-overdue-connections engine)
    (tend engine))
  (tend-pool engine))

(defun quiet-p (engine)
  "True when nothing that the sentinel looks after is under way.  Under the lock."
  (not (or (plusp (worker-count engine :starting :serving))
           (full-p engine)
           (engine-queue engine)
           (engine-crowded-p engine)
           (engine-thread-trouble-p engine)
           (not (running-p engine)))))

(defun rest-a-tick (engine)
  (bt:with-lock-held ((engine-lock engine))
    (unless (or (eq (engine-phase engine) :stopped)
                (plusp (missing-workers engine)))
      (wait-on (engine-bell engine) (engine-lock engine) (if (quiet-p engine) *rest* *tick*)))))

(defmethod watch-over ((engine engine))
  (loop until (eq (engine-phase engine) :stopped)
        unless (call-surviving engine :look-after (lambda ()
                                                    (look-after engine)
                                                    (rest-a-tick engine)))
          do (pause-after-failure engine)))

;;; Its thread
;;;
;;; If that dies, which nobody but a person at a REPL or a failing Lisp brings about, its last act is to
;;; call a worker, who makes the next one: the thread that dies may be dying with the whole Lisp.

(defun start-sentinel (engine)
  "Makes the sentinel of ENGINE, which is counted already, and returns its thread."
  (make-sentinel-thread (engine-service engine) (lambda () (run-sentinel engine))))

(defun run-sentinel (engine)
  "The life of the sentinel of ENGINE in its own thread."
  (unwind-protect
       (progn
         (with-engine (engine)
           (setf (engine-sentinel engine) (bt:current-thread))
           (bt:condition-notify (engine-changed engine)))
         (handler-case (sentinel-began (engine-service engine) (bt:current-thread))
           (error () (count-failure engine)))
         (watch-over engine))
    (survive-cleanup)
    (when (with-engine (engine)
            (setf (engine-sentinel-lost-p engine) (not (eq (engine-phase engine) :stopped))))
      (call-for-sentinel engine))
    (with-engine (engine)
      (discount-sentinel engine))
    (close-doors-when-empty engine)))

(defun discount-sentinel (engine)
  "One sentinel of ENGINE less.  Under the lock."
  (setf (engine-sentinel-count engine) (max 0 (1- (engine-sentinel-count engine)))))

(defun lost-sentinel-p (engine)
  "True when the sentinel of ENGINE died, with its last act or without."
  (or (engine-sentinel-lost-p engine)
      (let ((thread (engine-sentinel engine)))
        (and thread (not (bt:thread-alive-p thread))))))

(defun replace-sentinel-p (engine)
  "True when the caller is to make a sentinel of ENGINE, which is counted from now on."
  (with-engine (engine)
    (when (and (serving-p engine)
               (may-launch-p engine)
               (lost-sentinel-p engine))
      (setf (engine-sentinel-lost-p engine) nil
            (engine-sentinel engine) nil)
      (incf (engine-sentinel-count engine)))))

(defun ensure-sentinel (engine)
  "Makes a sentinel for ENGINE where the last one died.  Called now and then by whoever has a moment;
not under the lock."
  (let ((counted-p nil))
    (unwind-protect
         (when (uninterruptibly
                 (and (lost-sentinel-p engine)
                      (setf counted-p (replace-sentinel-p engine))
                      (succeed-sentinel engine)
                      (not (setf counted-p nil))))
           (tell engine :warning "The sentinel died, and has a successor."))
      (survive-cleanup)                 ; whoever makes it may die as well
      (when counted-p
        (with-engine (engine)
          (setf (engine-sentinel-lost-p engine) t)
          (discount-sentinel engine))))))

(defun succeed-sentinel (engine)
  "Makes another sentinel of ENGINE.  True when that succeeded."
  (handler-case (progn (start-sentinel engine) t)
    (error (condition)
      (note-thread-trouble engine condition)
      nil)))

(defun await-sentinel (engine seconds)
  "Waits up to SECONDS, a real or NIL for no limit, for the end of the sentinel of ENGINE, however it
ends."
  (let ((thread (engine-sentinel engine)))
    (when (and thread (not (eq thread (bt:current-thread)))
               (join-thread thread seconds))
      ;; Not even its last act may have been done.
      (with-engine (engine)
        (setf (engine-sentinel-count engine) 0)))))
