(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What goes on without a worker: a suspended exchange is the use of a connection, after a request
;;;; was read, while it waits.  It is a deferred response, here, or a WebSocket.
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
        (loop
          initially (setf (suspended-exchange-keeper suspended-exchange)
                          (bt:make-condition-variable))
          do (let ((outcome (continue-http-connection http)))
               (unless (member outcome '(:deferred :again))
                 (return outcome)))
             (unless (send-rest io)
               (return :broken))        ; the release wakes threads that wait for room
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
                             *keeping-seconds* nil))))))

;;; A shared queue: the content of one reply, or the frames of a socket, that any thread writes.  It
;;; writes to the send queue of the connection, whose lock guards it as well.
;;;
;;;   what a thread puts in                    is
;;;   before the head of the reply was sent    held
;;;   after that                               sent at once, as far as the client takes it
;;;
;;;   phase     meaning                   PUT-IN-SHARED-QUEUE
;;;   :OPEN     more may come             accepts octets up to MARK
;;;   :ENDING   no more will come         accepts none; the owner of the connection sends the rest
;;;   :ENDED    it is over                accepts none
;;;
;;; It is full when more than MARK octets wait.  Vectors that were put in never change, so that many
;;; queues may share them.  No lock is held during a call of a program's function; an error in that
;;; affects no other.

