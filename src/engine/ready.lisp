(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How the workers of the ready engine work: see ready-engine.lisp for the table.

;;; Being told

(defparameter *wait-milliseconds* 1000
  "After how long without anything to do a worker looks whether it is needed.  The poller wakes
who came last first, so those who are not needed get there.")

(defun next-token (engine worker)
  "What WORKER should follow next; anything but an integer when it is time to look around."
  (loop for token = (or (take-from-tray engine) (await-token engine worker))
        unless (eq token :summons)
          return token
        do (answer-summons engine)))

(defun await-token (engine worker)
  "What the poller tells WORKER, or what came to lie on the tray while it turned to the poller."
  (let ((waiting (pace-waiting (engine-pace engine)))
        (most (if (somebody-waits-p engine) 1 +helping+)))
    (setf (ready-worker-accepted worker) 0)
    (counter-add waiting 1)
    (multiple-value-bind (token others)
        (or (take-from-tray engine)
            (await-ready (engine-poller engine) *wait-milliseconds* most))
      (counter-add waiting -1)
      (when others
        (leave-others engine others))
      token)))

(defun leave-others (engine others)
  "Leaves OTHERS, tokens that came with the one that the caller follows, to who is free next.  A
summons among them reached nobody who waits, so it is answered first: they are summoned again."
  (when (member :summons others)        ; seldom
    (answer-summons engine)
    (setf others (remove :summons others)))
  (when others
    (leave-on-tray engine others)))

(defun wake-sentinel-if-nobody-waits (engine pace)
  (when (and (pace-dozing-p pace) (not (somebody-waits-p engine)))
    (ring-sentinel engine)))

(defun ring-sentinel (engine)
  (with-engine (engine)
    (bt:condition-notify (engine-bell engine))))

(defparameter *timer-slack-microseconds* 100
  "How late the system may end the sleep of a handler, to end several at once; its own default is
half of that.")

(defun prepare-thread ()
  "Tells the system what the current thread is, a worker's or the sentinel's: one of many that had
better not interrupt each other, nor the clients, when they wake.  Who is interrupted amid a request
may have to wait for the slices of several others."
  (schedule-as-batch)
  (let-timers-be-late *timer-slack-microseconds*))

(defmethod work ((engine ready-engine) worker)
  (prepare-thread)
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
           (setf (ready-worker-stamp worker) (pace-tick pace))
           (wake-sentinel-if-nobody-waits engine pace)
           (unwind-protect (follow-token engine worker token)
             (setf (ready-worker-stamp worker) 0)))
          ((eq token :probe)
           (note-wait (engine-probe engine)))
          (t
           (interruptibly)))))

(defun follow-token (engine worker token)
  (if (= token (engine-listener-descriptor engine))
      (when (running-p engine)          ; or an inherited listener's connections are for others
        (accept-connections engine worker))
      (let ((connection (own-connection engine token)))
        (when connection
          (tend-connection engine worker connection)))))

(defun own-connection (engine token)
  "The connection that TOKEN tells of, if the caller owns it now; else NIL."
  (let ((connection (find-connection (engine-table engine) (plain-token token))))
    (when (and connection (become-owner connection))
      (when (token-hangup-p token)
        (setf (connection-hangup-p connection) t))
      connection)))

(defun tend-connection (engine worker connection)
  "Does for CONNECTION, which WORKER owns, what it is ready for."
  (if (connection-lingering-p connection)
      (linger engine connection)
      (serve-while-ready engine worker connection)))

;;; Serving

(defun serve-while-ready (engine worker connection)
  "Serves CONNECTION, which WORKER owns, until it is parked, closed or detached.  WORKER is NIL
in the thread of the sentinel, when ENGINE drains."
  (let ((outcome nil))
    (when worker
      (setf (worker-connection worker) connection))
    (unwind-protect
         (setf outcome (serve-until-parked engine connection))
      (when worker
        (setf (worker-connection worker) nil))
      (case outcome
        (:parked (end-if-parked-too-late engine connection))
        (:detached (detach engine connection))
        (:close (say-good-bye engine connection))
        (t (drop-connection engine connection)))))) ; broken, or unwound

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
      :close)))

(defun serve-once (engine connection)
  "Serves one request of CONNECTION.  Returns :AGAIN when there is more to be done for it, else
what became of it, :PARKED, or is to become of it."
  (setf (connection-deadline connection) nil)
  (let* ((service (engine-service engine))
         (outcome (interruptibly (serve service connection))))
    (cond ((connection-output connection)
           (setf (connection-outcome connection) outcome)
           :again)
          ((not (eq outcome :park)) outcome)
          ((input-buffered-p service connection) :again)
          ;; Of an end that was told already nobody would be told again.
          ((or (connection-hangup-p connection) (not (running-p engine))) :close)
          ((park engine connection) :parked)
          (t :again))))

