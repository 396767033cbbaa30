(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Answers that a worker holds for a moment, to send them with those to the next requests that have come
;;;; already: a call of the system for each is a large part of what an instant handler costs.
;;;;
;;;;   a worker that has an answer, while                             does
;;;;   others are queued, or held, nobody waits, nobody was stuck     holds it, and handles the next event
;;;;   lately, and few answers are held for long
;;;;   otherwise                                                      sends it
;;;;
;;;;   a worker that holds answers, and                               sends them
;;;;   finds nothing queued                                           before it turns to the poller
;;;;   holds +MOST-HELD+, or the first for *HELD-MICROSECONDS*        before it handles what is queued
;;;;   has timers to run, is to be suspended, or to end               before that
;;;;   ends a visit that a program amid its event makes, and holds     then; what has to be closed it leaves to
;;;;   as many, or for as long, as above                               workers
;;;;   handles one event for long                                     no: the sentinel does, when it looks
;;;;
;;;; So an answer is held for the time of a few instant handlers; behind one that takes long, until the sentinel
;;;; looks, and then no more for some ticks.  Whoever has sent an answer sees to its connection as if the worker had
;;;; sent it at once; the sentinel leaves that to the workers.
;;;;
;;;; The sentinel may send an answer while the service that gave it is not done with its connection.  So both say in
;;;; CONNECTION-HELD how far they are, by compare-and-set, and who comes last sees to the connection:
;;;;
;;;;   :SERVING   the answer is held, and the service is not done
;;;;   :SERVED    the answer is held, and the service is done
;;;;   :SENT      the sentinel has sent the answer, and the service is not done
;;;;
;;;; What a worker has for connections that it visits, as timers do whose functions complete replies, it holds in the same
;;;; way.  A visitor that is no worker sends its answer itself: nothing is known of what such a thread does next.
;;;;
;;;; Whom one thread visits together is :GATHERED; no other thread knows of that, see visiting-together.lisp.

(defun batch-of (worker)
  "The batch of WORKER, whose thread this is; NIL where the system sends no answers together, or the service wants none
sent so."
  (let ((batch (ready-worker-batch worker)))
    (case batch
      (:none nil)
      ((nil)
       (uninterruptibly
         (let ((ring (and (calls-together-p (engine-service (worker-engine worker)))
                          (make-ring))))
           (when ring
             (setf (ready-worker-input-batch worker) (make-input-batch ring)))
           (setf (ready-worker-batch worker) (if ring (make-output-batch ring) :none))
           (and ring (ready-worker-batch worker)))))
      (t batch))))

(defun input-batch-of (worker)
  "The input batch of WORKER, whose thread this is; NIL where the system receives nothing together."
  (and (batch-of worker)
       (ready-worker-input-batch worker)))

(defun batch-with-answers (worker)
  "The batch of WORKER if that holds answers that were not sent; else NIL."
  (let ((batch (ready-worker-batch worker)))
    (and (typep batch 'output-batch)
         (plusp (output-batch-count batch))
         (not (output-batch-sent-p batch))
         batch)))

(defun answers-held-p (engine)
  "True when a worker of ENGINE holds answers that are not sent.  Under the lock."
  ;; Who finishes with sent ones may call a program, for long.
  (some #'batch-with-answers (engine-workers engine)))

(defun holding-pays-p (engine worker)
  "True when an answer that WORKER of ENGINE has should be held."
  (let ((pool (engine-pool-state engine)))
    (and (pool-state-calm-p pool)
         (not (pool-state-clock-stopped-p pool))
         (not (somebody-waits-p engine))
         (serving-p engine)
         (or (engine-event-queue engine) (batch-with-answers worker)))))

(defvar *visited* nil
  "The connection that the current thread visits, or NIL.")

(defun own-p (connection worker)
  "True when the current thread, that of WORKER, serves CONNECTION, or visits it."
  (or (eq connection (worker-connection worker))
      (eq connection *visited*)))

(defun at-work-p (worker)
  "True when WORKER handles an event, and will look what it holds before it does anything else.  One that finishes with what
it has sent, also before it waits or ends, does so between two."
  (plusp (ready-worker-stamp worker)))

(defun hold-output (connection octets start end)
  "Holds the whole answer to the request of CONNECTION that the current thread serves, or visits, OCTETS, a vector of
them, from START to END, integers, if that is better: true then, and the octets are sent soon, whatever becomes of
OCTETS.  NIL when the caller is to send them.  Only for what SERVE or SERVE-VISITOR does last for CONNECTION."
  (let ((worker *worker*))
    (and (typep worker 'ready-worker)
         (own-p connection worker)
         (at-work-p worker)
         (holding-pays-p (worker-engine worker) worker)
         (uninterruptibly
           (let ((batch (batch-of worker)))
             (and batch
                  (held-briefly-p batch (pool-state-tick (ready-worker-pool-state worker)))
                  (added-as-held-p batch connection octets start end)))))))

(defun added-as-held-p (batch connection octets start end)
  "Adds an answer to CONNECTION, which is served, to BATCH as ADDED-TO-BATCH-P does; returns what that does."
  (setf (connection-held connection) :serving) ; before the sentinel can see it
  (or (added-to-batch-p batch connection octets start end)
      (setf (connection-held connection) nil)))

(defun left-to-sender-p (connection outcome)
  "True when the answer to CONNECTION, whose service is done with it and wants OUTCOME, is still held: who sends it sees
to CONNECTION.  NIL when it was sent meanwhile, and the caller does."
  (setf (connection-outcome connection) outcome)
  (or (eq :gathered (connection-held connection))
      (compare-and-set (connection-held connection) :serving :served)
      (setf (connection-held connection) nil)))

(defun end-held-service (engine connection outcome)
  "Does what END-SERVICE does with OUTCOME, for CONNECTION, which the current thread, a worker's, has served, and for which
it holds an answer, or the sentinel has sent it."
  (if (left-to-sender-p connection outcome)
      (send-held-output engine *worker*)
      (end-service engine connection outcome)))

;;; Sending

(defun leave-rest (engine connection left)
  "Makes LEFT, octets, the output of CONNECTION, whose answer was sent but for these."
  (setf (connection-sender connection) nil
        (connection-output connection) (list (make-octets-part left)))
  (note-input-missed (engine-service engine) connection)) ; until the rest is sent, nobody reads

(defun settle-sent (engine connection batch place)
  "Does for CONNECTION, to which answer PLACE of BATCH was sent, what its outcome says; or first what has to be done where
the system has not taken all.  Returns what SERVE-ONCE does."
  (multiple-value-bind (left error) (answer-left batch place)
    (cond (error :broken)
          (left
           (leave-rest engine connection left)
           ;; Its service may have set one that has nothing to do with that.
           (setf (connection-deadline connection) nil)
           (send-pending-output engine connection))
          (t
           ;; No request of it was served as yet that is not counted, so there is progress.
           (settle-outcome engine connection (connection-outcome connection) nil)))))

(defun finish-answers (engine worker batch)
  "Does what is left to be done for those whose answers BATCH, of WORKER, had, which were sent.  A program may leave that by
a non-local exit, and each of them is finished with all the same."
  (let ((served '()) (closed '()))
    (flet ((finish (connection place)
             (let ((result nil))
               (setf (connection-held connection) nil)
               (unwind-protect (setf result (noting-failure (engine connection)
                                              (settle-sent engine connection batch place)))
                 (case result
                   (:again (push connection served))
                   (:close (push connection closed))
                   (t (end-service engine connection result)))))))
      (declare (dynamic-extent #'finish))
      (unwind-protect (call-for-answers #'finish batch)
        (empty-sent-batch batch)
        (unwind-protect (queue-connections engine worker (nreverse served))
          (close-together engine (input-batch-of worker) (nreverse closed)))))))

(defun empty-sent-batch (batch)
  "Empties BATCH, of the current thread, which was sent, and whose connections were finished with."
  (lock-batch batch)
  (empty-batch batch)
  (unlock-batch batch))

(defun queue-connections (engine worker connections)
  "Queues CONNECTIONS, a list, of which more has come, and which the caller owns."
  (when connections
    (receive-together engine (input-batch-of worker) connections)
    (queue-owned engine connections)))

(defun send-held-output (engine worker)
  "Sends the answers that WORKER of ENGINE, whose thread this is, holds; unless the sentinel is about to.  The caller
cannot be interrupted."
  (let ((batch (batch-with-answers worker)))
    (when (and batch (batch-locked-p batch))
      (send-locked-batch engine worker batch))))

(defun send-locked-batch (engine worker batch)
  "Sends the answers of BATCH, of WORKER, which the caller has locked, and finishes with them."
  (send-and-unlock batch)
  (finish-answers engine worker batch))

(defun send-and-unlock (batch)
  "Sends the answers of BATCH, of the current thread, which has locked it."
  (unless (zerop (output-batch-count batch)) ; the sentinel has sent them
    (note-batch-sent batch)
    (send-answers batch)
    (setf (output-batch-sent-p batch) t))
  (unlock-batch batch))

(defconstant +most-held+ 8
  "How many answers a worker holds at most.")

(defun output-due-p (engine batch)
  "True when the answers of BATCH, of a worker of ENGINE, are enough, or were held for long, or the sentinel does not look."
  (or (>= (output-batch-count batch) +most-held+)
      (pool-state-clock-stopped-p (engine-pool-state engine))
      (held-long-p batch (microseconds))))

(defun send-output-held-long (engine worker)
  "Sends the answers that WORKER of ENGINE holds if that is due."
  (let ((batch (batch-with-answers worker)))
    (when (and batch (output-due-p engine batch))
      (send-held-output engine worker))))

(defun end-holding (engine worker)
  "Sends what WORKER of ENGINE, whose thread this is, holds, and gives back what it needed for that."
  ;; Each of the first two may call a program, which may leave it by a non-local exit.
  (unwind-protect
       (let ((batch (batch-with-answers worker)))
         (when batch
           (lock-batch batch)           ; the sentinel may look at it, and leave it
           (send-locked-batch engine worker batch)))
    (unwind-protect (unless (serving-p engine)
                      (abandon-events engine))
      (forget-batch worker))))

(defun forget-batch (worker)
  "Closes what WORKER, whose thread this is and which holds nothing, needed for holding answers; it holds none any more."
  (let ((batch (shiftf (ready-worker-batch worker) :none)))
    (when (typep batch 'output-batch)
      ;; The sentinel may just look at it.
      (lock-batch batch)
      (close-ring (output-batch-ring batch)))))

;;; The sentinel

(defun pass-on-answer (engine connection batch place)
  "Leaves to a worker what there is to be done for CONNECTION, to which answer PLACE of BATCH was sent: to the one that serves
it, or else to whoever is free next."
  (setf (connection-verdict connection)
        (noting-failure (engine connection)
          (multiple-value-bind (left error) (answer-left batch place)
            (when left
              (leave-rest engine connection left))
            (and error :broken))))
  (unless (compare-and-set (connection-held connection) :serving :sent)
    (setf (connection-held connection) nil)
    (pass-on-served engine connection)))

(defun pass-on-served (engine connection)
  "Leaves CONNECTION, whose service is done, and whose answer was sent, to whoever is free next."
  (unless (or (connection-verdict connection) (connection-output connection)
              (member (connection-outcome connection) '(:park :deferred)))
    (setf (connection-verdict connection) (connection-outcome connection)))
  (requeue-connection engine connection))

(defparameter *late-microseconds* 500
  "After how long the sentinel sends answers that a worker holds.")

(defun late-p (batch now)
  "True when the answers of BATCH, which it has, should have been sent before NOW, in MICROSECONDS."
  (> (- now (output-batch-began batch)) *late-microseconds*))

(defun send-late-answers (engine batch)
  "Sends the answers of BATCH, unless its worker is about to."
  (when (batch-locked-p batch)
    ;; Also what was added since it looked late: its worker may have found it locked, and wait.
    (unwind-protect
         (when (and (plusp (output-batch-count batch))
                    (not (output-batch-sent-p batch)))
           (pass-on-answers engine batch))
      (unlock-batch batch))))

(defun pass-on-answers (engine batch)
  "Sends the answers of BATCH, which the caller has locked, and leaves the rest to workers.  Where ENGINE stops, that may
call a program, which may leave it by a non-local exit."
  (note-batch-late batch)
  (send-answers-singly batch)
  (unwind-protect (call-for-answers (lambda (connection place)
                                      (pass-on-answer engine connection batch place))
                                    batch)
    (empty-batch batch)))

(defun send-late-output (engine &key all-p)
  "Sends the answers that workers of ENGINE hold while they handle something that takes long; all that they hold, if ALL-P."
  (let ((now (microseconds)))
    (dolist (worker (engine-workers engine))
      (let ((batch (batch-with-answers worker)))
        (when (and batch (or all-p (late-p batch now)))
          (uninterruptibly
            (send-late-answers engine batch)))))))