(defstruct (shared-queue (:include opaque) (:copier nil))
  "Octets that any thread sends by QUEUE, a SEND-QUEUE.  It is full when more than MARK wait."
  ;; The SUSPENDED-EXCHANGE whose octets they are.
  (suspended-exchange nil :read-only t)
  (queue nil :type send-queue :read-only t)
  (mark 0 :type index :read-only t)
  ;; The first value of FRAMING-OF-STREAM; not changed by writing.
  (framing :plain :read-only t)
  ;; How many octets may still be put in, an integer; NIL where their number was not announced.
  (announced nil :type (or null unsigned-byte))
  (phase :open :type (member :open :ending :ended))
  (closed-p nil)                        ; the program has closed it
  (begun-p nil)                         ; the head was sent
  (held '() :type list)                 ; vectors that wait for that, the last first
  (size 0 :type fixnum)                 ; and their octets
  (silent-p nil :type boolean)          ; nothing was put in since the last SILENT-AGAIN-P
  (on-end '() :type list))              ; functions without arguments, called when it has ended

(defun make-queue (constructor suspended-exchange mark framing &rest slots)
  "A SHARED-QUEUE for SUSPENDED-EXCHANGE, in which MARK octets may wait, with FRAMING.  CONSTRUCTOR,
a function, makes it with SLOTS besides."
  (apply constructor
         :suspended-exchange suspended-exchange :mark mark :framing framing
         :announced (and (integerp framing) framing)
         :queue (io-queue (http-io (connection-data
                                    (suspended-exchange-connection suspended-exchange))))
         slots))

(defun shared-queue-engine (shared-queue)
  "The engine of the connection of SHARED-QUEUE."
  (suspended-exchange-engine (shared-queue-suspended-exchange shared-queue)))

(defmacro with-shared-queue ((shared-queue) &body body)
  "Evaluates BODY, which is short and does not wait, while no other thread uses SHARED-QUEUE."
  `(with-send-queue ((shared-queue-queue ,shared-queue))
     ,@body))

(defun octets-waiting-in (shared-queue)
  "How many octets of SHARED-QUEUE wait, an integer; with those of the head."
  (if (shared-queue-begun-p shared-queue)
      (send-queue-size (shared-queue-queue shared-queue))
      (shared-queue-size shared-queue)))

(defun full-p (shared-queue)
  "True when more than MARK octets of SHARED-QUEUE wait."
  (> (octets-waiting-in shared-queue) (shared-queue-mark shared-queue)))

(defun shared-queue-shut-p (shared-queue)
  "True when SHARED-QUEUE accepts no octets any more, however much room there is."
  (or (not (eq :open (shared-queue-phase shared-queue)))
      (send-queue-dead-p (shared-queue-queue shared-queue))))

(defun shared-queue-ended-p (shared-queue)
  "True when SHARED-QUEUE has ended, or its octets were dropped."
  (or (eq :ended (shared-queue-phase shared-queue))
      (send-queue-dead-p (shared-queue-queue shared-queue))))

(defun put-in-shared-queue (shared-queue octets &optional however-full-p)
  "Puts OCTETS, a vector that must not change any more, into SHARED-QUEUE.  Returns :ROOM when more
may follow, or :FULL when the caller should wait for room before the next call.  Otherwise it has
not accepted them, and returns :REFUSED because it was full, unless HOWEVER-FULL-P; :OVER because it
has ended; or :TOO-LONG because fewer octets were announced."
  (make-room-in-heap (length octets))   ; threads that write would fill it faster than it is freed
  (prog1 (with-shared-queue (shared-queue)
           (cond ((shared-queue-shut-p shared-queue) :over)
                 ((eq :none (shared-queue-framing shared-queue)) :room)
                 ((and (full-p shared-queue) (not however-full-p)) :refused)
                 ((and (shared-queue-announced shared-queue)
                       (> (length octets) (shared-queue-announced shared-queue)))
                  :too-long)
                 (t
                  (when (shared-queue-announced shared-queue)
                    (decf (shared-queue-announced shared-queue) (length octets)))
                  (setf (shared-queue-silent-p shared-queue) nil)
                  (cond ((shared-queue-begun-p shared-queue)
                         (write-under-lock (shared-queue-queue shared-queue)
                                           octets 0 (length octets) nil))
                        (t
                         (push octets (shared-queue-held shared-queue))
                         (incf (shared-queue-size shared-queue) (length octets))))
                  (if (full-p shared-queue) :full :room))))
    (make-room-for-output (shared-queue-engine shared-queue) (shared-queue-queue shared-queue))))

(defun owner-wanted-p (shared-queue)
  "True when octets of SHARED-QUEUE wait for the owner of the connection, since no poller does."
  (let ((queue (shared-queue-queue shared-queue)))
    (and (or (send-queue-parts queue) (send-queue-dead-p queue))
         (null (send-queue-arm queue)))))

(defun silent-again-p (shared-queue)
  "True when no octets were put into SHARED-QUEUE since the last call."
  (with-shared-queue (shared-queue)
    (shiftf (shared-queue-silent-p shared-queue) t)))

(defun close-shared-queue (shared-queue)
  "Makes SHARED-QUEUE accept no more octets; those in it are still sent.  True for the first call."
  (with-shared-queue (shared-queue)
    (unless (shared-queue-shut-p shared-queue)
      (setf (shared-queue-phase shared-queue) :ending))))

(defun drop-shared-queue (shared-queue)
  "Ends the connection of SHARED-QUEUE, whose peer is too slow.  Its owner does the rest."
  (end-queue (shared-queue-queue shared-queue) t)
  (resume (shared-queue-suspended-exchange shared-queue)))

(defun end-shared-queue (shared-queue)
  "Ends SHARED-QUEUE, and calls the functions of programs that wait for its end, or for room."
  (let* ((queue (shared-queue-queue shared-queue))
         (functions (with-shared-queue (shared-queue)
                      (setf (shared-queue-phase shared-queue) :ended
                            (shared-queue-held shared-queue) '()
                            (shared-queue-size shared-queue) 0)
                      (append (reverse (shiftf (shared-queue-on-end shared-queue) '()))
                              (reverse (shiftf (send-queue-on-room queue) '()))))))
    (dolist (function functions)
      (call-noting (shared-queue-engine shared-queue) function))))

(defun call-noting (engine function &optional (occasion "a stream's room or end"))
  "Calls FUNCTION, which a program gave for OCCASION.  Logs an error in the log of ENGINE, but not
CLIENT-LEFT, by which a writer ends."
  (handler-case (funcall function)
    (client-left () nil)
    (error (condition)
      (log-message engine :error "What was to be done for ~A failed: ~A" occasion condition))))

(defun call-when-over (shared-queue function)
  "Calls FUNCTION, which has no arguments and does not wait, once, in any thread, when SHARED-QUEUE
has ended; at once if it has ended already."
  (when (with-shared-queue (shared-queue)
          (cond ((eq :ended (shared-queue-phase shared-queue)) t)
                (t (push function (shared-queue-on-end shared-queue)) nil)))
    (call-noting (shared-queue-engine shared-queue) function)))

(defun forget-when-over (shared-queue function)
  "Removes FUNCTION, an argument of an earlier CALL-WHEN-OVER, from SHARED-QUEUE."
  (with-shared-queue (shared-queue)
    (setf (shared-queue-on-end shared-queue)
          (remove function (shared-queue-on-end shared-queue) :test #'eq))))

(defun call-when-room (shared-queue function)
  "Calls FUNCTION, which has no arguments, once, in any thread.  Calls it at once if SHARED-QUEUE is
not full, or has ended; otherwise when at most half of its mark waits, or it has ended."
  (unless (with-shared-queue (shared-queue)
            (when (and (full-p shared-queue) (not (shared-queue-ended-p shared-queue)))
              (push (lambda () (call-noting (shared-queue-engine shared-queue) function))
                    (send-queue-on-room (shared-queue-queue shared-queue)))
              t))
    (let ((*giving-room-p* t))
      (call-noting (shared-queue-engine shared-queue) function))))

(defun await-room (shared-queue seconds)
  "Waits up to SECONDS, a real or NIL for no limit, until SHARED-QUEUE is not full or has ended.
True when it is so.  Returns NIL at once in a function that waited for room itself.  Where there is
a descriptor, a thread that waits also sends: it may be the owner, and all workers may wait."
  (let ((queue (shared-queue-queue shared-queue))
        (end (end-after seconds)))
    (flet ((room-p ()
             (or (not (full-p shared-queue)) (shared-queue-ended-p shared-queue))))
      (loop until (or *giving-room-p* (room-p))
            do (when (eql 0 (milliseconds-left end))
                 (return nil))
               (cond ((and (shared-queue-begun-p shared-queue) (send-queue-descriptor queue))
                      (await-descriptor (send-queue-descriptor queue) :output
                                        :until (earlier end (+ (milliseconds) 250)))
                      (when (taker-given-up-p queue (milliseconds))
                        (end-queue queue t))
                      (flush-queue queue))
                     (t                 ; another thread sends
                      (wait-until #'room-p (bt:make-condition-variable) (send-queue-lock queue)
                                  (min 1/4 (/ (or (milliseconds-left end) 250) 1000)) 1/100)))
            finally (return (room-p))))))

;;; The owner of the connection

(defun send-queued (shared-queue io)
  "Sends as much of SHARED-QUEUE over IO as the peer takes now.  True when all of it was sent, and
no more will follow.  Signals DESCRIPTOR-BROKEN."
  (let ((queue (shared-queue-queue shared-queue)))
    (unless (shared-queue-begun-p shared-queue)
      (begin-shared-queue shared-queue io))
    (if (engine-sends-p io)
        (flush-io io)
        (send-output io))               ; a program has a stream beside it, or the whole connection
    (with-shared-queue (shared-queue)
      (and (not (eq :open (shared-queue-phase shared-queue)))
           (null (send-queue-parts queue))))))

(defun begin-shared-queue (shared-queue io)
  "Writes what was put into SHARED-QUEUE so far, and lets other threads write to IO from now on."
  (let ((queue (shared-queue-queue shared-queue)))
    (push-output io)                    ; the head
    (with-shared-queue (shared-queue)
      (setf (send-queue-mark queue) (shared-queue-mark shared-queue)
            (shared-queue-begun-p shared-queue) t
            (shared-queue-size shared-queue) 0)
      (dolist (octets (reverse (shiftf (shared-queue-held shared-queue) '())))
        (write-under-lock queue octets 0 (length octets) nil)))
    (flush-queue queue)))

;;; Writing, from any thread

(defun have-sent (shared-queue)
  "Sends what of SHARED-QUEUE no poller has sent, unless a worker keeps the connection for it.  Has
the owner of the connection do so otherwise, and look at its suspended exchange."
  (let* ((suspended-exchange (shared-queue-suspended-exchange shared-queue))
         (owner-p (eq (bt:current-thread) (suspended-exchange-owner suspended-exchange)))
         (queue (shared-queue-queue shared-queue)))
    (when (and (shared-queue-begun-p shared-queue)
               ;; The owner may be in a function of the program for long.
               (or owner-p
                   (and (null (send-queue-descriptor queue)) ; its sender waits
                        (null (suspended-exchange-keeper suspended-exchange)))))
      (flush-queue queue))
    (unless owner-p
      (resume suspended-exchange))))

(defun put-waiting (shared-queue wait put)
  "Calls PUT, which returns what PUT-IN-SHARED-QUEUE does for SHARED-QUEUE, until that has taken its
octets, and has them sent.  Waits for room: up to WAIT seconds, a real; while the client takes
octets, for T; not for NIL, nor in the owner before the head was sent.  Returns :ROOM when more may
follow at once, else what PUT has returned last, or :OVER."
  (let* ((suspended-exchange (shared-queue-suspended-exchange shared-queue))
         (owner-p (eq (bt:current-thread) (suspended-exchange-owner suspended-exchange)))
         (io (http-io (connection-data (suspended-exchange-connection suspended-exchange)))))
    (loop
      (let ((result (funcall put)))
        (when (and (member result '(:room :full)) (owner-wanted-p shared-queue))
          (have-sent shared-queue))
        (unless (member result '(:full :refused))
          (return result))
        (cond ((or (null wait)
                   *giving-room-p*
                   (and owner-p (not (shared-queue-begun-p shared-queue)))))
              ((and owner-p (eq t wait)) ; workers may wait for too many clients
               (handler-case (loop while (full-p shared-queue)
                                   do (await-peer io :output)
                                      (flush-io io))
                 (client-left () (end-shared-queue shared-queue))))
              (t (await-room shared-queue (if (eq t wait) nil wait))))
        (cond ((shared-queue-ended-p shared-queue) (return :over))
              ((full-p shared-queue) (return result))
              ((eq :full result) (return :room)))))))

(defun refuse-write (shared-queue)
  "Signals REPLY-ALREADY-SENT if the program has closed SHARED-QUEUE, which is over; else
CLIENT-LEFT."
  (if (shared-queue-closed-p shared-queue)
      (error 'reply-already-sent)
      (error 'client-left :source (shared-queue-suspended-exchange shared-queue))))

(defun write-waiting (shared-queue wait put)
  "Writes to SHARED-QUEUE; WAIT and PUT are as in PUT-WAITING.  True when more may follow.  Signals
STREAM-FULL, CONTENT-TOO-LONG, and what REFUSE-WRITE does."
  (ecase (put-waiting shared-queue wait put)
    (:room t)
    (:full nil)
    (:refused (error 'stream-full))
    (:too-long (error 'content-too-long :stream nil))
    (:over (refuse-write shared-queue))))

(defun write-content (shared-queue octets wait)
  "Writes OCTETS, content that must not change any more, to SHARED-QUEUE in its framing, as
WRITE-WAITING does."
  (cond ((shared-queue-shut-p shared-queue) (refuse-write shared-queue))
        ((zerop (length octets)) t)
        (t
         (let ((framed (framed octets (shared-queue-framing shared-queue))))
           (write-waiting shared-queue wait
                          (lambda () (put-in-shared-queue shared-queue framed)))))))

(defun close-content (shared-queue)
  "Ends SHARED-QUEUE for the program: what was written is still sent.  True for the first call,
unless it is over."
  (setf (shared-queue-closed-p shared-queue) t)
  (when (close-shared-queue shared-queue)
    (resume (shared-queue-suspended-exchange shared-queue))
    t))

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
;;; An answer may be a shared queue.  Then that is sent until it has ended, in the state :DONE.  The
;;; client's leaving changes no state: a client that has only closed its sending side still gets its
;;; answer.  ON-LEAVING is called once.  A connection that the client has reset is closed at once.

(defstruct (deferred-response (:include suspended-exchange) (:copier nil))
  "A reply that comes later."
  ;; The exchange whose reply DEFERRED-RESPONSE is.
  (exchange nil :read-only t)
  (memory 0 :type index :read-only t)   ; the memory of its request, in octets
  (end nil :type (or null fixnum) :read-only t) ; its deadline, in MILLISECONDS
  ;; NIL, or the function without arguments that is called when the client of DEFERRED-RESPONSE
  ;; leaves before it was answered; NIL at the end, since it may refer to much memory.
  (on-leaving nil)
  (state :pending)
  ;; True when the client of DEFERRED-RESPONSE has left, as far as that is known.
  (left-p nil)
  ;; The SHARED-QUEUE that is sent now; NIL unless the answer of DEFERRED-RESPONSE is one.
  (shared-queue nil)
  ;; True when the answer of DEFERRED-RESPONSE is a stream without an end of its own, which ends
  ;; when its engine stops.
  (endless-p nil))

(defun defer-response (constructor exchange seconds on-leaving &rest slots)
  "Makes a DEFERRED-RESPONSE that of EXCHANGE, and returns it.  Its deadline is in SECONDS, a real,
NIL for none, or :DEFAULT for what the limits say.  CONSTRUCTOR, a function, makes it with SLOTS
besides."
  (setf (exchange-deferred-response exchange)
        (apply constructor
               :application (exchange-application exchange) :engine (exchange-engine exchange)
               :connection (exchange-connection exchange) :exchange exchange
               :memory (request-memory (exchange-head exchange))
               :on-leaving on-leaving
               :end (end-after (if (eq :default seconds)
                                   (limits-reply-seconds
                                    (application-limits (exchange-application exchange)))
                                   seconds))
               slots)))

(defgeneric send-deferred-response (application deferred-response answer)
  (:documentation "Has APPLICATION send the reply of DEFERRED-RESPONSE.  ANSWER is the one that was
given, or :EXPIRED when none has come in time.  Does not wait.  Returns an outcome as SERVE does;
:DEFERRED when ANSWER is a SHARED-QUEUE, whose head was written.  Where no content follows that,
APPLICATION takes it from DEFERRED-RESPONSE."))

(defgeneric end-stream (application deferred-response)
  (:documentation "Has APPLICATION end the exchange of DEFERRED-RESPONSE, a stream that was sent
wholly.  Returns an outcome as SERVE does."))

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
         (shared-queue (or (deferred-response-shared-queue deferred-response)
                           (and (shared-queue-p state) state))))
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
               (return state)))
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
           (when (shared-queue-p answer)
             (setf (deferred-response-shared-queue deferred-response) answer))
           (let ((outcome (send-deferred-response
                           (suspended-exchange-application deferred-response)
                           deferred-response answer)))
             (cond ((deferred-response-shared-queue deferred-response)
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
             (when (eq :chunked (shared-queue-framing shared-queue))
               (check-sent (http-io http)
                           (write-to-queue (shared-queue-queue shared-queue)
                                           *last-chunk* 0 (length *last-chunk*))))
             (note-event (deferred-response-exchange deferred-response)
                         (if (member (shared-queue-announced shared-queue) '(nil 0))
                             :reply-end
                             :reply-cut))
             (setf (http-suspended-exchange http) nil
                   (deferred-response-shared-queue deferred-response) nil)
             (end-shared-queue shared-queue)
             (unwind-protect (end-stream (suspended-exchange-application deferred-response)
                                         deferred-response)
               (finish-deferred-response deferred-response)))))))
