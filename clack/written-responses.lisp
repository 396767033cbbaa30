(in-package #:clack.handler.recycling)

;;;; Responses that an application writes piece by piece, in any thread.  What is written goes to a
;;;; shared send queue; who has the turn, or owns the connection, sends it.
;;;;
;;;;   TURN       the function of the application       who writes                     and then
;;;;   NIL        has begun it, and runs                takes the turn                 sends, and waits for the client
;;;;                                                                                   as far as needed
;;;;   a thread   likewise; the thread sends            leaves it to that              waits while the shared send queue is full
;;;;   :OVER      has returned, or was not concerned    has the connection visited     likewise
;;;;
;;;;   the shared send queue is  the writer
;;;;   open                 takes what is written
;;;;   over, CLOSED-P       signals RESPONSE-OVER
;;;;   over otherwise       signals CLIENT-LEFT
;;;;
;;;; Invariants: who has the turn is the only one that touches the buffered connection, but for who
;;;; reads the request's content; while that has not all come, who sends has the body's turn, too,
;;;; since a buffered connection's two directions may be one (of TLS).  Who writes amid its own
;;;; turn, or that of the body, as a handler of a time limit does, does not send: that leaves with
;;;; the turn, or with what is written next, or when the function has returned, however full the
;;;; shared send queue is.

(defstruct (written-response (:include streamed-answer) (:conc-name written-)
                             (:constructor make-written-response
                                 (deferred-response shared-queue delayed status headers framing said turn)))
  "The response to DELAYED with STATUS and HEADERS; FRAMING and what is SAID of it are as
FRAMING-OF-STREAM has them."
  (delayed nil :read-only t)
  (status nil :read-only t)
  (headers nil :read-only t)
  (framing nil :read-only t)
  (said nil :read-only t)
  (lock (bt:make-lock "written response") :read-only t) ; held while TURN changes
  (turn nil)
  (ended (bt:make-condition-variable) :read-only t) ; notified when a turn has ended
  (closed-p nil)                        ; the application has closed it
  (stream nil))                         ; a REPLY-STREAM, when the head was sent

(defun tell-of-leaving (written)
  "Signals that nobody gets WRITTEN any more."
  (error 'client-left :within-p (within-function-p (written-delayed written))))

(defun drop-written (written)
  "Lets nobody write WRITTEN any more, and drops what was written and not sent."
  (end-shared-queue (written-shared-queue written)))

;;; How it is framed

(defun make-written (delayed status headers within-p)
  "The response to DELAYED, to be written, with STATUS and HEADERS; the function of the application
has begun it if WITHIN-P."
  (let ((head (exchange-head (delayed-exchange delayed)))
        (deferred-response (delayed-deferred-response delayed)))
    (multiple-value-bind (framing said)
        (framing-of-stream (head-method head) status (announced-length headers)
                           (eq :http/1.1 (head-protocol head)))
      (make-written-response deferred-response
                             (make-shared-queue *high-water-mark*
                                                :engine (suspended-exchange-engine deferred-response)
                                                :announced (and (integerp framing) framing))
                             delayed status headers framing said (if within-p nil :over)))))

;;; Head and end, by who owns the connection

(defun begin-written (written)
  "Sends the head of WRITTEN, and prepares the rest."
  (let* ((delayed (written-delayed written))
         (exchange (delayed-exchange delayed))
         (io (delayed-io delayed))
         (status (written-status written))
         (headers (written-headers written))
         (framing (written-framing written))
         (event (reply-event status (and (not (eq :plain framing))
                                         (kept-p exchange headers)))))
    (with-reply (reply)
      (encode-response-head reply exchange status headers event (written-said written))
      (whole-or-broken (io)
        (note-event exchange event)
        (write-encoded io reply)))
    (setf (written-stream written) (make-reply-stream io (io-stream io) framing)
          (delayed-written delayed) written)
    (cond ((eq :switch event)
           (setf (written-closed-p written) t)
           (drop-written written))
          ((not (eq :none framing))
           (setf (deferred-response-shared-queue (written-deferred-response written)) (written-shared-queue written))))
    (leave-output-to-engine io)))

(defun end-written (written)
  "Ends WRITTEN, all of which was sent, or is the engine's to send."
  (let ((stream (written-stream written)))
    (note-sent-beside stream (written-shared-queue written))
    (note-event (delayed-exchange (written-delayed written))
                (if (end-reply stream) :reply-end :reply-cut))))

(defun written-to-end-p (written)
  "True when nothing can be written to WRITTEN any more that would be sent."
  (or (eq :none (written-framing written))
      (shared-queue-over-p (written-shared-queue written))))

(defun end-within (written)
  "Ends WRITTEN while the function of the application runs, or when that has returned."
  (let ((shared-queue (written-shared-queue written))
        (delayed (written-delayed written)))
    (cond ((shared-queue-ended-p shared-queue)
           (note-event (delayed-exchange delayed) :reply-cut))
          (t
           (send-queued shared-queue (delayed-io delayed))
           (end-written written)))))

;;; Whose turn it is to send, while the function runs

(defun take-turn (written)
  "Gives the turn to the current thread: :TAKEN; :BUSY where somebody else has it; :OVER when the
function has returned."
  (with-lock-briefly ((written-lock written))
    (cond ((eq :over (written-turn written)) :over)
          ((written-turn written) :busy)
          (t
           (setf (written-turn written) (bt:current-thread))
           :taken))))

(defun end-turn (written)
  "Ends the current thread's turn."
  (with-lock-briefly ((written-lock written))
    (setf (written-turn written) nil)
    (bt:condition-notify (written-ended written))))

(defun amid-turn-p (written)
  "True when the current thread has the turn, or that of the body: a condition was signalled amid
it, and is being handled."
  (let ((thread (bt:current-thread)))
    (or (eq thread (written-turn written))
        (eq thread (raw-body-turn (delayed-body (written-delayed written)))))))

(defun end-turns (written)
  "Waits until nobody has a turn, and lets nobody have one any more."
  (wait-until (lambda ()
                (case (written-turn written)
                  (:over t)
                  ((nil) (setf (written-turn written) :over))))
              (written-ended written) (written-lock written) nil 1/4))

(defun send-in-turn (written)
  "Sends what is in the shared send queue of WRITTEN.  The thread of the function waits for the
client only while the shared send queue is full, since that thread will be back; any other until all
was taken."
  (let ((body (delayed-body (written-delayed written))))
    (if (raw-body-content body)
        (with-reading-turn (body)
          (send-queued-in-turn written))
        (send-queued-in-turn written))))

(defun send-queued-in-turn (written)
  (let* ((delayed (written-delayed written))
         (shared-queue (written-shared-queue written))
         (io (delayed-io delayed))
         (within-p (within-function-p delayed)))
    (loop
      (send-queued shared-queue io)
      (unless (if within-p (full-p shared-queue) (io-unsent io))
        (return))
      (send-unsent io))
    (when (and within-p (shared-queue-over-p shared-queue) (eq :body (delayed-side delayed)))
      (end-within written))))

(defun sent-in-turn-p (written)
  "Does what SEND-IN-TURN does, also in a thread that has no buffers of its own.  NIL where the
client has left."
  (handler-case (progn (if (within-function-p (written-delayed written))
                           (send-in-turn written)
                           (call-with-borrowed-worker-buffers (lambda () (send-in-turn written))))
                       t)
    ((or descriptor-broken stream-timeout) ()
      (drop-written written)            ; and nobody waits for room that there will never be
      nil)))

(defun send-if-free (written)
  "Sends what is in the shared send queue of WRITTEN if it is the current thread's turn; returns
what TAKE-TURN has said.  Signals CLIENT-LEFT, when the turn has ended."
  (multiple-value-bind (turn left-p)
      (with-acquired (turn (take-turn written) (when (eq :taken turn) (end-turn written)))
        (values turn (and (eq :taken turn) (not (sent-in-turn-p written)))))
    (when left-p
      (tell-of-leaving written))
    turn))

(defun send-within (written)
  "Has what is in the shared send queue of WRITTEN sent while the function runs."
  (unless (or (eq :over (written-turn written)) (amid-turn-p written))
    (loop
      (ecase (send-if-free written)
        ;; Another thread may have queued it while this one had the turn.
        (:taken (unless (queued-p (written-shared-queue written))
                  (return)))
        (:busy (return))
        (:over (return (resume (written-deferred-response written))))))))

;;; Writing

(defun chunk-octets (chunk start end)
  "The octets of CHUNK, a string, octets or NIL, from START to END or NIL, in a vector that is
nobody else's."
  (etypecase chunk
    (null (make-octets 0))
    (string
     (with-line (line)
       (encode-string line (subseq chunk start end) :utf-8)
       (subseq (output-octets line) 0 (output-fill line))))
    ((vector octet) (coerce (subseq chunk start end) 'octets))))

(defun refuse-piece (written)
  "Signals why nothing can be written to WRITTEN any more."
  (if (written-closed-p written)
      (error 'response-over)
      (tell-of-leaving written)))

(defun room-awaited-p (written)
  "Waits for room in WRITTEN, as long as its client may take nothing; or, until the head was sent,
as long as a response may take to come.  True when there is some."
  (let ((server (delayed-server (written-delayed written))))
    (await-room (written-shared-queue written)
                (if (written-stream written) (write-seconds server) (server-response-timeout server)))))

(defun await-room-in (written)
  "Waits until there is room in WRITTEN.  Signals CLIENT-LEFT when there is none in time."
  ;; Who sends ends the shared send queue when the client takes nothing in time; if it takes little,
  ;; more than one such time may pass.
  (loop until (room-awaited-p written)
        do (unless (and (written-stream written)
                        (engine-sends-p (delayed-io (written-delayed written))))
             (drop-written written)
             (tell-of-leaving written))
           (send-within written))       ; whose turn it was may have been destroyed
  (when (shared-queue-ended-p (written-shared-queue written))
    (refuse-piece written)))

(defun put-piece (written octets)
  "Puts OCTETS, framed, into WRITTEN, and has them sent."
  (let ((shared-queue (written-shared-queue written))
        (amid-turn-p (amid-turn-p written))) ; who would wait for room then, would wait for itself
    (ecase (uninterruptibly             ; who is destroyed amid it would leave them unsent
             (let ((result (put-in-shared-queue shared-queue octets amid-turn-p)))
               (when (and (eq :over (written-turn written)) (member result '(:room :full)))
                 (resume (written-deferred-response written)))
               result))
      (:room (send-within written))
      (:full (send-within written)
             (unless amid-turn-p
               (await-room-in written)))
      (:refused (send-within written)
                (await-room-in written)
                (put-piece written octets))
      (:too-long (error 'content-too-long :stream nil))
      (:over (refuse-piece written)))))

(defun close-written (written)
  "Ends WRITTEN for who writes it; what was written is still sent."
  (setf (written-closed-p written) t)
  (when (uninterruptibly
          (and (close-shared-queue (written-shared-queue written))
               (not (eq :none (written-framing written)))
               (or (not (eq :over (written-turn written)))
                   (progn (resume (written-deferred-response written)) nil))))
    (send-within written)))

(defun write-piece (written chunk start end close-p)
  "Writes CHUNK, a string, octets or NIL, from START to END to WRITTEN; closes that if CLOSE-P."
  (let ((octets (chunk-octets chunk start end))
        (delayed (written-delayed written)))
    (unless (within-function-p delayed)
      (setf (delayed-elsewhere-p delayed) t))
    (cond ((and close-p (zerop (length octets))))
          ((shared-queue-over-p (written-shared-queue written))
           (refuse-piece written))
          ((or (zerop (length octets)) (eq :none (written-framing written))))
          (t
           (put-piece written (framed octets (written-framing written)))))
    (when close-p
      (close-written written)))
  (values))

(defun make-writer (written)
  "The function by which an application writes WRITTEN."
  (lambda (chunk &key (start 0) end close)
    (write-piece written chunk start end close)))
