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
  (:method ((suspended-exchange t)) nil))

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
  "How often a worker that keeps a connection looks whether its client has left, its time has run
out or the engine stops;")

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
                                 *keeping-seconds* nil)))
          (abandon-suspended-exchange http)))))

;;; Writing over it, from any thread

(defun have-sent (suspended-exchange shared-queue)
  "Sends what of SHARED-QUEUE no poller has sent, unless a worker keeps the connection for it.  Has
the owner of the connection do so otherwise, and look at SUSPENDED-EXCHANGE."
  (let ((owner-p (eq (bt:current-thread) (suspended-exchange-owner suspended-exchange)))
        (queue (shared-queue-queue shared-queue)))
    (when (and (shared-queue-begun-p shared-queue)
               ;; The owner may be in a function of the program for long.
               (or owner-p
                   (and (null (send-queue-descriptor queue)) ; its sender waits
                        (null (suspended-exchange-keeper suspended-exchange)))))
      (flush-queue queue))
    (unless owner-p
      (resume suspended-exchange))))

(defun put-waiting (suspended-exchange shared-queue wait put)
  "Calls PUT, which returns what PUT-IN-SHARED-QUEUE does for SHARED-QUEUE, until that has taken its
octets, and has them sent.  Waits for room: up to WAIT seconds, a real; while the client takes
octets, for T; not for NIL, nor in the owner before the head was sent.  Returns :ROOM when more may
follow at once, else what PUT has returned last, or :OVER."
  (let ((owner-p (eq (bt:current-thread) (suspended-exchange-owner suspended-exchange)))
        (http (connection-data (suspended-exchange-connection suspended-exchange))))
    (loop
      (let ((result (funcall put)))
        (when (and (member result '(:room :full)) (owner-wanted-p shared-queue))
          (have-sent suspended-exchange shared-queue))
        (unless (member result '(:full :refused))
          (return result))
        (cond ((or (null wait)
                   *giving-room-p*
                   (and owner-p (not (shared-queue-begun-p shared-queue)))))
              ((and owner-p (eq t wait)) ; workers may wait for too many clients
               (handler-case (loop while (full-p shared-queue)
                                   do (await-peer (http-io http) :output)
                                      (flush-io (http-io http)))
                 (client-left () (end-shared-queue shared-queue))))
              (t (await-room shared-queue (if (eq t wait) nil wait))))
        (cond ((shared-queue-ended-p shared-queue) (return :over))
              ((full-p shared-queue) (return result))
              ((eq :full result) (return :room)))))))

;;; A deferred response: a reply that comes later.  Any thread may give the answer; the owner of the
;;; connection sends it.  The states change by compare-and-set:
;;;
;;;   state        event                                   becomes      action
;;;   :PENDING     a thread answers                        the answer   the connection is resumed
;;;                the deadline has passed (owner)         :OVER        the owner answers: too late
;;;                the handler has failed                  :OVER        the handler's worker answers
;;;   an answer    an owner comes                          :DONE        the owner sends the answer
;;;   all others   the connection is closed                :OVER        the client counts as gone
;;;
;;; An answer that comes when it is :OVER is dropped; any other further one gets REPLY-ALREADY-SENT.
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
  ;; The answer whose sending was begun, but has not left yet; or NIL.
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
about to be closed."))

(defun deferred-response-unsent-p (deferred-response)
  "True while the answer of DEFERRED-RESPONSE is still to come, or to be sent."
  (not (member (deferred-response-state deferred-response) '(:done :over))))

(defun deferred-response-over-p (deferred-response)
  "True when DEFERRED-RESPONSE has no answer, and its client does not wait for one any more."
  (eq :over (deferred-response-state deferred-response)))

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

(defun answer-deferred-response (deferred-response answer)
  "Gives DEFERRED-RESPONSE ANSWER, no keyword, and has it sent.  True when the client still waits
for it.  Signals REPLY-ALREADY-SENT if there was an answer before."
  (cond ((compare-and-set (deferred-response-state deferred-response) :pending answer)
         ;; An owner looks by itself.
         (unless (eq (bt:current-thread) (deferred-response-owner deferred-response))
           (resume deferred-response))
         t)
        ((not (deferred-response-over-p deferred-response))
         (error 'reply-already-sent))))

(defun withdraw-deferred-response (deferred-response)
  "Makes DEFERRED-RESPONSE drop any later answer, unless it has one.  True when it had none."
  (compare-and-set (deferred-response-state deferred-response) :pending :over))

(defun queue-of-exchange (exchange mark announced)
  "A shared queue for the content of the reply of EXCHANGE, in which MARK octets may wait.
ANNOUNCED is the number of octets of that, or NIL."
  (make-shared-queue mark (io-queue (http-io (exchange-http exchange)))
                     (exchange-engine exchange) announced))

;;; The client's leaving, and the end

(defun note-leaving (deferred-response)
  "Notes that the client of DEFERRED-RESPONSE is gone, and calls its ON-LEAVING function the first
time.  Logs an error of that."
  (let ((function (and (compare-and-set (deferred-response-left-p deferred-response) nil t)
                       (deferred-response-on-leaving deferred-response))))
    (when function
      (call-noting (suspended-exchange-engine deferred-response) function "a client's leaving"))))

(defun break-stream (deferred-response shared-queue)
  "Ends SHARED-QUEUE, of DEFERRED-RESPONSE, whose client does not get the rest.  Wakes threads that
wait for room first: one of them may hold a lock that the ON-LEAVING function needs.  Calls that
function next, and then the functions that wait for room."
  (end-queue (shared-queue-queue shared-queue))
  (note-leaving deferred-response)
  (end-shared-queue shared-queue))

(defmethod abandon ((deferred-response deferred-response))
  (let* ((state (loop for state = (deferred-response-state deferred-response)
                      until (or (eq :done state)
                                (compare-and-set (deferred-response-state deferred-response)
                                                 state :over))
                      finally (return state)))
         (answer (if (keywordp state) (deferred-response-answer deferred-response) state))
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
  "The answer with which DEFERRED-RESPONSE continues; :EXPIRED if none has come in time; NIL while
that is to come."
  (loop
    (let ((state (deferred-response-state deferred-response))
          (end (deferred-response-end deferred-response)))
      (cond ((not (keywordp state))
             (when (compare-and-set (deferred-response-state deferred-response) state :done)
               (return (setf (deferred-response-answer deferred-response) state))))
            ((not (and (eq :pending state) end (<= end (milliseconds))))
             (return nil))
            ((withdraw-deferred-response deferred-response)
             (count-late (suspended-exchange-engine deferred-response) :deferred)
             (return :expired))))))

(defmethod continue-over ((deferred-response deferred-response) http)
  (let ((connection (suspended-exchange-connection deferred-response))
        (base (http-base http))
        (left-p (peer-left-p deferred-response))
        (answer nil))
    (cond ((and left-p base (io-event-p base :failure))
           ;; It has not only closed its sending side.  The worker that closes the connection
           ;; abandons DEFERRED-RESPONSE.
           :broken)
          ((deferred-response-shared-queue deferred-response)
           (continue-stream deferred-response http left-p))
          ((null (setf answer (take-answer deferred-response)))
           (when left-p
             (note-leaving deferred-response))
           (set-deadline-at connection :deferred (deferred-response-end deferred-response))
           :deferred)
          (t
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
                    outcome)))))))

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
