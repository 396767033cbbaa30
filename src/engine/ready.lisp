(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How the workers of the ready engine work: see ready-engine.lisp for the table.

;;; Being told

(defun next-token (engine worker)
  "What WORKER should follow next; anything but an integer when it is time to look around."
  (loop for token = (or (take-from-tray engine) (await-token engine worker))
        unless (eq token :summons)
          return token
        do (answer-summons engine)
           (when (engine-sentinel-lost-p engine)
             (interruptibly (ensure-sentinel engine)))))

(defun await-token (engine worker)
  "What the poller tells WORKER, or what came to lie on the tray while it turned to the poller."
  (let ((waiting (pace-waiting (engine-pace engine)))
        (most (if (somebody-waits-p engine) 1 +helping+)))
    (setf (ready-worker-accepted worker) 0)
    (counter-add waiting 1)
    (multiple-value-bind (token others)
        (or (take-from-tray engine)
            (await-ready (engine-poller engine) (ready-worker-patience worker) most))
      (counter-add waiting -1)
      (setf (ready-worker-patience worker)
            (if token *wait-milliseconds* (long-patience (engine-pace engine))))
      (when others
        (leave-others engine others))
      token)))

(defun leave-others (engine others)
  "Leaves OTHERS, tokens that came with the one that the caller follows, to who is free next.  A
summons among them reached nobody who waits, so it is answered first, and another one sent: for them, or
for what lay on the tray already."
  (when (member :summons others)        ; seldom
    (answer-summons engine)
    (setf others (remove :summons others))
    (when (and (null others) (engine-tray engine))
      (summon-if-somebody-waits engine)))
  (when others
    (leave-on-tray engine others))
  (when (engine-sentinel-lost-p engine) ; the summons may have been its
    (summon (engine-poller engine))))

(defun long-patience (pace)
  "How long a worker waits that found nothing to do: so long that all who wait at rest look around once
in four seconds.  When more may wait than at rest, as long as the others: it may be one too many soon."
  (if (> (pace-target pace) (pace-floor pace))
      *wait-milliseconds*
      (* 4 *wait-milliseconds* (1+ (counter-count (pace-waiting pace))))))

(defun wake-sentinel-if-nobody-waits (engine pace)
  "Ends the doze of the sentinel of ENGINE if nobody waits any more.  The caller has counted itself as
not waiting before, and reads whether the sentinel dozes afterwards; see DOZE."
  (when (and (pace-dozing-p pace) (not (somebody-waits-p engine)))
    (ring-sentinel engine)))

(defun ring-sentinel (engine)
  (with-engine (engine)
    ;; The clock stands until the sentinel has woken, so PACE-NOW asks the system until then.
    (when (shiftf (pace-dozing-p (engine-pace engine)) nil)
      (bt:condition-notify (engine-bell engine)))))

(defparameter *timer-slack-microseconds* 100
  "How late the system may end the sleep of a handler, to end several at once; its own default is
half of that.")

(defun prepare-thread (engine)
  "Tells the system what the current thread is, a worker's of ENGINE or the sentinel's: one of many
that had better not interrupt each other, nor the clients, when they wake.  Who is interrupted amid a
request may have to wait for the slices of several others.  Unless its service wants it otherwise."
  (when (batch-scheduling-p (engine-service engine))
    (schedule-as-batch)
    (let-timers-be-late *timer-slack-microseconds*)))

(defmethod work ((engine ready-engine) worker)
  (prepare-thread engine)
  (setf (ready-worker-identity worker) (thread-identity))
  (take-seat engine worker)
  ;; The poller tells of an arrival once, and a connection that is accepted or owned is nobody
  ;; else's to close.  So a thread that is to be destroyed dies only where it says INTERRUPTIBLY:
  ;; while it has nothing to do, and while the service serves.
  (deferring-interrupts
    (loop while (on-duty-p engine worker (engine-pace engine))
          do (look-for-work engine worker))))

(defun look-for-work (engine worker)
  (let* ((pace (engine-pace engine))
         (token (next-token engine worker)))
    (cond ((integerp token)
           (setf (ready-worker-begun worker) (pace-now pace)
                 (ready-worker-stamp worker) (pace-tick pace))
           (wake-sentinel-if-nobody-waits engine pace)
           (unwind-protect (follow-token engine worker token)
             (setf (ready-worker-stamp worker) 0)))
          ((eq token :probe)
           (note-wait (engine-probe engine)))
          (t
           (interruptibly (ensure-sentinel engine))))))

(defun follow-token (engine worker token)
  (if (= token (engine-listener-descriptor engine))
      (when (engine-accepting-p engine) ; or an inherited listener's connections are for others
        (accept-connections engine worker))
      (let ((connection (own-connection engine token)))
        (when connection
          (tend-connection engine worker connection)))))

(defun own-connection (engine token)
  "The connection that TOKEN tells of, if the caller owns it now; else NIL."
  (let ((connection (find-connection (engine-table engine) (plain-token token))))
    (and connection
         (become-owner connection (token-hangup-p token))
         connection)))

(defun tend-connection (engine worker connection)
  "Does for CONNECTION, which WORKER owns, what it is ready for."
  (if (connection-lingering-p connection)
      (linger engine connection)
      (serve-while-ready engine worker connection)))

;;; Serving

(defun serve-while-ready (engine worker connection)
  "Serves CONNECTION, which WORKER owns, until it is parked, closed or detached."
  (let ((outcome nil))
    (setf (worker-connection worker) connection)
    (unwind-protect
         (setf outcome (serve-until-parked engine connection))
      (setf (worker-connection worker) nil)
      (cond ((eq outcome :parked)
             (end-if-parked-too-late engine connection))
            ((gone-p connection))       ; it was given away before its service was done with it
            (t
             (ecase (or outcome (given-away-outcome connection))
               (:detached (detach engine connection))
               (:close (say-good-bye engine connection))
               (:broken (break-off engine connection))
               ((nil) (drop-connection engine connection))))))))

(defun serve-until-parked (engine connection)
  "Serves what has come of CONNECTION; returns :PARKED, :CLOSE, :DETACHED or :BROKEN."
  (handler-case
      (loop for result = (if (connection-output connection)
                             (send-what-is-left engine connection)
                             (serve-once engine connection))
            unless (eq result :again)
              return result)
    (error (condition)
      (count-failure engine)
      (tell engine :error "Serving a connection failed: ~A" condition)
      (or (given-away-outcome connection) :close))))

(defun serve-once (engine connection)
  "Serves one request of CONNECTION.  Returns :AGAIN when there is more to be done for it, else
what became of it, :PARKED, or is to become of it."
  (setf (connection-deadline connection) nil)
  (order-writes)                        ; see HELD-P
  (setf (connection-untouched connection) nil)
  (let* ((service (engine-service engine))
         (served (connection-served connection))
         (outcome (interruptibly (serve service connection))))
    (cond ((gone-p connection) :detached)
          ((connection-output connection)
           (setf (connection-outcome connection) outcome)
           :again)
          ((not (eq outcome :park)) outcome)
          ((and (input-buffered-p service connection)
                (or (/= served (connection-served connection))
                    (note-stall engine)))
           :again)
          ((and (arrived-p connection) (not (give-up-ownership connection)))
           :again)
          ;; The kernel reported this end already; no further event will come.
          ((or (read-closed-p connection) (not (serving-p engine))) :close)
          (t (park engine connection)))))

(defun note-stall (engine)
  "Counts a time when the service of ENGINE served no request, and yet says that there is input to be
served.  NIL: to call it again would change nothing, so the connection is parked, and has a deadline."
  (with-engine (engine)
    (incf (engine-stalls engine)))
  nil)

(defun park (engine connection)
  "Makes CONNECTION, which the caller owns, nobody's, until the kernel reports that more of it has come.
Returns :PARKED; :AGAIN when that is so already, and :BROKEN when it cannot be watched: it is the
caller's still."
  (unless (connection-deadline connection)
    (let ((pace (engine-pace engine)))
      (set-deadline-in connection (if (zerop (connection-served connection)) :first-byte :idle)
                       (pace-idle pace) (pace-now pace))))
  (leave-to-poller engine connection))

(defun leave-to-poller (engine connection)
  "What PARK does, without a deadline."
  ;; It is watched before it is anybody else's: whoever owned it then could close the descriptor, and
  ;; the next connection might have the same number.
  (setf (connection-untouched connection) :parked)
  (cond ((not (or (connection-watched-p connection)
                  (watch-connection engine connection)))
         :broken)
        ((give-up-ownership connection) :parked)
        (t :again)))

(defun watch-connection (engine connection)
  "Has the kernel report events of CONNECTION, which the caller owns.  NIL when it refuses."
  (cond ((zerop (watch (engine-poller engine) (connection-descriptor connection)
                       (connection-token connection)
                       (connection-output-watched-p connection)))
         (setf (connection-watched-p connection) t))
        (t
         (count-failure engine)
         nil)))

(defun end-if-parked-too-late (engine connection)
  "STOP ends what is parked when it looks; what is parked later must see to itself."
  (when (and (not (serving-p engine))
             (claim-parked connection))
    (drop-connection engine connection)))
