(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What goes on without a worker: a suspended exchange is the use of a connection, after a request
;;;; was read, while it waits.  It is a deferred response, here, or another protocol.
;;;;
;;;; While an HTTP connection has a suspended exchange, SERVE continues that, and reads no request.
;;;; Invariant: the caller of CONTINUE-OVER owns the connection, or is the worker that keeps it,
;;;; where there is no poller, or a program reads the connection itself.

(defstruct (suspended-exchange (:include opaque) (:constructor nil) (:copier nil))
  "The use of a connection that needs no worker while it waits."
  ;; The HTTP-SERVICE of SUSPENDED-EXCHANGE.
  (application nil :read-only t)
  ;; The engine of the connection of SUSPENDED-EXCHANGE.
  (engine nil :read-only t)
  ;; The CONNECTION of the engine on which SUSPENDED-EXCHANGE continues.
  (connection nil :read-only t)
  ;; The thread that continues SUSPENDED-EXCHANGE, or runs its handler; NIL while there is none.
  (owner (bt:current-thread))
  (lock (bt:make-lock "suspended exchange") :read-only t)
  (keeper nil)                          ; a condition variable, if a worker keeps the connection
  (resumed-p nil))                      ; that worker has something to do

(defgeneric continue-over (suspended-exchange http)
  (:documentation "Continues SUSPENDED-EXCHANGE over HTTP as far as possible without waiting.
Returns an outcome as SERVE does: :DEFERRED as long as more is to come."))

(defgeneric abandon (suspended-exchange)
  (:documentation "Ends SUSPENDED-EXCHANGE, whose connection is about to be closed.  The result has
no meaning."))

(defgeneric reads-on-p (suspended-exchange)
  (:documentation "True when SUSPENDED-EXCHANGE takes input.")
  (:method (suspended-exchange)
    (declare (ignore suspended-exchange))
    nil))

(defun resume (suspended-exchange)
  "Has SUSPENDED-EXCHANGE continued by a worker, since there is work for it.  Any thread may call
this, and does not wait."
  (let ((keeper (suspended-exchange-keeper suspended-exchange))) ; set before its first look
    (if keeper
        (with-lock-briefly ((suspended-exchange-lock suspended-exchange))
          (setf (suspended-exchange-resumed-p suspended-exchange) t)
          (bt:condition-notify keeper))
        (resume-connection (suspended-exchange-engine suspended-exchange)
                           (suspended-exchange-connection suspended-exchange)))))

(defun peer-left-p (suspended-exchange)
  "True when the peer of SUSPENDED-EXCHANGE will send no more, or is gone, as the poller has
reported, or the system says where a worker keeps the connection."
  (let* ((connection (suspended-exchange-connection suspended-exchange))
         (base (http-base (connection-data connection))))
    (or (and (connection-parkable-p connection) (peer-ended-p connection))
        (and base (suspended-exchange-keeper suspended-exchange) (io-event-p base :end)))))

(defun send-rest (io)
  "Sends the queue of IO; waits for the peer.  NIL when that is gone, or takes no octets in time."
  (handler-case (progn (send-output io) t)
    ((or descriptor-broken stream-timeout) () nil)))

(defun continue-http-connection (http &optional (event-p t))
  "Continues the suspended exchange of HTTP.  Returns an outcome as SERVE does; :BROKEN where the
peer is gone, or there is no memory for its waiting input.  EVENT-P is true where the caller may
have got an event of input, which the poller will not repeat: so the next reader has to look."
  (let ((suspended-exchange (http-suspended-exchange http))
        (io (http-io http)))
    (when event-p
      (setf (io-drained-p io) nil))
    (setf (suspended-exchange-owner suspended-exchange) (bt:current-thread))
    (unwind-protect
         (handler-case
             (let ((outcome (continue-over suspended-exchange http)))
               (cond ((not (member outcome '(:deferred :again)))
                      (release-input io (input-memory io)) ; it has ended
                      outcome)
                     ((keep-waiting-input (suspended-exchange-engine suspended-exchange) http)
                      outcome)
                     (t :broken)))
           ;; DESCRIPTOR-BROKEN, STREAM-TIMEOUT, or the error of a stream of the Lisp.
           (stream-error () :broken))
      (setf (suspended-exchange-owner suspended-exchange) nil))))

(defun abandon-suspended-exchange (http)
  "Abandons the suspended exchange of HTTP, if there is one.  HTTP has it until that is done: where
the thread is destroyed meanwhile, the last release of the connection abandons it again."
  (let ((suspended-exchange (http-suspended-exchange http)))
    (when suspended-exchange
      (abandon suspended-exchange)
      (setf (http-suspended-exchange http) nil))))

(defparameter *keeping-seconds* 1/2
  "How often a worker that keeps a connection looks whether its client has left or the engine
stops;")

(defparameter *reading-seconds* 1/20
  "and whether there are octets to send, while it waits for input.")

(defun leave-or-keep (exchange)
  "Lets the connection of EXCHANGE wait without a worker; or continues its suspended exchange to the
end in the current worker, which waits.  Returns an outcome as SERVE does, :CLOSE when the engine
stops before."
  (let* ((connection (exchange-connection exchange))
         (http (exchange-http exchange))
         (io (http-io http))
         (suspended-exchange (http-suspended-exchange http)))
    (if (and (connection-parkable-p connection)
             (not (io-waits-p (http-io http)))
             (engine-sends-p io))
        :deferred
        (unwind-protect-whole
            (loop
              initially (setf (suspended-exchange-keeper suspended-exchange)
                              (bt:make-condition-variable))
              do (let ((outcome (continue-http-connection http)))
                   (unless (member outcome '(:deferred :again))
                     (return outcome)))
                 (unless (send-rest io)
                   (return :broken))    ; abandoning wakes threads that wait for room
                 (unless (serving-p (exchange-engine exchange))
                   (return :close))
                 (if (reads-on-p suspended-exchange)
                     (when (and (not (input-waiting-p io))
                                (await-input (connection-handle connection)
                                             :until (end-after *reading-seconds*)))
                       (note-socket-ready io))
                     (wait-until (lambda ()
                                   (shiftf (suspended-exchange-resumed-p suspended-exchange) nil))
                                 (suspended-exchange-keeper suspended-exchange)
                                 (suspended-exchange-lock suspended-exchange)
                                 (let ((end (connection-deadline connection)))
                                   (if end
                                       (min *keeping-seconds*
                                            (/ (max 1 (milliseconds-left end)) 1000))
                                       *keeping-seconds*))
                                 nil)))
          (abandon-suspended-exchange http)))))

;;; A deferred response: a reply that comes later.  Any thread may give the answer; the owner of the
;;; connection sends it.  The states change by compare-and-set:
;;;
;;;   state        event                                   becomes      action
;;;   :PENDING     a thread begins to answer               :CLAIMED
;;;   :CLAIMED     it has the answer                       :ANSWERED    the connection is resumed
;;;                it is left without one                  :PENDING
;;;   these two    the deadline has passed (owner)         :EXPIRED     the owner answers: too late
;;;                the handler has failed                  :EXPIRED     the handler's worker answers
;;;   :ANSWERED    an owner comes                          :DONE        the owner sends the answer
;;;   all before   the connection is closed                :GONE        the client counts as gone
;;;   :EXPIRED,    a thread begins to answer               :MISSED      the answer is dropped
;;;   :GONE
;;;
;;; A thread that begins to answer in any other state gets REPLY-ALREADY-SENT.
;;;
;;; An answer may be a stream.  Then its shared queue is sent until it has ended, in the state
;;; :DONE.  The client's leaving changes no state: a client that has only closed its sending side
;;; still gets its answer.  ON-LEAVING is called once.  A connection that the client has reset is
;;; closed at once.

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
  (state :pending)
  ;; The answer for SEND-DEFERRED-RESPONSE; NIL before there is one, and once its sending has
  ;; begun.
  (answer nil)
  ;; True when the client of DEFERRED-RESPONSE has left, as far as that is known.
  (left-p nil)
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

(defun deferred-response-unsent-p (deferred-response)
  "True while the answer of DEFERRED-RESPONSE is still to come, or to be sent."
  (and (member (deferred-response-state deferred-response) '(:pending :claimed :answered)) t))

(defun deferred-response-over-p (deferred-response)
  "True when DEFERRED-RESPONSE has no answer, and its client does not wait for one any more."
  (and (member (deferred-response-state deferred-response) '(:expired :gone :missed)) t))

(defun deferred-p (exchange)
  "True while the reply of EXCHANGE, or the rest of it, is still to come, and its connection waits
for that."
  (let ((deferred-response (exchange-deferred-response exchange)))
    (and deferred-response
         (eq deferred-response (http-suspended-exchange (exchange-http exchange)))
         (or (deferred-response-unsent-p deferred-response)
             (deferred-response-shared-queue deferred-response))
         t)))

(defun refuse-write (answer)
  "Signals REPLY-ALREADY-SENT if the program has closed ANSWER, a STREAMED-ANSWER that is over; else
CLIENT-LEFT."
  (if (streamed-answer-closed-p answer)
      (error 'reply-already-sent)
      (error 'client-left :source (streamed-answer-deferred-response answer))))

;;; From any thread

(defun call-to-answer (deferred-response function)
  "Gives DEFERRED-RESPONSE an answer, the result of FUNCTION, of a kind that SEND-DEFERRED-RESPONSE
understands, and has it sent.  True when the client still waits for it.  Signals REPLY-ALREADY-SENT,
and does not call FUNCTION, if there was an answer before.  If FUNCTION exits non-locally,
DEFERRED-RESPONSE can be answered again."
  (ecase (change-state (deferred-response-state deferred-response)
           :pending :claimed :expired :missed :gone :missed)
    (:pending
     (unless-returned
         (progn
           (setf (deferred-response-answer deferred-response) (funcall function))
           (when (eq :claimed (change-state (deferred-response-state deferred-response)
                                :claimed :answered))
             ;; An owner looks by itself.
             (unless (eq (bt:current-thread) (deferred-response-owner deferred-response))
               (resume deferred-response))
             t))
       (change-state (deferred-response-state deferred-response) :claimed :pending)))
    ((:expired :gone) nil)
    ((:claimed :answered :done :missed) (error 'reply-already-sent))))

(defun answer-deferred-response (deferred-response answer)
  "Like CALL-TO-ANSWER, with ANSWER."
  (call-to-answer deferred-response (lambda () answer)))

(defun withdraw-deferred-response (deferred-response)
  "Makes DEFERRED-RESPONSE drop any later answer, unless it has one.  True when it had none."
  (and (member (change-state (deferred-response-state deferred-response)
                 :pending :expired :claimed :expired)
               '(:pending :claimed))
       t))

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

;;; The client's leaving, and the end

(defun note-leaving (deferred-response)
  "Notes that the client of DEFERRED-RESPONSE is gone, and calls its ON-LEAVING function the first
time.  Logs an error of that."
  (let ((function (and (compare-and-set (deferred-response-left-p deferred-response) nil t)
                       (deferred-response-on-leaving deferred-response))))
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

(defmethod abandon ((deferred-response deferred-response))
  (let* ((state (change-state (deferred-response-state deferred-response)
                  :pending :gone :claimed :gone :answered :gone :expired :gone))
         (answer (deferred-response-answer deferred-response))
         (shared-queue (or (deferred-response-shared-queue deferred-response)
                           (and (streamed-answer-p answer)
                                (streamed-answer-shared-queue answer)))))
    (unwind-protect                     ; a program may end the thread halfway
         (cond (shared-queue (break-stream deferred-response shared-queue))
               ((not (eq :done state)) (note-leaving deferred-response)))
      (drop-deferred (suspended-exchange-application deferred-response) deferred-response)
      (finish-deferred-response deferred-response))))

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

;;; The owner of the connection

(defun take-answer (deferred-response)
  "The answer with which DEFERRED-RESPONSE continues, and true; NIL while that is to come.
DEFERRED-RESPONSE keeps the answer until its sending has begun: the thread that takes it may be
destroyed before."
  (let ((end (deferred-response-end deferred-response)))
    (cond ((eq :answered (change-state (deferred-response-state deferred-response)
                           :answered :done))
           (values (deferred-response-answer deferred-response) t))
          ((not (and end (<= end (milliseconds)))) nil)
          ((withdraw-deferred-response deferred-response) (values :expired t))
          ((eq :answered (deferred-response-state deferred-response)) ; just now
           (take-answer deferred-response)))))

(defmethod continue-over ((deferred-response deferred-response) http)
  (let ((connection (suspended-exchange-connection deferred-response))
        (base (http-base http))
        (left-p (peer-left-p deferred-response)))
    (cond ((and left-p base (io-event-p base :failure))
           ;; It has not only closed its sending side.  The worker that closes the connection
           ;; abandons DEFERRED-RESPONSE.
           :broken)
          ((deferred-response-shared-queue deferred-response)
           (continue-stream deferred-response http left-p))
          (t
           (when (and left-p (not (eq :answered (deferred-response-state deferred-response))))
             (note-leaving deferred-response))
           (multiple-value-bind (answer come-p) (take-answer deferred-response)
             (when (eq :expired answer)
               (count-late (suspended-exchange-engine deferred-response) :deferred))
             (if (not come-p)
                 (progn (set-deadline-at connection :deferred
                                         (deferred-response-end deferred-response))
                        :deferred)
                 (let ((outcome (send-deferred-response
                                 (suspended-exchange-application deferred-response)
                                 deferred-response answer)))
                   (cond ((deferred-response-shared-queue deferred-response)
                          ;; Its sending has begun.
                          (setf (deferred-response-answer deferred-response) nil)
                          (continue-stream deferred-response http left-p))
                         (t
                          (setf (http-suspended-exchange http) nil)
                          (finish-deferred-response deferred-response)
                          outcome)))))))))

(defun continue-stream (deferred-response http left-p)
  "Sends as much of the stream of DEFERRED-RESPONSE as the client takes now over HTTP.  LEFT-P is
true if the client has left."
  (let ((shared-queue (deferred-response-shared-queue deferred-response)))
    ;; A client that has only closed its sending side gets the rest; for others sending fails.
    (cond ((or (not left-p) (shared-queue-shut-p shared-queue)))
          ((deferred-response-on-leaving deferred-response) (note-leaving deferred-response))
          (t (break-stream deferred-response shared-queue))) ; no other code would end it
    (when (and (deferred-response-endless-p deferred-response)
               (not (running-p (suspended-exchange-engine deferred-response)))) ; even softly
      (close-shared-queue shared-queue))
    (let ((sent-p (and (not (shared-queue-ended-p shared-queue))
                       (send-queued shared-queue (http-io http)))))
      ;; It may be broken by now.  Then the worker that closes the connection abandons
      ;; DEFERRED-RESPONSE.
      (cond ((shared-queue-ended-p shared-queue) :broken)
            ((not sent-p)
             (setf (connection-deadline (suspended-exchange-connection deferred-response)) nil)
             :deferred)
            (t
             (setf (http-suspended-exchange http) nil
                   (deferred-response-shared-queue deferred-response) nil)
             (end-shared-queue shared-queue)
             (unwind-protect (end-stream (suspended-exchange-application deferred-response)
                                         deferred-response shared-queue)
               (finish-deferred-response deferred-response)))))))