(defun park (engine connection)
  "Leaves CONNECTION to whoever is told that more of it has come.  NIL when that is so already
and it is the caller's still."
  (unless (connection-deadline connection)
    (let ((pace (engine-pace engine)))
      (set-deadline-in connection (if (zerop (connection-served connection)) :first-byte :idle)
                       (pace-idle pace) (pace-now pace))))
  (leave-to-poller engine connection))

(defun leave-to-poller (engine connection)
  "Makes CONNECTION, which the caller owns, nobody's.  NIL when more has come and it is still the
caller's."
  (cond ((connection-watched-p connection)
         (give-up-ownership connection))
        (t
         ;; From the moment it is watched, it may be another's.
         (setf (connection-watched-p connection) t
               (connection-ownership connection) :parked)
         (watch-connection engine connection)
         t)))

(defun end-if-parked-too-late (engine connection)
  "STOP ends what is parked when it looks; what is parked later must see to itself.  What a soft
stop waits for is left to it."
  (when (and (not (running-p engine))
             (not (and (draining-p engine) (unfinished-p connection)))
             (become-owner-if-parked connection))
    (drop-connection engine connection)))

(defun become-owner-if-parked (connection)
  (compare-and-set (connection-ownership connection) :parked :owned))

(defun watch-connection (engine connection)
  (unless (zerop (watch (engine-poller engine) (connection-descriptor connection)
                        (connection-token connection)
                        (connection-output-watched-p connection)))
    (when (become-owner connection)
      (count-failure engine)
      (drop-connection engine connection))))

;;; Ending

(defun forget-owned (engine connection)
  "Makes CONNECTION, which the caller owns, no connection of ENGINE any more."
  (end-ownership connection)
  (drop-parts (shiftf (connection-output connection) '()))
  (forget-connection (engine-table engine) connection)
  (counter-add (engine-open-count engine) -1))

(defun close-owned (engine connection)
  (forget-owned engine connection)
  (close-descriptor (connection-descriptor connection)))

(defmethod give-up-connection ((engine ready-engine) connection)
  (drop-connection engine connection))

(defun drop-connection (engine connection)
  "Closes CONNECTION, which the caller owns, at once."
  (uninterruptibly
    (let-go engine connection)
    (close-owned engine connection)))

(defun detach (engine connection)
  "Forgets CONNECTION, whose socket is somebody else's now."
  (when (connection-watched-p connection)
    (unwatch (engine-poller engine) (connection-descriptor connection)))
  (forget-owned engine connection))

(defparameter *linger-seconds* 1
  "How long a connection that was answered for the last time may take to end.")

(defun drain (connection)
  "Reads and drops what CONNECTION has.  True at its end."
  (loop for count = (drop-octets (connection-descriptor connection) +most-dropped+)
        while (plusp count)
        finally (return (not (would-block-p count)))))

(defun begin-to-linger (connection now)
  "Ends our half of CONNECTION, which the caller owns: nothing more will be said."
  (shut-descriptor (connection-descriptor connection) :output)
  (setf (connection-lingering-p connection) t)
  (set-deadline connection :linger *linger-seconds* now))

(defun say-good-bye (engine connection)
  "Closes CONNECTION, whose last answer was sent.  When its peer sends more than was read, only
our half is ended and the rest dropped until the peer ends: a descriptor that is closed with
unread input resets its peer, who may then lose the answer (RFC 9112, section 9.6)."
  (let ((unread-p (unread-p engine connection)))
    (let-go engine connection)
    (cond (unread-p
           (begin-to-linger connection (pace-now (engine-pace engine)))
           (linger engine connection))
          (t
           (close-owned engine connection)))))

(defun unread-p (engine connection)
  "True when more of CONNECTION has come than was read.  Reads some of it."
  (not (or (and (connection-watched-p connection)
                (eq (connection-ownership connection) :owned) ; nothing was told since
                (all-read-p (engine-service engine) connection))
           (<= (drop-octets (connection-descriptor connection) 1) 0))))

(defun linger (engine connection)
  "Drops what CONNECTION, which the caller owns, has; closes it at its end, else parks it."
  (loop
    (when (drain connection)
      (return (close-owned engine connection)))
    (when (park engine connection)
      (return (end-if-parked-too-late engine connection)))))
