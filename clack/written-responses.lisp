(in-package #:clack.handler.recycling)

;;;; Responses that an application writes piece by piece, in any thread.  A writer puts its pieces
;;;; into a shared send queue.  The thread that has the turn, or owns the connection, sends them.
;;;;
;;;;   TURN       the function                the writer's thread         and then
;;;;   NIL        has begun it, and runs      takes the turn and sends    waits for the client if it
;;;;                                                                      has to
;;;;   a thread   likewise; that thread is    leaves sending to that      waits while the queue is
;;;;              sending                     thread                      full
;;;;   :OVER      has returned, or has not    has the connection resumed  likewise
;;;;              begun it
;;;;
;;;;   the queue is         the writer
;;;;   open                 takes the piece
;;;;   over, and CLOSED-P   signals REPLY-ALREADY-SENT
;;;;   over otherwise       signals CLIENT-LEFT
;;;;
;;;; Invariants:
;;;; - Only the thread that has the turn touches the buffered connection.
;;;; - A thread that is interrupted in its turn, and writes in the interrupt, does not send, however
;;;;   full the queue is.  The piece leaves at the end of the turn, with the next piece, or when the
;;;;   function has returned.

(defstruct (written-response (:include streamed-answer) (:conc-name written-)
                             (:constructor make-written-response
                                 (deferred-response shared-queue delayed status headers framing
                                  announced turn)))
  "The response to DELAYED with STATUS and HEADERS.  FRAMING and ANNOUNCED are the two values of
FRAMING-OF-STREAM."
  (delayed nil :read-only t)
  (status nil :read-only t)
  (headers nil :read-only t)
  (framing nil :read-only t)
  (announced nil :read-only t)
  (lock (bt:make-lock "written response") :read-only t) ; held while TURN changes
  (turn nil)
  (ended (bt:make-condition-variable) :read-only t) ; notified when a turn has ended
  (stream nil))                         ; a REPLY-STREAM, when the head was sent

(defun signal-client-left (written)
  "Signals CLIENT-LEFT, since the client of WRITTEN is gone."
  (error 'client-left :source (written-deferred-response written)))

(defun drop-written (written)
  "Lets no thread write WRITTEN any more, and drops the pieces that were not sent."
  (end-shared-queue (written-shared-queue written)))

;;; Framing

(defun make-written (delayed status headers within-p)
  "A WRITTEN-RESPONSE to DELAYED with STATUS and HEADERS.  WITHIN-P is true in the call of the
application's function."
  (let ((head (exchange-head (delayed-exchange delayed)))
        (deferred-response (delayed-deferred-response delayed)))
    (multiple-value-bind (framing announced)
        (framing-of-stream (head-method head) status (announced-length headers)
                           (eq :http/1.1 (head-protocol head)))
      (make-written-response
       deferred-response
       (make-shared-queue *high-water-mark* :engine (suspended-exchange-engine deferred-response)
                                            :announced (and (integerp framing) framing))
       delayed status headers framing announced (if within-p nil :over)))))

;;; Head and end, in the thread that owns the connection

(defun begin-written (written)
  "Sends the head of WRITTEN, and prepares the stream of its content."
  (let* ((delayed (written-delayed written))
         (exchange (delayed-exchange delayed))
         (io (delayed-io delayed))
         (status (written-status written))
         (headers (written-headers written))
         (framing (written-framing written))
         (event (reply-event exchange status (and (not (eq :plain framing))
                                                 (kept-p exchange headers)))))
    (begin-limited-reply exchange)
    (with-reply (reply)
      (encode-response-head reply exchange status headers event (written-announced written))
      (whole-or-broken (io)
        (note-event exchange event)
        (write-encoded io reply)))
    (setf (written-stream written) (make-reply-stream io (io-stream io) framing)
          (delayed-written delayed) written)
    (cond ((eq :switch event)
           (setf (written-closed-p written) t)
           (drop-written written))
          ((not (eq :none framing))
           (setf (deferred-response-shared-queue (written-deferred-response written))
                 (written-shared-queue written))))
    (leave-output-to-engine io)))

(defun end-written (written)
  "Ends WRITTEN, whose octets were all sent or given to the engine."
  (let ((stream (written-stream written)))
    (note-sent-beside stream (written-shared-queue written))
    (note-event (delayed-exchange (written-delayed written))
                (if (end-reply stream) :reply-end :reply-cut))))

(defun written-to-end-p (written)
  "True when nothing more that is written to WRITTEN would be sent."
  (or (eq :none (written-framing written))
      (shared-queue-over-p (written-shared-queue written))))

(defun end-within (written)
  "Sends the rest of WRITTEN and ends it, in the thread of the application's function."
  (let ((shared-queue (written-shared-queue written))
        (delayed (written-delayed written)))
    (cond ((shared-queue-ended-p shared-queue)
           (note-event (delayed-exchange delayed) :reply-cut))
          (t
           (send-queued shared-queue (delayed-io delayed))
           (end-written written)))))

;;; Turns to send, while the function runs

(defun take-turn (written)
  "Gives the turn to the current thread, and returns :TAKEN.  Returns :BUSY if another thread has
it, and :OVER if the function has returned."
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

(defun within-turn-p (written)
  "True when the current thread has the turn: it writes in an interrupt, or in the handler of a
condition that was signalled during the turn."
  (eq (bt:current-thread) (written-turn written)))

(defun end-turns (written)
  "Waits until no thread has the turn, and lets no thread take it any more."
  (wait-until (lambda ()
                (case (written-turn written)
                  (:over t)
                  ((nil) (setf (written-turn written) :over))))
              (written-ended written) (written-lock written) nil 1/4))

(defun send-in-turn (written)
  "Sends the shared send queue of WRITTEN.  The thread of the function waits for the client only
while the queue is full, since it sends again when it writes or returns.  Any other thread waits
until the client has taken everything."
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
  "Calls SEND-IN-TURN, in a thread that may have no buffers of its own.  NIL where the client has
left."
  (handler-case (progn (if (within-function-p (written-delayed written))
                           (send-in-turn written)
                           (call-with-borrowed-worker-buffers (lambda () (send-in-turn written))))
                       t)
    ((or descriptor-broken stream-timeout) ()
      (drop-written written)            ; so that no thread waits for room in vain
      nil)))

(defun send-if-free (written)
  "Sends the shared send queue of WRITTEN if the current thread gets the turn.  Returns the value of
TAKE-TURN.  Signals CLIENT-LEFT, after the turn has ended."
  (multiple-value-bind (turn left-p)
      (with-acquired (turn (take-turn written) (when (eq :taken turn) (end-turn written)))
        (values turn (and (eq :taken turn) (not (sent-in-turn-p written)))))
    (when left-p
      (signal-client-left written))
    turn))

(defun send-within (written)
  "Sends the shared send queue of WRITTEN while the function runs, or leaves it to the thread that
is sending."
  (unless (or (eq :over (written-turn written)) (within-turn-p written))
    (loop
      (ecase (send-if-free written)
        ;; Another thread may have queued a piece while this one had the turn.
        (:taken (unless (queued-p (written-shared-queue written))
                  (return)))
        (:busy (return))
        (:over (return (resume (written-deferred-response written))))))))

;;; Writing

(defun chunk-octets (chunk start end)
  "A fresh vector of the octets of CHUNK, a string, octets or NIL, from START to END, which may be
NIL."
  (etypecase chunk
    (null (make-octets 0))
    (string                             ; a long one is copied once, or many would fill the heap
     (let* ((text (if (or end (plusp start)) (subseq chunk start end) chunk))
            (octets (make-octets (encoded-length text :utf-8))))
       (encode-string (make-output octets) text :utf-8 (length octets))
       octets))
    ((vector octet) (coerce (subseq chunk start end) 'octets))))

(defun room-awaited-p (written)
  "Waits for room in WRITTEN, up to :WRITE-TIMEOUT seconds; before the head is sent, up to
:REPLY-TIMEOUT seconds.  True when there is room."
  (let ((server (delayed-server (written-delayed written))))
    (await-room (written-shared-queue written)
                (if (written-stream written)
                    (write-seconds server)
                    (server-reply-timeout server)))))

(defun await-room-in (written)
  "Waits until there is room in WRITTEN.  Signals CLIENT-LEFT when there is none in time."
  ;; The sending thread ends the queue when the client takes nothing in time.  When the client takes
  ;; little, more than one such time may pass.
  (loop until (room-awaited-p written)
        do (unless (and (written-stream written)
                        (engine-sends-p (delayed-io (written-delayed written))))
             (drop-written written)
             (signal-client-left written))
           (send-within written))       ; the thread that had the turn may have been destroyed
  (when (shared-queue-ended-p (written-shared-queue written))
    (refuse-write written)))

(defun put-piece (written octets)
  "Puts OCTETS, framed, into the shared send queue of WRITTEN, and has them sent."
  (let ((shared-queue (written-shared-queue written))
        ;; In its turn, this thread would wait for itself if it waited for room.
        (within-turn-p (within-turn-p written)))
    (ecase (uninterruptibly             ; or a destroyed thread could leave them unsent
             (let ((result (put-in-shared-queue shared-queue octets within-turn-p)))
               (when (and (eq :over (written-turn written)) (member result '(:room :full)))
                 (resume (written-deferred-response written)))
               result))
      (:room (send-within written))
      (:full (send-within written)
             (unless within-turn-p
               (await-room-in written)))
      (:refused (send-within written)
                (await-room-in written)
                (put-piece written octets))
      (:too-long (error 'content-too-long :stream nil))
      (:over (refuse-write written)))))

(defun close-written (written)
  "Closes WRITTEN for its writer.  Pieces that were written are still sent."
  (setf (written-closed-p written) t)
  (when (uninterruptibly
          (and (close-shared-queue (written-shared-queue written))
               (not (eq :none (written-framing written)))
               (or (not (eq :over (written-turn written)))
                   (progn (resume (written-deferred-response written)) nil))))
    (send-within written)))

(defun write-piece (written chunk start end close-p)
  "Writes CHUNK, a string, octets or NIL, from START to END, to WRITTEN.  Closes WRITTEN if
CLOSE-P."
  (let ((octets (chunk-octets chunk start end))
        (delayed (written-delayed written)))
    (unless (within-function-p delayed)
      (setf (delayed-elsewhere-p delayed) t))
    (cond ((and close-p (zerop (length octets))))
          ((shared-queue-over-p (written-shared-queue written))
           (refuse-write written))
          ((or (zerop (length octets)) (eq :none (written-framing written))))
          (t
           (put-piece written (framed octets (written-framing written)))))
    (when close-p
      (close-written written)))
  (values))

(defun make-writer (written)
  "A function with which an application writes WRITTEN."
  (lambda (chunk &key (start 0) end close)
    (write-piece written chunk start end close)))
