(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The life of a worker of the ready engine.
;;;;
;;;;   the worker   in                           and sometimes
;;;;   waits        NEXT-EVENT                   is suspended for a while, or ends
;;;;   owns         WORKER-LOOP                  finds an owner, and leaves the event to that
;;;;   serves       SERVE-CONNECTION             survives a failure of the service
;;;;   settles      SERVE-ONCE                   goes on, if there is more input or unsent output
;;;;   parks        PARK                         goes on, likewise
;;;;
;;;; The poller reports an arrival once, and no other thread can close a connection that this one
;;;; accepted or owns.  So a worker that is to be destroyed dies only where it says INTERRUPTIBLY.

(defconstant +turn+ 16
  "How many events a worker takes at a time, if it waits alone, and from the queue before it asks
the poller; and how many requests of one connection it serves, and parts of input it drops, before
other events have their turn.")

(defmethod worker-loop ((engine ready-engine) worker)
  ;; A thread that wakes should interrupt neither the others nor the clients: one that is
  ;; interrupted during a request may have to wait for the time slices of several others.  The
  ;; system may end sleeps of handlers late, several at once; its own default is 50 us.
  (schedule-as-batch)
  (let-timers-be-late 250)
  (setf (worker-identity worker) (thread-identity))
  (with-engine (engine)
    (set-worker-state worker :active)
    (bt:condition-notify (engine-changed engine)))
  (loop
    (unless (serving-p engine)
      (wake-one (engine-poller engine)) ; one that waits ends, too
      (return))
    (let ((excess (engine-excess engine)))
      ;; Enough others wait, or too many run.
      (when (and (or (>= (counter-count (engine-waiting engine)) (engine-target engine))
                     (and (plusp excess)
                          (compare-and-set (engine-excess engine) excess (1- excess))))
                 (not (suspend-worker engine worker)))
        (return)))
    (let ((token (next-event engine worker)))
      (cond ((or (integerp token) (virtual-connection-p token))
             (setf (worker-stamp worker) (microseconds))
             ;; This worker no longer counts as waiting; see LOOK.
             (when (and (engine-sentinel-idle-p engine) (not (somebody-waits-p engine)))
               (with-engine (engine)
                 (when (shiftf (engine-sentinel-idle-p engine) nil)
                   (notify-sentinel engine))))
             (unwind-protect
                  (cond ((virtual-connection-p token)
                         (when (become-owner token (virtual-connection-over-p token))
                           (serve-connection engine worker token)))
                        ((= token (engine-listener-descriptor engine))
                         ;; Connections of an inherited listener may be for others.
                         (when (engine-accepting-p engine)
                           (accept-connections engine worker)))
                        ((= token +timer-token+)
                         ;; The alarm makes one event when it rings.  Before a function is
                         ;; called, which may block, another worker is called for the next timer
                         ;; that is due, or the alarm was set for it.
                         (multiple-value-bind (function more-p)
                             (take-due-timer (engine-timers engine) (microseconds))
                           (when more-p
                             (queue-events engine (list +timer-token+)))
                           (when function
                             (run-timer engine function))))
                        (t
                         (let ((connection (find-connection (engine-table engine)
                                                            (plain-token token))))
                           (cond ((null connection))
                                 ((become-owner connection (token-hangup-p token))
                                  (if (eq :linger (connection-deadline-kind connection))
                                      (linger engine connection)
                                      (serve-connection engine worker connection)))
                                 ((connection-output connection)
                                  ;; Its owner may be in a handler for long.
                                  (flush-queue (connection-queue connection)))))))
               (setf (worker-stamp worker) 0)))
            (t
             (interruptibly)
             (clear-stack))))))         ; else it may keep the last connection alive

;;; Suspended workers, which are not needed now, and may be soon

(defparameter *poll-milliseconds* 1000
  "A worker that had nothing to do for this long looks whether it is needed.  The poller wakes
the worker that came last first, so the others reach this time.")

(defparameter *suspension-seconds* 4
  "A worker that is suspended for longer ends if the pool is larger than its floor.")

(defun suspend-worker (engine worker)
  "Waits until WORKER is resumed: true; or has left the pool: NIL.  The pool grows only while no
worker is suspended."
  (clear-stack)                         ; else it may keep the last connection alive for long
  (when (engine-event-queue engine)     ; one that it would have taken
    (wake-one-if-somebody-waits engine))
  (with-engine (engine)
    (set-worker-state worker :suspended))
  (flet ((over-p ()
           (or (eq :active (worker-state worker))
               (when (or (not (serving-p engine))
                         (and (> (pool-size engine) (engine-standby engine))
                              (>= (worker-milliseconds worker) (* 1000 *suspension-seconds*))))
                 (retire worker)
                 t))))
    (declare (dynamic-extent #'over-p))
    (interruptibly
      (wait-until #'over-p (worker-resumed worker) (engine-lock engine)
                  nil *suspension-seconds*)))
  (eq :active (worker-state worker)))

(defun resume-workers (engine count)
  "Lets up to COUNT suspended workers of ENGINE wait on the ready set again, always the same ones
first, so that the others end; returns how many."
  (with-engine (engine)
    (loop repeat count
          for worker = (find :suspended (engine-workers engine) :key #'worker-state)
          while worker
          do (set-worker-state worker :active)
             (bt:condition-notify (worker-resumed worker))
          count t)))

;;; The event queue: a worker handles one event at a time, and leaves its other events here.
;;;
;;; A wait costs a system call, whether it returns one event or several.  So a worker that waits
;;; alone asks for several, handles the first, and queues the others.  A worker that becomes free
;;; takes events from the queue, first come, first served, before it waits.  The listener's token
;;; is queued in the same way when a worker has accepted one connection of perhaps many.  So a
;;; handler that blocks holds up no other event.
;;;
;;;   Invariant: while events are queued, no worker waits in the poller or a wakeup is pending.
;;;
;;; Three rules keep it.  A worker that is about to wait counts itself as waiting first, and looks
;;; at the queue afterwards.  A worker that queues an event then wakes one that waits.  A worker
;;; that takes an event and leaves others does the same.
;;;
;;; The queue is NIL if it is empty.  Otherwise it is a cell that never changes and is replaced by
;;; compare-and-set.  Its CAR, never empty, lists the tokens that are taken first, in order.  Its
;;; CDR lists those queued behind them, the last first.  So queueing and taking cost the same with
;;; thousands there.

(defun take-event (engine)
  "Takes the oldest token off the queue of ENGINE; NIL if there is none."
  (loop for queue = (engine-event-queue engine)
        while queue
        do (let* ((tokens (car queue))
                  (behind (cdr queue))
                  (left (cond ((rest tokens) (cons (rest tokens) behind))
                              (behind (list (reverse behind))))))
             (when (compare-and-set (engine-event-queue engine) queue left)
               (when left
                 (wake-one-if-somebody-waits engine))
               (return (first tokens))))))

(defun queue-events (engine tokens &optional first-p (wake-p t))
  "Queues TOKENS, a list that no longer changes, behind those of ENGINE; if FIRST-P, before them.
Not WAKE-P is for a worker that is about to take one itself."
  (when tokens
    (loop for before = (engine-event-queue engine)
          until (compare-and-set (engine-event-queue engine) before
                                 (cond ((null before) (list tokens))
                                       (first-p (cons (append tokens (car before)) (cdr before)))
                                       (t (cons (car before) (revappend tokens (cdr before)))))))
    (when wake-p
      (wake-one-if-somebody-waits engine))))

(defun wake-one-if-somebody-waits (engine)
  "Wakes a worker of ENGINE if one waits and no wakeup is pending."
  (when (and (somebody-waits-p engine)
             (compare-and-set (engine-wakeup-pending-p engine) nil t))
    (wake-one (engine-poller engine))))

(defun next-event (engine worker)
  "The next token for WORKER, from the queue or the poller.  Any other value than an integer means
that it is time to look around."
  (loop
    (let* ((waiting (engine-waiting engine))
           (poll-p (>= (worker-taken worker) +turn+))
           (queued (and (not poll-p) (take-event engine))))
      (when queued
        (incf (worker-taken worker))
        (return queued))
      (setf (worker-taken worker) 0)
      (multiple-value-bind (token others)
          (if poll-p
              (await-ready (engine-poller engine) 0 +turn+)
              (let ((most (cond ((somebody-waits-p engine) 1)
                                ((engine-calm-p engine) +turn+)
                                ;; One that has to wait for a processor before it has queued the
                                ;; other events holds them up.
                                (t (floor +turn+ 4)))))
                (counter-add waiting 1)
                (multiple-value-prog1
                    (or (take-event engine)
                        (await-ready (engine-poller engine) *poll-milliseconds* most))
                  (counter-add waiting -1))))
        (cond ((or (eq :wakeup token) (member :wakeup others)) ; seldom
               ;; No other worker was woken by it: this one takes the event that came first.
               (compare-and-set (engine-wakeup-pending-p engine) t nil)
               (queue-events engine (remove :wakeup (cons token others)))
               (unless (serving-p engine)
                 (return nil)))
              (t
               (queue-events engine others)
               (return token)))))))

;;; Serving

(defun serve-connection (engine worker connection)
  "Serves CONNECTION, which the caller owns, until it is parked, closed or given away, or its turn
is over.  WORKER is that of the current thread."
  (let ((end nil))                      ; stays so after a non-local exit
    (setf (worker-connection worker) connection)
    (unwind-protect
         (setf end
               (loop repeat +turn+
                     for next = (handler-case (serve-once engine connection)
                                  ((or error storage-condition) (condition)
                                    (count-failure engine)
                                    (log-message engine :error "Serving a connection failed: ~A"
                                                 condition)
                                    :close))
                     unless (eq next :again)
                       return next
                     finally (return :later)))
      (setf (worker-connection worker) nil)
      (case end
        (:parked)
        (:later
         (setf (worker-taken worker) +turn+) ; it asks the poller first
         (cond ((ask engine nil #'keep-unread-input engine connection)
                (setf (connection-awaiting connection) :turn)
                (requeue-connection engine connection))
               (t
                (finish-connection engine connection :close))))
        (t
         (unless (gone-p connection)    ; given away before its service was done with it
           (finish-connection engine connection (or (given-away-outcome connection) end))))))))

(defun serve-once (engine connection)
  "Does the next thing for CONNECTION, which the caller owns: sends its output, or has the service
of ENGINE serve it.  Returns :AGAIN if there is more to do; :LATER if that is to be done after other
events; :PARKED if it was parked; or how it is to end: :CLOSE, :DETACHED or :BROKEN."
  (let ((queue (connection-queue connection)))
    (setf (connection-deadline connection) nil)
    (cond
      ((send-queue-dead-p queue) :broken)
      ((send-queue-parts queue)
       ;; No worker waits for a peer that takes its time.  Input that comes meanwhile stays in the
       ;; socket, so a peer that sends requests and reads no answers blocks its own sending.
       (cond ((flush-queue queue) :broken)
             ;; Under the lock, or it might see what another thread is about to send: no event of
             ;; output would follow then.
             ((null (with-send-queue (queue) (send-queue-parts queue)))
              (if (serving-p engine) :again :close))
             ((ask engine nil #'keep-unread-input engine connection)
              (prog1 (park engine connection)
                (make-room-for-output engine queue)))
             (t :broken)))
      ((connection-outcome connection))
      (t
       (setf (connection-awaiting connection) nil)
       (let ((outcome (interruptibly (serve (engine-service engine) connection))))
         (setf (connection-outcome connection) nil)
         (cond
           ((gone-p connection) :detached)
           ((eq :broken outcome) :broken)
           ((send-queue-parts queue)
            ;; The poller may report input to a thread that only tries to send.  So once all of the
            ;; output is sent, the service reads everything again.
            (setf (connection-input connection) :missed
                  (connection-outcome connection) (and (eq :close outcome) :close))
            :again)
           (t
            (ecase outcome
              (:next :again)
              (:again :later)
              (:deferred
               (setf (connection-awaiting connection) :answer)
               (park engine connection))
              (:park
               ;; Read once: an event that is reported afterwards leaves :ARRIVED.
               (let ((ownership (connection-ownership connection)))
                 (cond ((or (not (serving-p engine))
                            ;; The kernel reported this end already; no further event will come.
                            (and (logtest +read-closed+ ownership)
                                 (not (logtest +arrived+ ownership))))
                        :close)
                       (t
                        (unless (connection-deadline connection)
                          (set-deadline-at
                           connection :idle
                           (and (engine-idle engine) (+ (milliseconds) (engine-idle engine)))))
                        (park engine connection)))))
              ((:close :detached) outcome)))))))))

;;; Parking

(defun park (engine connection)
  "Parks CONNECTION, which the caller owns, until the kernel reports more input.  Returns
:PARKED; or :AGAIN if more has come already, or :BROKEN if it cannot be watched.  In these two
cases the caller still owns it."
  ;; Watch it before another thread can own it: that owner could close the descriptor, and the
  ;; next connection might have the same number.
  (let ((result (if (connection-watched connection)
                    0
                    (with-send-queue ((connection-queue connection))
                      (watch-under-lock engine connection
                                        (and (connection-output connection) t))))))
    (cond ((minusp result) :broken)
          ((logtest +arrived+ (change-ownership connection :park)) :again)
          (t
           ;; The last act of a stop has ended the connections that were parked then.
           (when (eq :stopped (engine-phase engine))
             (as-owner (claim-parked connection)
               (finish-connection engine connection)))
           :parked))))

(defun connection-event (connection)
  "What stands for CONNECTION in the event queue."
  (if (virtual-connection-p connection) connection (connection-token connection)))

(defun requeue-connection (engine connection)
  "Parks CONNECTION, which the caller owns, without reading its input, for the next free worker.
The caller may have got its events, or gets them here.  So the next owner looks at the socket even
if it finds a request in a buffer."
  (setf (connection-input connection) :missed)
  (loop for end = (park engine connection)
        while (eq :again end)
        finally (if (eq :parked end)
                    (queue-events engine (list (connection-event connection)))
                    (finish-connection engine connection))))

(defun watch-under-lock (engine connection both-p)
  "Has the poller of ENGINE watch CONNECTION for input; if BOTH-P, for output too, from then on for
good.  An event comes if it takes more by now.  Returns 0 or minus an error number."
  (let ((wanted (if both-p :both :input))
        (before (connection-watched connection)))
    (if (or (eq before wanted) (eq before :both))
        0
        (let ((result (funcall (if before #'rearm #'watch) (engine-poller engine)
                               (connection-descriptor connection) (connection-token connection)
                               both-p)))
          (when (zerop result)
            (setf (connection-watched connection) wanted))
          result))))

;;; The end of a connection.  A descriptor that is closed with unread input resets its peer, which
;;; may then lose the last answer (RFC 9112, section 9.6).  Input that comes later has the same
;;; effect.  So if the peer has sent more than was read, or may, the engine ends its own half only.
;;; It drops the input until the peer ends, or *LINGER-SECONDS* have passed.

(defparameter *linger-seconds* 1
  "A connection may take this long to end after its last answer.")

(defun finish-connection (engine connection &optional end)
  "Ends CONNECTION, which the caller owns, as END says, an outcome of SERVE-ONCE; at once if that is
NIL."
  (let ((descriptor (connection-descriptor connection))
        (more-p (unless (eq :detached end)
                  ;; Functions of programs run there, and one may end the thread.
                  (unless-returned (interruptibly (ask engine t #'release connection))
                    (close-owned engine connection)))))
    (cond ((and (eq :close end)
                (not (virtual-connection-p connection))
                (or more-p
                    ;; Has it more input than was read?  An owner that got no event has read all.
                    (not (or (and (connection-watched connection)
                                  (not (logtest +arrived+ (connection-ownership connection)))
                                  (eq :read (connection-input connection)))
                             (<= (drop-octets descriptor 1) 0)))))
           (shut-descriptor descriptor :output) ; nothing more will be sent
           (set-deadline connection :linger *linger-seconds* (milliseconds))
           (linger engine connection))
          (t (close-owned engine connection (not (eq :detached end)))))))

(defun linger (engine connection)
  "Drops the input of CONNECTION, which the caller owns.  Closes it at its end, else parks it."
  (loop repeat +turn+
        do (let ((count (drop-octets (connection-descriptor connection) +most-dropped+)))
             (when (or (not (or (plusp count) (would-block-p count)))
                       (and (minusp count)
                            (case (park engine connection)
                              (:parked (return))
                              (:broken t))))
               (return (close-owned engine connection))))
        finally (requeue-connection engine connection)))

(defun close-owned (engine connection &optional (close-p t))
  "Makes ENGINE forget CONNECTION, which the caller owns; and closes it if CLOSE-P."
  (let ((queue (connection-queue connection))
        (close-p (and close-p (not (virtual-connection-p connection)))))
    (unless (virtual-connection-p connection)
      (forget-connection (engine-table engine) connection)
      (note-closed engine connection))
    (when (draining-p engine)           ; a stop waits for the last one
      (with-engine (engine)
        (bt:condition-notify (engine-changed engine))))
    (with-send-queue (queue)            ; the engine does not use the descriptor after this
      (unless close-p
        (setf (send-queue-arm queue) nil))
      (change-ownership connection :end))
    (when close-p
      (close-descriptor (connection-descriptor connection)))))

(defun end-virtual-connection (engine connection)
  "Ends CONNECTION, a virtual one over a connection of ENGINE that ends; its owner does, if it has
one."
  (setf (virtual-connection-over-p connection) t)
  (end-queue (connection-queue connection))
  (as-owner (become-owner connection t)
    (finish-connection engine connection)))

(defmethod detach ((engine ready-engine) connection)
  (unless (gone-p connection)
    (finish-connection engine connection :detached)))

;;; Answers that come later: the service has returned :DEFERRED.

(defun resume-connection (engine connection)
  "Has a worker serve CONNECTION of ENGINE, which waits since SERVE returned :DEFERRED and may be
closed by now.  If it has an owner, that looks once more.  Does nothing for a connection that keeps
its worker.  Any thread may call this, and does not wait."
  (when (connection-parkable-p connection)
    (as-owner (become-owner connection nil)
      (requeue-connection engine connection))))
