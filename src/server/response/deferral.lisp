(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A reply that comes later.  Any thread may have it; whoever owns the connection sends it.
;;;;
;;;;   state        event                                    becomes      and
;;;;   :PENDING     ANSWER-DEFERRAL                          :ANSWERED    the connection is visited
;;;;                its deadline has passed (owner)          :EXPIRED     the owner answers that it came too late
;;;;                the connection is closed                 :GONE        its client counts as gone
;;;;                its memory is wanted                     :EXPIRED     the owner answers that there is none
;;;;                its handler has failed                   :EXPIRED     the handler's worker answers that
;;;;   :ANSWERED    an owner comes                           :DONE        the owner sends the answer
;;;;                the connection is closed                 :GONE        its client counts as gone
;;;;                ANSWER-DEFERRAL                          -            an error: it was answered before
;;;;   :DONE        ANSWER-DEFERRAL                          -            an error: it was answered before
;;;;                its answer could not be sent (handler)   :PENDING     it may be answered once more
;;;;   :EXPIRED     ANSWER-DEFERRAL, once                    -            nothing: nobody waits for it
;;;;   :GONE        ANSWER-DEFERRAL, once                    -            nothing: nobody waits for it
;;;;
;;;; An answer may be a stream: then its outbox goes on, and the state is :DONE when that has ended.  The peer's
;;;; leaving changes no state: a client that has only ended its half of the connection still gets
;;;; its answer.  It is told once.  A connection that its client has reset is closed at once.

(define-record (deferral (:include continuation)
                         (:constructor make-deferral
                             (exchange end on-leaving
                              &aux (application (exchange-application exchange))
                                (engine (exchange-engine exchange))
                                (connection (exchange-connection exchange))
                                (memory (request-memory (exchange-head exchange)))))
                         (:copier nil))
  "A reply that comes later."
  (exchange nil :read-only t
   :documentation "The exchange whose reply DEFERRAL is.")
  (memory 0 :type index :read-only t)   ; that its request keeps, in octets
  (evicted-p nil)                       ; others want that, so that it is not to wait any longer
  (end nil :type (or null fixnum) :read-only t) ; its deadline, in MILLISECONDS
  (on-leaving nil
   :documentation "NIL, or the function without arguments that is called when the client of DEFERRAL leaves before it
was answered; at the end it is one that does nothing, since the other may refer to much.")
  (owner (bt:current-thread)
   :documentation "The thread that is in the handler of DEFERRAL, or goes on with it; NIL while nobody does.")
  (lock (bt:make-lock "deferral") :read-only t)
  (state :pending :type (member :pending :answered :done :expired :gone))
  (answer nil
   :documentation "What RESUME gets for DEFERRAL; NIL before there is an answer, and after that was begun.")
  (claimed-p nil)                       ; somebody has called ANSWER-DEFERRAL, or is calling it
  (awaited-p nil)                       ; an owner of the connection has looked for the answer, in vain
  (left-p nil
   :documentation "True when the client of DEFERRAL has left, as far as that is known.")
  (keeper nil)                          ; a condition variable, where a worker keeps the connection
  (visited-p nil)                       ; and has something to do
  (outbox nil
   :documentation "The outbox of DEFERRAL; NIL unless its answer is a stream.")
  (endless-p nil
   :documentation "True when the answer of DEFERRAL is a stream that nobody ends, and which ends when its engine stops.")
  (context nil
   :documentation "What the application keeps for DEFERRAL, any object; NIL at first."))

(setf (documentation 'make-deferral 'function)
      "A new deferral for EXCHANGE: of its APPLICATION, on its CONNECTION of its ENGINE; its request takes MEMORY.  The
answer is to come by END, in MILLISECONDS, or NIL for never; ON-LEAVING, NIL or a function without arguments, is called once
when the client leaves before.")

(define-record (streamed-answer (:include opaque) (:constructor nil) (:copier nil))
  "An answer of a deferral that is a stream: what any thread may write."
  (deferral nil :read-only t)
  (outbox nil :read-only t
   :documentation "The outbox that STREAMED-ANSWER leaves by."))

(define-condition already-answered (recycling-error)
  ()
  (:report "The reply was completed before.")
  (:documentation "Signalled to who completes a deferred reply for the second time."))

(defmacro with-deferral ((deferral) &body body)
  "Evaluates BODY, which is short and waits for nothing, while no other thread touches DEFERRAL."
  `(with-lock-briefly ((deferral-lock ,deferral))
     ,@body))

(defun deferral-pending-p (deferral)
  "True while DEFERRAL has no answer, and somebody waits for one."
  (eq :pending (deferral-state deferral)))

(defun deferral-unsent-p (deferral)
  "True while the answer of DEFERRAL is still to come, or to be sent."
  (and (member (deferral-state deferral) '(:pending :answered)) t))

(defun deferral-over-p (deferral)
  "True when nobody waits for the answer of DEFERRAL any more, and it has none."
  (and (member (deferral-state deferral) '(:expired :gone)) t))

(define-condition client-left (recycling-error)
  ((within-p :initarg :within-p :initform nil :reader client-left-within-p
             :documentation "True when the thread that serves the request of the client was told."))
  (:report "Nobody takes it: the client has left, or has all that it gets.")
  (:documentation "Signalled to the caller that writes what no client will get: the client has left or takes nothing in
time, the server was stopped, or the stream was closed or has ended.  Where an :ON-ABANDON of the reply is told of the
leaving, it is not signalled for that."))

(setf (documentation 'client-left-within-p 'function)
      "True when CLIENT-LEFT was signalled in the thread that serves the request of the client.")

;;; Who has the answer

(defun answer-deferral (deferral answer)
  "Makes ANSWER, which RESUME understands, that of DEFERRAL, and has it sent.  True when somebody still
waits for it.  Signals ALREADY-ANSWERED."
  (flet ((answer () answer))
    (declare (dynamic-extent #'answer))
    (call-to-answer deferral #'answer)))

(defun call-to-answer (deferral function)
  "Like ANSWER-DEFERRAL; the answer is what FUNCTION returns, which is called only where there was none
before.  If FUNCTION exits non-locally, DEFERRAL can be answered once more."
  (let ((answer nil) (returned-p nil) (awaited-p nil))
    ;; A thread that is destroyed between two of these steps would leave DEFERRAL to nobody.
    (with-acquired (claimed-p (claim-deferral deferral)
                              (cond ((not claimed-p))
                                    (returned-p (setf awaited-p (give-and-visit deferral answer)))
                                    (t (setf (deferral-claimed-p deferral) nil))))
      (unless claimed-p
        (error 'already-answered))
      (setf answer (funcall function)
            returned-p t))
    awaited-p))

(defun claim-deferral (deferral)
  "Lets the caller alone answer DEFERRAL.  NIL where it is answered, or another thread does that."
  (with-deferral (deferral)
    (unless (deferral-claimed-p deferral)
      (setf (deferral-claimed-p deferral) t))))

(defun give-and-visit (deferral answer)
  "Does what GIVE-ANSWER does, and has the answer sent.  True when somebody still waits for it."
  (ecase (give-answer deferral answer)
    (:awaited (visit deferral) t)
    (:early t)
    (:late nil)))

(defun give-answer (deferral answer)
  "Makes ANSWER that of DEFERRAL, if it is pending.  Returns :AWAITED if its connection waits for that;
:EARLY where its owner has yet to look; :LATE where nobody will."
  (with-deferral (deferral)
    (cond ((not (eq :pending (deferral-state deferral)))
           :late)
          (t
           (setf (deferral-answer deferral) answer
                 (deferral-state deferral) :answered)
           (if (deferral-awaited-p deferral) :awaited :early)))))

(defun withdraw-deferral (deferral)
  "Makes DEFERRAL one that nobody waits for, unless it has an answer.  True when it had none."
  (with-deferral (deferral)
    (when (eq :pending (deferral-state deferral))
      (setf (deferral-state deferral) :expired)
      t)))

(defun evict-deferral (deferral)
  "Has DEFERRAL, if its answer is still to come, be one that nobody waits for when it is continued next: true then.  NIL where
it was evicted before, or is a stream."
  (with-deferral (deferral)
    (and (not (shiftf (deferral-evicted-p deferral) t))
         (deferral-unsent-p deferral))))

(defmethod continuation-memory ((deferral deferral))
  (deferral-memory deferral))

(defmethod visit ((deferral deferral))
  (let ((keeper (deferral-keeper deferral))) ; set before its owner looks for an answer
    (if keeper
        (with-deferral (deferral)
          (setf (deferral-visited-p deferral) t)
          (bt:condition-notify keeper))
        (visit-connection (continuation-engine deferral) (continuation-connection deferral)))))

;;; The client's leaving

(defun take-on-leaving (deferral)
  "Notes that the client of DEFERRAL is gone.  Returns the function by which who wanted to know is to be told, once; or NIL."
  (with-deferral (deferral)
    (unless (shiftf (deferral-left-p deferral) t)
      (deferral-on-leaving deferral))))

(defun tell-of-leaving (deferral function)
  "Calls FUNCTION, of TAKE-ON-LEAVING for DEFERRAL, if it is one."
  (when function
    (handler-case (funcall function)
      (error (condition)
        (log-message (continuation-engine deferral) :error
                     "What was to be done for a client's leaving failed: ~A" condition)))))

(defun note-leaving (deferral)
  "Notes that the client of DEFERRAL is gone, and tells who wanted to know, once."
  (tell-of-leaving deferral (take-on-leaving deferral)))

(defmethod over-at-once-p ((deferral deferral))
  (let ((outbox (deferral-outbox deferral)))
    (and outbox (outbox-broken-p outbox))))

(defun break-stream (deferral outbox)
  "Ends OUTBOX, of DEFERRAL, whose client does not get all.  Who waits for room is woken, and may have a lock that who is
told of the leaving wants; functions that wait for room are called when that one was told."
  (with-acquired (function (take-on-leaving deferral) (tell-of-leaving deferral function))
    (end-outbox outbox (lambda () (tell-of-leaving deferral (shiftf function nil))))))

(defun give-deferral-up (deferral)
  "Lets nobody answer DEFERRAL any more.  Returns its answer, if that was not begun, and whether it was taken."
  (with-deferral (deferral)
    (values (deferral-answer deferral)
            (or (eq :done (deferral-state deferral))
                (progn (setf (deferral-state deferral) :gone) nil)))))

(defmethod abandon ((deferral deferral))
  (multiple-value-bind (answer taken-p) (give-deferral-up deferral)
    (let ((outbox (or (deferral-outbox deferral)
                      (and (streamed-answer-p answer) (streamed-answer-outbox answer)))))
      (unwind-protect                   ; a program may end its thread amid that
           (cond (outbox (break-stream deferral outbox))
                 ((not taken-p) (note-leaving deferral)))
        (drop-deferred (continuation-application deferral) deferral)
        (finish-deferral deferral)))))

(defun finish-deferral (deferral)
  "Forgets what programs gave to DEFERRAL, which is over: it may refer to those who have the reply, and these to
DEFERRAL."
  (setf (deferral-on-leaving deferral) (and (deferral-on-leaving deferral) #'do-nothing)
        (deferral-answer deferral) nil))

(defun do-nothing ()
  nil)

(defun end-deferral (deferral)
  "Ends DEFERRAL, whose handler was left, and which nobody continues: where it was not answered, it is not going to be."
  (if (deferral-unsent-p deferral)
      (abandon deferral)
      (finish-deferral deferral)))

;;; Whether a reply comes later

(defun deferred-p (exchange)
  "True while the reply of EXCHANGE, or the rest of it, is still to come, and its connection waits for that."
  (let ((deferral (exchange-deferral exchange)))
    (and deferral
         (eq deferral (link-continuation (exchange-link exchange)))
         (or (deferral-unsent-p deferral)
             (deferral-outbox deferral))
         t)))

;;; Who owns the connection

(defgeneric resume (application deferral answer)
  (:documentation "Has APPLICATION send ANSWER, the reply of the exchange of DEFERRAL, which was waiting for it: as it was
given; :EXPIRED when none has come in time, or :EVICTED when other clients want the memory.  Does not wait.  Returns what SERVE
does; :DEFERRED when the answer is a STREAMED-ANSWER whose head was written, and whose outbox is now that of DEFERRAL."))

(defgeneric end-stream (application deferral outbox)
  (:documentation "Has APPLICATION end the reply of DEFERRAL, a stream all of which was sent from OUTBOX.  Returns what
SERVE does."))

(defgeneric drop-deferred (application deferral)
  (:documentation "Has APPLICATION let go of what it keeps for DEFERRAL, whose connection is about to be closed.")
  (:method (application deferral)
    (declare (ignore application deferral))
    nil))

(defun take-answer (deferral)
  "What DEFERRAL is to be resumed with, and true; NIL as long as that is to come.  DEFERRAL has it until it was begun: who
takes it may be destroyed before."
  (with-deferral (deferral)
    (case (deferral-state deferral)
      (:answered
       (setf (deferral-state deferral) :done)
       (values (deferral-answer deferral) t))
      (:pending
       (cond ((or (deferral-evicted-p deferral) (late-p deferral))
              (setf (deferral-state deferral) :expired)
              (values (if (deferral-evicted-p deferral) :evicted :expired) t))
             (t
              (setf (deferral-awaited-p deferral) t)
              nil))))))

(defun reopen-deferral (deferral)
  "Lets DEFERRAL be answered once more, whose answer the current thread has taken, and could not send.  What it returns does
not matter."
  (with-deferral (deferral)
    (when (eq :done (deferral-state deferral))
      (setf (deferral-state deferral) :pending
            (deferral-answer deferral) nil
            (deferral-claimed-p deferral) nil))))

(defun late-p (deferral)
  "True when the deadline of DEFERRAL has passed."
  (let ((end (deferral-end deferral)))
    (and end (<= end (milliseconds)))))

(defmethod continue-over ((deferral deferral) link visitor-p)
  (declare (ignore visitor-p))
  (setf (deferral-owner deferral) (bt:current-thread))
  (unwind-protect (continue-deferral deferral link)
    (setf (deferral-owner deferral) nil)))

(defun continue-deferral (deferral link)
  (let ((outbox (deferral-outbox deferral)))
    (cond ((client-unreachable-p deferral)
           :broken)                     ; the worker that closes the connection abandons DEFERRAL
          (outbox
           (continue-stream deferral outbox link))
          (t
           (multiple-value-bind (answer come-p) (take-answer deferral)
             (case answer
               (:expired (count-late (continuation-engine deferral) :deferred))
               (:evicted (count-late (continuation-engine deferral) :evicted)))
             (if come-p
                 (begin-answer deferral link answer)
                 (await-answer deferral)))))))

(defun client-unreachable-p (deferral)
  "True when the client of DEFERRAL has left, and would not get the answer: it has not only ended
its half."
  (and (client-left-p deferral)
       (connection-failed-p deferral)))

(defun client-left-p (deferral)
  "True when the client of DEFERRAL has left, as far as that is known."
  (if (deferral-keeper deferral)
      (kept-peer-left-p deferral)
      (peer-left-p deferral)))

(defun await-answer (deferral)
  "Lets the connection of DEFERRAL wait for its answer."
  (when (client-left-p deferral)
    (note-leaving deferral))
  (unless (deferral-keeper deferral)    ; who sees to it by itself
    (serve-at (continuation-engine deferral) (continuation-connection deferral) (deferral-end deferral)))
  :deferred)

(defun begin-answer (deferral link answer)
  (let ((outcome (resume (continuation-application deferral) deferral answer)))
    (cond ((deferral-outbox deferral)
           (setf (deferral-answer deferral) nil) ; it is begun
           (continue-stream deferral (deferral-outbox deferral) link))
          (t
           (setf (link-continuation link) nil)
           (finish-deferral deferral)
           outcome))))

(defun ends-with-engine-p (deferral)
  "True when the stream of DEFERRAL is to end, since its engine stops, however gently."
  (and (deferral-endless-p deferral)
       (not (running-p (continuation-engine deferral)))))

(defun continue-stream (deferral outbox link)
  "Sends what the client takes now of the stream of DEFERRAL, over LINK."
  (when (and (not (outbox-shut-p outbox)) ; who has only ended his half gets the rest, and else sending it fails
             (client-left-p deferral))
    (if (deferral-on-leaving deferral)
        (note-leaving deferral)
        (break-stream deferral outbox))) ; nobody else would end it
  (when (ends-with-engine-p deferral)
    (close-outbox outbox))
  (let ((sent-p (and (not (outbox-broken-p outbox))
                     (send-queued outbox (link-wire link)))))
    (cond ((outbox-broken-p outbox) :broken) ; perhaps by now; who closes the connection abandons DEFERRAL
          ((not sent-p) :deferred)
          (t
           (setf (link-continuation link) nil
                 (deferral-outbox deferral) nil)
           (finish-deferral deferral)
           (end-outbox outbox)
           (end-stream (continuation-application deferral) deferral outbox)))))
