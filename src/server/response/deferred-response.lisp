(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A deferred response: a reply that comes later.  Any thread may give the answer; the owner of
;;;; the connection sends it.
;;;;
;;;;   state        event                                  becomes      action
;;;;   :PENDING     ANSWER-DEFERRED-RESPONSE               :ANSWERED    the connection is resumed
;;;;                its deadline has passed (owner)        :EXPIRED     the owner answers: too late
;;;;                the connection is closed               :GONE        its client counts as gone
;;;;                its handler has failed                 :EXPIRED     the handler's worker answers
;;;;   :ANSWERED    an owner comes                         :DONE        the owner sends the answer
;;;;                the connection is closed               :GONE        its client counts as gone
;;;;                ANSWER-DEFERRED-RESPONSE               -            REPLY-ALREADY-SENT
;;;;   :DONE        ANSWER-DEFERRED-RESPONSE               -            REPLY-ALREADY-SENT
;;;;                its answer could not be sent (handler)   :PENDING     it may be answered again
;;;;   :EXPIRED     ANSWER-DEFERRED-RESPONSE, once         -            none: the answer is dropped
;;;;   :GONE        ANSWER-DEFERRED-RESPONSE, once         -            none: the answer is dropped
;;;;
;;;; An answer may be a stream.  Then its shared queue is sent until it has ended, in the state
;;;; :DONE.  The client's leaving changes no state: a client that has only closed its sending side
;;;; still gets its answer.  ON-LEAVING is called once.  A connection that the client has reset is
;;;; closed at once.

(defstruct (deferred-response (:include suspended-exchange)
                              (:constructor make-deferred-response
                                  (exchange end on-leaving
                                   &aux (application (exchange-application exchange))
                                     (engine (exchange-engine exchange))
                                     (connection (exchange-connection exchange))
                                     (memory (request-memory (exchange-head exchange)))))
                              (:copier nil))
  "A reply that comes later."
  ;; The exchange whose reply DEFERRED-RESPONSE is.
  (exchange nil :read-only t)
  (memory 0 :type index :read-only t)   ; the memory of its request, in octets
  (end nil :type (or null fixnum) :read-only t) ; its deadline, in MILLISECONDS
  ;; NIL, or the function without arguments that is called when the client of DEFERRED-RESPONSE
  ;; leaves before it was answered; NIL at the end, since it may refer to much memory.
  (on-leaving nil)
  ;; The thread that runs the handler of DEFERRED-RESPONSE, or continues it; NIL while there is
  ;; none.
  (owner (bt:current-thread))
  (lock (bt:make-lock "deferred response") :read-only t)
  (state :pending :type (member :pending :answered :done :expired :gone))
  ;; The answer for SEND-DEFERRED-RESPONSE; NIL before there is one, and once its sending has
  ;; begun.
  (answer nil)
  ;; A thread has called ANSWER-DEFERRED-RESPONSE, or is calling it.
  (claimed-p nil)
  ;; An owner of the connection has looked for the answer before it came.
  (awaited-p nil)
  ;; True when the client of DEFERRED-RESPONSE has left, as far as that is known.
  (left-p nil)
  (keeper nil)                          ; a condition variable, if a worker keeps the connection
  (resumed-p nil)                       ; that worker has something to do
  ;; The shared send queue of DEFERRED-RESPONSE; NIL unless its answer is a stream.
  (shared-queue nil)
  ;; True when the answer of DEFERRED-RESPONSE is a stream without an end of its own, which ends
  ;; when its engine stops.
  (endless-p nil)
  ;; Any object that the application keeps for DEFERRED-RESPONSE; NIL at first.
  (context nil))

(defstruct (streamed-answer (:include opaque) (:constructor nil) (:copier nil))
  "An answer of a deferred response that is a stream, to which any thread may write."
  (deferred-response nil :read-only t)
  ;; The shared queue of STREAMED-ANSWER.
  (shared-queue nil :read-only t)
  ;; True when the program has closed STREAMED-ANSWER.
  (closed-p nil))

(defun refuse-write (answer)
  "Signals REPLY-ALREADY-SENT if the program has closed ANSWER, a STREAMED-ANSWER that is over; else
CLIENT-LEFT."
  (if (streamed-answer-closed-p answer)
      (error 'reply-already-sent)
      (error 'client-left :source (streamed-answer-deferred-response answer))))

(defmacro with-deferred-response ((deferred-response) &body body)
  "Evaluates BODY, which is short and does not wait, while no other thread uses DEFERRED-RESPONSE."
  `(with-lock-briefly ((deferred-response-lock ,deferred-response))
     ,@body))

(defun deferred-response-pending-p (deferred-response)
  "True while DEFERRED-RESPONSE has no answer, and its client waits for one."
  (eq :pending (deferred-response-state deferred-response)))

(defun deferred-response-unsent-p (deferred-response)
  "True while the answer of DEFERRED-RESPONSE is still to come, or to be sent."
  (and (member (deferred-response-state deferred-response) '(:pending :answered)) t))

(defun deferred-response-over-p (deferred-response)
  "True when DEFERRED-RESPONSE has no answer, and its client does not wait for one any more."
  (and (member (deferred-response-state deferred-response) '(:expired :gone)) t))

;;; The thread that answers

(defun answer-deferred-response (deferred-response answer)
  "Gives DEFERRED-RESPONSE the answer ANSWER, of a kind that SEND-DEFERRED-RESPONSE understands, and
has it sent.  True when the client still waits for it.  Signals REPLY-ALREADY-SENT."
  (flet ((answer () answer))
    (declare (dynamic-extent #'answer))
    (call-to-answer deferred-response #'answer)))

(defun call-to-answer (deferred-response function)
  "Like ANSWER-DEFERRED-RESPONSE; the answer is the result of FUNCTION, which is called only if
there was no answer before.  If FUNCTION exits non-locally, DEFERRED-RESPONSE can be answered
again."
  (unless (claim-deferred-response deferred-response)
    (error 'reply-already-sent))
  (unless-returned (give-and-resume deferred-response (funcall function))
    (setf (deferred-response-claimed-p deferred-response) nil)))

(defun claim-deferred-response (deferred-response)
  "Reserves the right to answer DEFERRED-RESPONSE for the caller.  NIL where it was answered, or
another thread has that right."
  (with-deferred-response (deferred-response)
    (unless (deferred-response-claimed-p deferred-response)
      (setf (deferred-response-claimed-p deferred-response) t))))

(defun give-and-resume (deferred-response answer)
  "Gives DEFERRED-RESPONSE its ANSWER, and has it sent.  True when the client still waits for it."
  (ecase (give-answer deferred-response answer)
    (:awaited (resume deferred-response) t)
    (:early t)
    (:late nil)))

(defun give-answer (deferred-response answer)
  "Stores ANSWER in DEFERRED-RESPONSE, if it is pending.  Returns :AWAITED if its connection waits
for that; :EARLY if its owner has yet to look; :LATE if it was not pending."
  (with-deferred-response (deferred-response)
    (cond ((not (eq :pending (deferred-response-state deferred-response)))
           :late)
          (t
           (setf (deferred-response-answer deferred-response) answer
                 (deferred-response-state deferred-response) :answered)
           (if (deferred-response-awaited-p deferred-response) :awaited :early)))))

(defun withdraw-deferred-response (deferred-response)
  "Makes DEFERRED-RESPONSE drop any later answer, unless it has one.  True when it had none."
  (with-deferred-response (deferred-response)
    (when (eq :pending (deferred-response-state deferred-response))
      (setf (deferred-response-state deferred-response) :expired)
      t)))

(defmethod suspended-exchange-memory ((deferred-response deferred-response))
  (deferred-response-memory deferred-response))

(defmethod resume ((deferred-response deferred-response))
  ;; KEEPER is set before the owner looks for an answer.
  (let ((keeper (deferred-response-keeper deferred-response)))
    (if keeper
        (with-deferred-response (deferred-response)
          (setf (deferred-response-resumed-p deferred-response) t)
          (bt:condition-notify keeper))
        (resume-connection (suspended-exchange-engine deferred-response)
                           (suspended-exchange-connection deferred-response)))))

(defun queue-of-exchange (exchange mark announced)
  "A shared queue for the content of the reply of EXCHANGE, in which MARK octets may wait.
ANNOUNCED is the number of octets of that, or NIL."
  (make-shared-queue mark (io-queue (http-io (exchange-http exchange)))
                     :engine (exchange-engine exchange) :announced announced))

(defun have-owner-send (deferred-response)
  "Has the owner of the connection of DEFERRED-RESPONSE send what was put into its shared queue,
unless that was sent at once, or the poller sees to it."
  (let ((shared-queue (deferred-response-shared-queue deferred-response)))
    (when (and shared-queue (owner-wanted-p shared-queue))
      (resume deferred-response))))

;;; The client's leaving

(defun note-leaving (deferred-response)
  "Notes that the client of DEFERRED-RESPONSE is gone, and calls its ON-LEAVING function the first
time.  Logs an error of that."
  (let ((function (with-deferred-response (deferred-response)
                    (unless (shiftf (deferred-response-left-p deferred-response) t)
                      (deferred-response-on-leaving deferred-response)))))
    (when function
      (handler-case (funcall function)
        (error (condition)
          (log-message (suspended-exchange-engine deferred-response) :error
                       "What was to be done for a client's leaving failed: ~A" condition))))))

(defun break-stream (deferred-response shared-queue)
  "Ends SHARED-QUEUE, of DEFERRED-RESPONSE, whose client does not get the rest.  Wakes threads that
wait for room first: one of them may hold a lock that the ON-LEAVING function needs.  Calls that
function next, and then the functions that wait for room."
  (end-queue (shared-queue-queue shared-queue))
  (end-shared-queue shared-queue (lambda () (note-leaving deferred-response))))

(defun give-deferred-response-up (deferred-response)
  "Makes DEFERRED-RESPONSE drop any later answer.  Returns its answer, if the sending of that has
not begun, and whether an owner has taken it."
  (with-deferred-response (deferred-response)
    (values (deferred-response-answer deferred-response)
            (or (eq :done (deferred-response-state deferred-response))
                (progn (setf (deferred-response-state deferred-response) :gone) nil)))))

(defmethod abandon ((deferred-response deferred-response))
  (multiple-value-bind (answer taken-p) (give-deferred-response-up deferred-response)
    (let ((shared-queue (or (deferred-response-shared-queue deferred-response)
                            (and (streamed-answer-p answer)
                                 (streamed-answer-shared-queue answer)))))
      (unwind-protect                   ; a program may end the thread halfway
           (cond (shared-queue (break-stream deferred-response shared-queue))
                 ((not taken-p) (note-leaving deferred-response)))
        (drop-deferred (suspended-exchange-application deferred-response) deferred-response)
        (finish-deferred-response deferred-response)))))

(defun finish-deferred-response (deferred-response)
  "Drops the references of DEFERRED-RESPONSE, which is over, to objects of programs: they may refer
to each other.  A program may keep DEFERRED-RESPONSE for ever, so the strings of its request, whose
memory is not counted any more, are dropped, too."
  (let ((head (exchange-head (deferred-response-exchange deferred-response))))
    (setf (deferred-response-on-leaving deferred-response) nil
          (deferred-response-answer deferred-response) nil
          (head-uri head) ""
          (head-headers head) '()
          (head-host head) nil
          (head-upgrade head) nil)))

(defun end-deferred-response (deferred-response)
  "Ends DEFERRED-RESPONSE, whose handler has exited, and which nothing continues.  If it was not
answered, it will not be."
  (if (deferred-response-unsent-p deferred-response)
      (abandon deferred-response)
      (finish-deferred-response deferred-response)))

;;; Whether a reply comes later

(defun deferred-p (exchange)
  "True while the reply of EXCHANGE, or the rest of it, is still to come, and its connection waits
for that."
  (let ((deferred-response (exchange-deferred-response exchange)))
    (and deferred-response
         (eq deferred-response (http-suspended-exchange (exchange-http exchange)))
         (or (deferred-response-unsent-p deferred-response)
             (deferred-response-shared-queue deferred-response))
         t)))

;;; The owner of the connection

(defgeneric send-deferred-response (application deferred-response answer)
  (:documentation "Has APPLICATION send the reply of DEFERRED-RESPONSE.  ANSWER is the one that was
given, or :EXPIRED when none has come in time.  Does not wait.  Returns an outcome as SERVE does;
:DEFERRED when ANSWER is a STREAMED-ANSWER: then its head was written, and its shared queue is that
of DEFERRED-RESPONSE."))

(defgeneric end-stream (application deferred-response shared-queue)
  (:documentation "Has APPLICATION end the reply of DEFERRED-RESPONSE, a stream whose SHARED-QUEUE
was sent wholly.  Returns an outcome as SERVE does."))

(defgeneric drop-deferred (application deferred-response)
  (:documentation "Has APPLICATION release its state for DEFERRED-RESPONSE, whose connection is
about to be closed.")
  (:method (application deferred-response)
    (declare (ignore application deferred-response))
    nil))

(defun take-answer (deferred-response)
  "The answer with which DEFERRED-RESPONSE continues, and true; NIL while that is to come.
DEFERRED-RESPONSE keeps the answer until its sending has begun: the thread that takes it may be
destroyed before."
  (with-deferred-response (deferred-response)
    (case (deferred-response-state deferred-response)
      (:answered
       (setf (deferred-response-state deferred-response) :done)
       (values (deferred-response-answer deferred-response) t))
      (:pending
       (cond ((late-p deferred-response)
              (setf (deferred-response-state deferred-response) :expired)
              (values :expired t))
             (t
              (setf (deferred-response-awaited-p deferred-response) t)
              nil))))))

(defun reopen-deferred-response (deferred-response)
  "Allows another answer to DEFERRED-RESPONSE, whose answer the current thread has taken and could
not send.  The result has no meaning."
  (with-deferred-response (deferred-response)
    (when (eq :done (deferred-response-state deferred-response))
      (setf (deferred-response-state deferred-response) :pending
            (deferred-response-answer deferred-response) nil
            (deferred-response-claimed-p deferred-response) nil))))

(defun late-p (deferred-response)
  "True when the deadline of DEFERRED-RESPONSE has passed."
  (let ((end (deferred-response-end deferred-response)))
    (and end (<= end (milliseconds)))))

(defmethod continue-over ((deferred-response deferred-response) http resuming-p)
  (declare (ignore resuming-p))
  (setf (deferred-response-owner deferred-response) (bt:current-thread))
  (unwind-protect (continue-deferred-response deferred-response http)
    (setf (deferred-response-owner deferred-response) nil)))

(defun continue-deferred-response (deferred-response http)
  (let ((shared-queue (deferred-response-shared-queue deferred-response)))
    (cond ((client-unreachable-p deferred-response)
           ;; The worker that closes the connection abandons DEFERRED-RESPONSE.
           :broken)
          (shared-queue
           (continue-stream deferred-response shared-queue http))
          (t
           (multiple-value-bind (answer come-p) (take-answer deferred-response)
             (when (eq :expired answer)
               (count-late (suspended-exchange-engine deferred-response) :deferred))
             (if come-p
                 (begin-answer deferred-response http answer)
                 (await-answer deferred-response)))))))

(defun client-unreachable-p (deferred-response)
  "True when the client of DEFERRED-RESPONSE has left and cannot get the answer: it has not only
closed its sending side."
  (and (client-left-p deferred-response)
       (connection-failed-p deferred-response)))

(defun client-left-p (deferred-response)
  "True when the client of DEFERRED-RESPONSE has left, as far as that is known."
  (if (deferred-response-keeper deferred-response)
      (kept-peer-left-p deferred-response)
      (peer-left-p deferred-response)))

(defun await-answer (deferred-response)
  "Lets the connection of DEFERRED-RESPONSE wait for its answer."
  (when (client-left-p deferred-response)
    (note-leaving deferred-response))
  (unless (deferred-response-keeper deferred-response) ; a worker that keeps it watches the time
    (set-deadline-at (suspended-exchange-connection deferred-response) :deferred
                     (deferred-response-end deferred-response)))
  :deferred)

(defun begin-answer (deferred-response http answer)
  "Sends ANSWER of DEFERRED-RESPONSE over HTTP.  Returns an outcome as SERVE does."
  (let* ((outcome (send-deferred-response (suspended-exchange-application deferred-response)
                                          deferred-response answer))
         (shared-queue (deferred-response-shared-queue deferred-response)))
    (cond (shared-queue
           (setf (deferred-response-answer deferred-response) nil) ; its sending has begun
           (continue-stream deferred-response shared-queue http))
          (t
           (setf (http-suspended-exchange http) nil)
           (finish-deferred-response deferred-response)
           outcome))))

(defun ends-with-engine-p (deferred-response)
  "True when the stream of DEFERRED-RESPONSE must end because its engine stops, even softly."
  (and (deferred-response-endless-p deferred-response)
       (not (running-p (suspended-exchange-engine deferred-response)))))

(defun continue-stream (deferred-response shared-queue http)
  "Sends as much of the stream of DEFERRED-RESPONSE as the client takes now over HTTP."
  ;; A client that has only closed its sending side gets the rest; for others sending fails.
  (when (and (not (shared-queue-shut-p shared-queue))
             (client-left-p deferred-response))
    (if (deferred-response-on-leaving deferred-response)
        (note-leaving deferred-response)
        (break-stream deferred-response shared-queue))) ; no other code would end it
  (when (ends-with-engine-p deferred-response)
    (close-shared-queue shared-queue))
  (let ((sent-p (and (not (shared-queue-ended-p shared-queue))
                     (send-queued shared-queue (http-io http)))))
    ;; It may be broken by now.  Then the worker that closes the connection abandons
    ;; DEFERRED-RESPONSE.
    (cond ((shared-queue-ended-p shared-queue) :broken)
          ((not sent-p) :deferred)
          (t
           (setf (http-suspended-exchange http) nil
                 (deferred-response-shared-queue deferred-response) nil)
           (end-shared-queue shared-queue)
           (unwind-protect (end-stream (suspended-exchange-application deferred-response)
                                       deferred-response shared-queue)
             (finish-deferred-response deferred-response))))))
