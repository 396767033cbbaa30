(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A reply that comes later.  Any thread may have it; whoever owns the connection sends it.
;;;;
;;;;   state        event                                    becomes      and
;;;;   :PENDING     ANSWER-DEFERRED-RESPONSE                 :ANSWERED    the connection is visited
;;;;                its deadline has passed (owner)          :EXPIRED     the owner answers that it came too late
;;;;                the connection is closed                 :GONE        its client counts as gone
;;;;                its memory is wanted                     :EXPIRED     the owner answers that there is none
;;;;                its handler has failed                   :EXPIRED     the handler's worker answers that
;;;;   :ANSWERED    an owner comes                           :DONE        the owner sends the answer
;;;;                the connection is closed                 :GONE        its client counts as gone
;;;;                ANSWER-DEFERRED-RESPONSE                 -            an error: it was answered before
;;;;   :DONE        ANSWER-DEFERRED-RESPONSE                 -            an error: it was answered before
;;;;                its answer could not be sent (handler)   :PENDING     it may be answered once more
;;;;   :EXPIRED     ANSWER-DEFERRED-RESPONSE, once           -            nothing: nobody waits for it
;;;;   :GONE        ANSWER-DEFERRED-RESPONSE, once           -            nothing: nobody waits for it
;;;;
;;;; An answer may be a stream: then its shared send queue goes on, and the state is :DONE when that
;;;; has ended.  The peer's leaving changes no state: a client that has only ended its half of the
;;;; connection still gets its answer.  It is told once.  A connection that its client has reset is
;;;; closed at once.

(define-record (deferred-response (:include suspended-exchange)
                                  (:constructor make-deferred-response
                                      (exchange end on-leaving
                                       &aux (application (exchange-application exchange))
                                         (engine (exchange-engine exchange))
                                         (connection (exchange-connection exchange))
                                         (memory (request-memory (exchange-head exchange)))))
                                  (:copier nil))
  "A reply that comes later."
  (exchange nil :read-only t
   :documentation "The exchange whose reply DEFERRED-RESPONSE is.")
  (memory 0 :type index :read-only t)   ; that its request keeps, in octets
  (evicted-p nil)                       ; others want that, so that it is not to wait any longer
  (end nil :type (or null fixnum) :read-only t) ; its deadline, in MILLISECONDS
  (on-leaving nil
   :documentation "NIL, or the function without arguments that is called when the client of
DEFERRED-RESPONSE leaves before it was answered; at the end it is one that does nothing, since the
other may refer to much.")
  (owner (bt:current-thread)
   :documentation "The thread that is in the handler of DEFERRED-RESPONSE, or goes on with it; NIL
while nobody does.")
  (lock (bt:make-lock "deferred response") :read-only t)
  (state :pending :type (member :pending :answered :done :expired :gone))
  (answer nil
   :documentation "What SEND-DEFERRED-RESPONSE gets for DEFERRED-RESPONSE; NIL before there is an
answer, and after that was begun.")
  ;; A thread has called ANSWER-DEFERRED-RESPONSE, or is calling it.
  (claimed-p nil)
  ;; An owner of the connection has looked for the answer, in vain.
  (awaited-p nil)
  (left-p nil
   :documentation "True when the client of DEFERRED-RESPONSE has left, as far as that is known.")
  (keeper nil)                          ; a condition variable, where a worker keeps the connection
  (resumed-p nil)                       ; and has something to do
  (shared-queue nil
   :documentation "The shared send queue of DEFERRED-RESPONSE; NIL unless its answer is a stream.")
  (endless-p nil
   :documentation "True when the answer of DEFERRED-RESPONSE is a stream that nobody ends, and which
ends when its engine stops.")
  (context nil
   :documentation "What the application keeps for DEFERRED-RESPONSE, any object; NIL at first."))

(setf (documentation 'make-deferred-response 'function)
      "A new deferred response for EXCHANGE: of its APPLICATION, on its CONNECTION of its ENGINE;
its request takes MEMORY.  The answer is to come by END, in MILLISECONDS, or NIL for never;
ON-LEAVING, NIL or a function without arguments, is called once when the client leaves before.")

(define-record (streamed-answer (:include opaque) (:constructor nil) (:copier nil))
  "An answer of a deferred response that is a stream: what any thread may write."
  (deferred-response nil :read-only t)
  (shared-queue nil :read-only t
   :documentation "The shared send queue that STREAMED-ANSWER leaves by."))

(define-condition already-answered (recycling-error)
  ()
  (:report "The reply was completed before.")
  (:documentation "Signalled to who completes a deferred reply for the second time."))

(defmacro with-deferred-response ((deferred-response) &body body)
  "Evaluates BODY, which is short and waits for nothing, while no other thread touches
DEFERRED-RESPONSE."
  `(with-lock-briefly ((deferred-response-lock ,deferred-response))
     ,@body))

(defun deferred-response-pending-p (deferred-response)
  "True while DEFERRED-RESPONSE has no answer, and somebody waits for one."
  (eq :pending (deferred-response-state deferred-response)))

(defun deferred-response-unsent-p (deferred-response)
  "True while the answer of DEFERRED-RESPONSE is still to come, or to be sent."
  (and (member (deferred-response-state deferred-response) '(:pending :answered)) t))

(defun deferred-response-over-p (deferred-response)
  "True when nobody waits for the answer of DEFERRED-RESPONSE any more, and it has none."
  (and (member (deferred-response-state deferred-response) '(:expired :gone)) t))

(define-condition client-left (recycling-error)
  ((within-p :initarg :within-p :initform nil :reader client-left-within-p
             :documentation "True when the thread that serves the request of the client was told."))
  (:report "Nobody takes it: the client has left, or has all that it gets.")
  (:documentation "Signalled to the caller that writes what no client will get: the client has left
or takes nothing in time, the server was stopped, or the stream was closed or has ended.  Where an
:ON-ABANDON of the reply is told of the leaving, it is not signalled for that."))

(setf (documentation 'client-left-within-p 'function)
      "True when CLIENT-LEFT was signalled in the thread that serves the request of the client.")

;;; Who has the answer

(defun answer-deferred-response (deferred-response answer)
  "Makes ANSWER, which SEND-DEFERRED-RESPONSE understands, that of DEFERRED-RESPONSE, and has it
sent.  True when somebody still waits for it.  Signals ALREADY-ANSWERED."
  (flet ((answer () answer))
    (declare (dynamic-extent #'answer))
    (call-to-answer deferred-response #'answer)))

(defun call-to-answer (deferred-response function)
  "Like ANSWER-DEFERRED-RESPONSE; the answer is what FUNCTION returns, which is called only where
there was none before.  If FUNCTION exits non-locally, DEFERRED-RESPONSE can be answered once more."
  (let ((answer nil) (returned-p nil) (awaited-p nil))
    ;; A thread that is destroyed between two of these steps would leave DEFERRED-RESPONSE to
    ;; nobody.
    (with-acquired (claimed-p (claim-deferred-response deferred-response)
                              (cond ((not claimed-p))
                                    (returned-p (setf awaited-p (give-and-resume deferred-response answer)))
                                    (t (setf (deferred-response-claimed-p deferred-response) nil))))
      (unless claimed-p
        (error 'already-answered))
      (setf answer (funcall function)
            returned-p t))
    awaited-p))

(defun claim-deferred-response (deferred-response)
  "Lets the caller alone answer DEFERRED-RESPONSE.  NIL where it is answered, or another thread does
that."
  (with-deferred-response (deferred-response)
    (unless (deferred-response-claimed-p deferred-response)
      (setf (deferred-response-claimed-p deferred-response) t))))

(defun give-and-resume (deferred-response answer)
  "Does what GIVE-ANSWER does, and has the answer sent.  True when somebody still waits for it."
  (ecase (give-answer deferred-response answer)
    (:awaited (resume deferred-response) t)
    (:early t)
    (:late nil)))

(defun give-answer (deferred-response answer)
  "Makes ANSWER that of DEFERRED-RESPONSE, if it is pending.  Returns :AWAITED if its connection
waits for that; :EARLY where its owner has yet to look; :LATE where nobody will."
  (with-deferred-response (deferred-response)
    (cond ((not (eq :pending (deferred-response-state deferred-response)))
           :late)
          (t
           (setf (deferred-response-answer deferred-response) answer
                 (deferred-response-state deferred-response) :answered)
           (if (deferred-response-awaited-p deferred-response) :awaited :early)))))

(defun withdraw-deferred-response (deferred-response)
  "Makes DEFERRED-RESPONSE one that nobody waits for, unless it has an answer.  True when it had
none."
  (with-deferred-response (deferred-response)
    (when (eq :pending (deferred-response-state deferred-response))
      (setf (deferred-response-state deferred-response) :expired)
      t)))

(defun evict-deferred-response (deferred-response)
  "Has DEFERRED-RESPONSE, if its answer is still to come, be one that nobody waits for when it is
continued next: true then.  NIL where it was evicted before, or is a stream."
  (with-deferred-response (deferred-response)
    (and (not (shiftf (deferred-response-evicted-p deferred-response) t))
         (deferred-response-unsent-p deferred-response))))

(defmethod suspended-exchange-memory ((deferred-response deferred-response))
  (deferred-response-memory deferred-response))

(defmethod resume ((deferred-response deferred-response))
  ;; Set before its owner looks for an answer.
  (let ((keeper (deferred-response-keeper deferred-response)))
    (if keeper
        (with-deferred-response (deferred-response)
          (setf (deferred-response-resumed-p deferred-response) t)
          (bt:condition-notify keeper))
        (resume-connection (suspended-exchange-engine deferred-response) (suspended-exchange-connection deferred-response)))))

;;; The client's leaving

(defun take-on-leaving (deferred-response)
  "Notes that the client of DEFERRED-RESPONSE is gone.  Returns the function by which who wanted to
know is to be told, once; or NIL."
  (with-deferred-response (deferred-response)
    (unless (shiftf (deferred-response-left-p deferred-response) t)
      (deferred-response-on-leaving deferred-response))))

(defun tell-of-leaving (deferred-response function)
  "Calls FUNCTION, of TAKE-ON-LEAVING for DEFERRED-RESPONSE, if it is one."
  (when function
    (handler-case (funcall function)
      (error (condition)
        (log-message (suspended-exchange-engine deferred-response) :error
                     "What was to be done for a client's leaving failed: ~A" condition)))))

(defun note-leaving (deferred-response)
  "Notes that the client of DEFERRED-RESPONSE is gone, and tells who wanted to know, once."
  (tell-of-leaving deferred-response (take-on-leaving deferred-response)))

(defmethod over-at-once-p ((deferred-response deferred-response))
  (let ((shared-queue (deferred-response-shared-queue deferred-response)))
    (and shared-queue (shared-queue-broken-p shared-queue))))

(defun break-stream (deferred-response shared-queue)
  "Ends SHARED-QUEUE, of DEFERRED-RESPONSE, whose client does not get all.  Who waits for room is
woken, and may have a lock that who is told of the leaving wants; functions that wait for room are
called when that one was told."
  (with-acquired (function (take-on-leaving deferred-response) (tell-of-leaving deferred-response function))
    (end-shared-queue shared-queue (lambda () (tell-of-leaving deferred-response (shiftf function nil))))))

(defun give-deferred-response-up (deferred-response)
  "Lets nobody answer DEFERRED-RESPONSE any more.  Returns its answer, if that was not begun, and
whether it was taken."
  (with-deferred-response (deferred-response)
    (values (deferred-response-answer deferred-response)
            (or (eq :done (deferred-response-state deferred-response))
                (progn (setf (deferred-response-state deferred-response) :gone) nil)))))

(defmethod abandon ((deferred-response deferred-response))
  (multiple-value-bind (answer taken-p) (give-deferred-response-up deferred-response)
    (let ((shared-queue (or (deferred-response-shared-queue deferred-response)
                            (and (streamed-answer-p answer) (streamed-answer-shared-queue answer)))))
      (unwind-protect                   ; a program may end its thread amid that
           (cond (shared-queue (break-stream deferred-response shared-queue))
                 ((not taken-p) (note-leaving deferred-response)))
        (drop-deferred (suspended-exchange-application deferred-response) deferred-response)
        (finish-deferred-response deferred-response)))))

(defun finish-deferred-response (deferred-response)
  "Forgets what programs gave to DEFERRED-RESPONSE, which is over: it may refer to those who have
the reply, and these to DEFERRED-RESPONSE.  Programs may keep that for ever: so it forgets the
strings of its request, too, whose memory counts no more."
  (let ((head (exchange-head (deferred-response-exchange deferred-response))))
    (setf (deferred-response-on-leaving deferred-response)
          (and (deferred-response-on-leaving deferred-response) #'do-nothing)
          (deferred-response-answer deferred-response) nil
          (head-uri head) ""
          (head-headers head) '()
          (head-host head) nil
          (head-upgrade head) nil)))

(defun do-nothing ()
  nil)

(defun end-deferred-response (deferred-response)
  "Ends DEFERRED-RESPONSE, whose handler was left, and which nobody continues: where it was not
answered, it is not going to be."
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

;;; Who owns the connection

(defgeneric send-deferred-response (application deferred-response answer)
  (:documentation "Has APPLICATION send ANSWER, the reply of the exchange of DEFERRED-RESPONSE,
which was waiting for it: as it was given; :EXPIRED when none has come in time, or :EVICTED when
other clients want the memory.  Does not wait.  Returns what SERVE does; :DEFERRED when the answer
is a STREAMED-ANSWER whose head was written, and whose shared send queue is now that of
DEFERRED-RESPONSE."))

(defgeneric end-stream (application deferred-response shared-queue)
  (:documentation "Has APPLICATION end the reply of DEFERRED-RESPONSE, a stream all of which was
sent from SHARED-QUEUE.  Returns what SERVE does."))

(defgeneric drop-deferred (application deferred-response)
  (:documentation "Has APPLICATION let go of what it keeps for DEFERRED-RESPONSE, whose connection
is about to be closed.")
  (:method (application deferred-response)
    (declare (ignore application deferred-response))
    nil))

(defun take-answer (deferred-response)
  "What DEFERRED-RESPONSE is to be resumed with, and true; NIL as long as that is to come.
DEFERRED-RESPONSE has it until it was begun: who takes it may be destroyed before."
  (with-deferred-response (deferred-response)
    (case (deferred-response-state deferred-response)
      (:answered
       (setf (deferred-response-state deferred-response) :done)
       (values (deferred-response-answer deferred-response) t))
      (:pending
       (cond ((or (deferred-response-evicted-p deferred-response) (late-p deferred-response))
              (setf (deferred-response-state deferred-response) :expired)
              (values (if (deferred-response-evicted-p deferred-response) :evicted :expired) t))
             (t
              (setf (deferred-response-awaited-p deferred-response) t)
              nil))))))

(defun reopen-deferred-response (deferred-response)
  "Lets DEFERRED-RESPONSE be answered once more, whose answer the current thread has taken, and
could not send.  What it returns does not matter."
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
             (case answer
               (:expired (count-late (suspended-exchange-engine deferred-response) :deferred))
               (:evicted (count-late (suspended-exchange-engine deferred-response) :evicted)))
             (if come-p
                 (begin-answer deferred-response http answer)
                 (await-answer deferred-response)))))))

(defun client-unreachable-p (deferred-response)
  "True when the client of DEFERRED-RESPONSE has left, and would not get the answer: it has not only
ended its half."
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
  (unless (deferred-response-keeper deferred-response) ; who sees to it by itself
    (serve-at (suspended-exchange-engine deferred-response) (suspended-exchange-connection deferred-response) (deferred-response-end deferred-response)))
  :deferred)

(defun begin-answer (deferred-response http answer)
  (let ((outcome (send-deferred-response (suspended-exchange-application deferred-response) deferred-response answer)))
    (cond ((deferred-response-shared-queue deferred-response)
           (setf (deferred-response-answer deferred-response) nil) ; it is begun
           (continue-stream deferred-response (deferred-response-shared-queue deferred-response) http))
          (t
           (setf (http-suspended-exchange http) nil)
           (finish-deferred-response deferred-response)
           outcome))))

(defun ends-with-engine-p (deferred-response)
  "True when the stream of DEFERRED-RESPONSE is to end, since its engine stops, however gently."
  (and (deferred-response-endless-p deferred-response)
       (not (running-p (suspended-exchange-engine deferred-response)))))

(defun continue-stream (deferred-response shared-queue http)
  "Sends what the client takes now of the stream of DEFERRED-RESPONSE, over HTTP."
  ;; A client that has only ended its half gets the rest; for others sending fails.
  (when (and (not (shared-queue-shut-p shared-queue))
             (client-left-p deferred-response))
    (if (deferred-response-on-leaving deferred-response)
        (note-leaving deferred-response)
        (break-stream deferred-response shared-queue))) ; nobody else would end it
  (when (ends-with-engine-p deferred-response)
    (close-shared-queue shared-queue))
  (let ((sent-p (and (not (shared-queue-broken-p shared-queue))
                     (send-queued shared-queue (http-io http)))))
    ;; It may be broken by now; the worker that closes the connection abandons DEFERRED-RESPONSE.
    (cond ((shared-queue-broken-p shared-queue) :broken)
          ((not sent-p) :deferred)
          (t
           (setf (http-suspended-exchange http) nil
                 (deferred-response-shared-queue deferred-response) nil)
           (end-shared-queue shared-queue)
           (unwind-protect (end-stream (suspended-exchange-application deferred-response)
                                       deferred-response shared-queue)
             (finish-deferred-response deferred-response))))))
