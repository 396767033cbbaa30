(in-package #:clack.handler.recycling)

;;;; Delayed responses: the application returns a function, and the server calls it with a
;;;; responder.  Any thread may call the responder, at any time.  It gives the responder a whole
;;;; response, or one without a body; then it gets a writer, another function, for the body.  The
;;;; server's later.lisp has the states of all responses that come later.
;;;;
;;;;   the responder is called                  with a whole response:  with one without a body:
;;;;   by the application's function, in its    it is sent now          its head is sent now
;;;;   call
;;;;   elsewhere, before the function has       it is sent when the     likewise
;;;;   returned                                 function has returned
;;;;   elsewhere, after that                    a worker sends it       likewise
;;;;   for the second time                      REPLY-ALREADY-SENT      REPLY-ALREADY-SENT
;;;;   again, after the first response failed   it is taken as the      likewise
;;;;   to leave and signalled an error          first
;;;;   after the client has left, or the        nothing is sent         the writer signals
;;;;   response has timed out                                           CLIENT-LEFT
;;;;
;;;;   when the function has returned,          and the connection      then
;;;;   the response is over                                             the next request is read
;;;;   it is not                                needs no worker         the connection waits
;;;;   it is not                                needs its worker        the worker waits with it
;;;;
;;;;   when the function was left by an error or a throw,
;;;;   the response has begun                                           it is cut
;;;;   it has not                                                       500 is sent
;;;;
;;;;   after :REPLY-TIMEOUT seconds             then
;;;;   the responder was not called             504 is sent (503, earlier, when memory is scarce)
;;;;   only the function has used the writer    the writer is closed
;;;;   another thread has used the writer       it stays open until it is closed or the client
;;;;                                            leaves
;;;;
;;;; A writer puts its pieces into a shared queue, which is sent when the head was.  While it is
;;;; full, the thread of the function, which owns the connection, waits for the client, and other
;;;; threads wait for room.  When the queue is over, the writer signals REPLY-ALREADY-SENT if it has
;;;; closed it itself, and else CLIENT-LEFT.  socket.lisp tells what happens when the application
;;;; takes the connection over.

(defstruct (delayed (:include opaque) (:constructor make-delayed (exchange deferred-response)))
  "The response to EXCHANGE."
  (exchange nil :read-only t)
  (deferred-response nil :read-only t)
  (thread (bt:current-thread))          ; it calls the function; NIL when this has returned
  (written nil)                         ; a WRITTEN-RESPONSE that was begun, in any thread
  (elsewhere-p nil))                    ; true when anything else than the function's call answered

(defstruct (written-response (:include streamed-answer) (:conc-name written-)
                             (:constructor make-written-response
                                 (deferred-response shared-queue delayed status headers framing
                                  announced)))
  "The response to DELAYED with STATUS and HEADERS.  FRAMING and ANNOUNCED are the two values of
FRAMING-OF-STREAM."
  (delayed nil :read-only t)
  (status nil :read-only t)
  (headers nil :read-only t)
  (framing nil :read-only t)
  (announced nil :read-only t)
  (stream nil))                         ; a REPLY-STREAM, when the head was sent

(defun delayed-side (delayed)
  (our-side (exchange-protocol (delayed-exchange delayed))))

(defun within-function-p (delayed)
  "True when the current thread is in the call of the function that is to answer DELAYED."
  (eq (bt:current-thread) (delayed-thread delayed)))

(defun drop-answer (answer)
  "Drops ANSWER, of a deferred response, or NIL.  A writer of it signals CLIENT-LEFT from now on."
  (when (written-response-p answer)
    (end-shared-queue (written-shared-queue answer))))

;;; Heads and ends, in the thread that owns the connection

(defun send-answer (delayed answer)
  "Sends ANSWER to DELAYED: a response with a body, :EXPIRED, or the head of a WRITTEN-RESPONSE."
  (let* ((exchange (delayed-exchange delayed))
         (io (http-io (exchange-http exchange))))
    (cond ((eq :expired answer)
           (send-text exchange 504 "Gateway Timeout"))
          ((not (written-response-p answer))
           (send-response exchange answer))
          (t
           (begin-limited-reply exchange)
           (with-reply (reply)
             (let ((event (encode-response-head reply exchange
                                                (written-status answer) (written-headers answer)
                                                (written-announced answer)))
                   (shared-queue (written-shared-queue answer)))
               (whole-or-broken (io)
                 (note-event exchange event)
                 (write-encoded io reply))
               (setf (written-stream answer)
                     (make-reply-stream io (io-stream io) (written-framing answer))
                     (delayed-written delayed) answer)
               (cond ((eq :switch event)
                      (setf (written-closed-p answer) t)
                      (drop-answer answer))
                     ((not (eq :none (written-framing answer)))
                      (setf (deferred-response-shared-queue (delayed-deferred-response delayed))
                            shared-queue)
                      (begin-shared-queue shared-queue io)))))
           (push-output io)))))

(defun end-written (written &optional within-p)
  "Ends WRITTEN, whose octets were all sent or given to the engine.  If WITHIN-P, they may have been
dropped: then cuts it."
  (let ((shared-queue (written-shared-queue written))
        (stream (written-stream written)))
    (note-event (delayed-exchange (written-delayed written))
                (cond ((and within-p (shared-queue-ended-p shared-queue)) :reply-cut)
                      (t
                       (note-sent-beside stream shared-queue)
                       (if (end-reply stream) :reply-end :reply-cut))))))

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

(defun await-room-in (written)
  "Waits until there is room in WRITTEN: for :WRITE-TIMEOUT seconds in which its client takes
nothing, and before the head is sent, for :REPLY-TIMEOUT seconds.  Signals CLIENT-LEFT when there is
none in time."
  (let* ((shared-queue (written-shared-queue written))
         (delayed (written-delayed written))
         (exchange (delayed-exchange delayed))
         (server (exchange-application exchange))
         (io (http-io (exchange-http exchange))))
    (flet ((signal-client-left ()
             (error 'client-left :source (written-deferred-response written))))
      (handler-case
          (if (within-function-p delayed)
              (loop while (full-p shared-queue)
                    do (await-peer io :output)
                       (flush-io io))
              ;; When the client takes little, more than one such time may pass.
              (loop until (await-room shared-queue (if (written-stream written)
                                                       (write-seconds server)
                                                       (server-reply-timeout server)))
                    do (unless (and (written-stream written) (engine-sends-p io))
                         (signal-client-left))))
        (client-left ()
          (drop-answer written)         ; so that no thread waits for room in vain
          (signal-client-left))))
    (when (shared-queue-ended-p shared-queue)
      (refuse-write written))))

(defun put-piece (written octets)
  "Puts OCTETS, framed, into the shared queue of WRITTEN, and has them sent.  Waits for room."
  (loop
    (let ((result (put-in-shared-queue (written-shared-queue written) octets)))
      (ecase result
        ((:room :full)
         ;; Unless they were sent at once, or will be by the poller or the function's thread.
         (if (delayed-thread (written-delayed written))
             (send-waiting (shared-queue-queue (written-shared-queue written)))
             (have-owner-send (written-deferred-response written))))
        (:refused)
        (:too-long (error 'content-too-long :stream nil))
        (:over (refuse-write written)))
      (unless (eq :room result)
        (await-room-in written))
      (unless (eq :refused result)
        (return)))))

(defun close-written (written)
  "Closes WRITTEN for its writer.  Pieces that were written are still sent."
  (setf (written-closed-p written) t)
  (when (and (close-shared-queue (written-shared-queue written))
             (not (eq :none (written-framing written))))
    (let ((delayed (written-delayed written)))
      (cond ((null (delayed-thread delayed))
             (resume (written-deferred-response written)))
            ((and (within-function-p delayed) (eq :body (delayed-side delayed)))
             (end-written written t))))))

(defun make-writer (written)
  "A function with which an application writes WRITTEN: a string, octets or NIL, from START to END.
It closes WRITTEN if CLOSE."
  (lambda (chunk &key (start 0) end close)
    (let* ((octets (chunk-octets chunk start end))
           (empty-p (zerop (length octets)))
           (delayed (written-delayed written)))
      (unless (within-function-p delayed)
        (setf (delayed-elsewhere-p delayed) t))
      (cond ((and close empty-p))
            ((shared-queue-shut-p (written-shared-queue written))
             (refuse-write written))
            ((or empty-p (eq :none (written-framing written))))
            (t
             (put-piece written (framed octets (written-framing written)))))
      (when close
        (close-written written))
      (values))))

;;; The responder

(defun make-written (delayed status headers)
  "A WRITTEN-RESPONSE to DELAYED with STATUS and HEADERS."
  (let* ((exchange (delayed-exchange delayed))
         (head (exchange-head exchange)))
    (multiple-value-bind (framing announced)
        (framing-of-stream (head-method head) status (announced-length headers)
                           (eq :http/1.1 (head-protocol head)))
      (make-written-response
       (delayed-deferred-response delayed)
       (queue-of-exchange exchange *high-water-mark* (and (integerp framing) framing))
       delayed status headers framing announced))))

(defun send-within-function (delayed written)
  "Sends the answer to DELAYED in the call of its function.  WRITTEN is the WRITTEN-RESPONSE, or NIL
for a whole response.  If sending fails before anything has left, the function may answer once more.
A client that is gone is not a failure here: the writer signals it."
  (let ((deferred-response (delayed-deferred-response delayed))
        (over-p nil))
    (flet ((cut ()
             (note-event (delayed-exchange delayed) :reply-cut)
             (drop-answer written)))
      (unwind-protect
           (handler-case
               (multiple-value-bind (answer come-p) (take-answer deferred-response)
                 (when come-p
                   (send-answer delayed answer)
                   ;; The function may run on for long.
                   (setf (deferred-response-answer deferred-response) nil))
                 (setf over-p t))
             ((or descriptor-broken stream-timeout) ()
               (cut)
               (setf over-p t)))
        (cond (over-p)
              ((eq :idle (delayed-side delayed))
               (drop-answer written)
               (reopen-deferred-response deferred-response))
              (t
               (cut)))))))

(defun give-response (delayed response)
  "Answers DELAYED with RESPONSE.  Returns a writer if that has no body, else NIL.  Signals
REPLY-ALREADY-SENT."
  (check-response response)
  (let ((within-p (within-function-p delayed))
        (written (and (null (cddr response))
                      (make-written delayed (first response) (second response)))))
    (when (and within-p (not (eq :idle (delayed-side delayed))))
      (error 'reply-already-sent))      ; it was answered, or its connection was taken over
    (unless within-p
      (setf (delayed-elsewhere-p delayed) t))
    (cond ((not (answer-deferred-response (delayed-deferred-response delayed)
                                          (or written response)))
           (drop-answer written))
          (within-p
           (send-within-function delayed written)))
    (and written (make-writer written))))

;;; When the function has returned

(defun leave-response (delayed)
  "Leaves DELAYED to the threads that will answer or write it.  A writer that the function has left
open is closed after :REPLY-TIMEOUT seconds unless another thread has used it by then."
  (let* ((exchange (delayed-exchange delayed))
         (written (delayed-written delayed))
         (seconds (server-reply-timeout (exchange-application exchange))))
    (flet ((unused-p ()
             (not (or (delayed-elsewhere-p delayed)
                      (shared-queue-shut-p (written-shared-queue written))))))
      (when (and written seconds (unused-p))
        (let ((timer (schedule (exchange-engine exchange) seconds
                               (lambda ()
                                 (when (unused-p)
                                   (close-written written))))))
          ;; The timer refers to the request and the response.  With many clients that come and go,
          ;; pending timers would hold too much memory.
          (call-when-over (written-shared-queue written) (lambda () (cancel timer))))))
    (setf (http-suspended-exchange (exchange-http exchange))
          (delayed-deferred-response delayed))))

(defun respond-later (exchange function)
  "Calls FUNCTION, which the application has returned for the request of EXCHANGE, with a responder.
The response may come later."
  (let* ((server (exchange-application exchange))
         (deferred-response (make-deferred-response
                             exchange (end-after (server-reply-timeout server)) nil))
         (delayed (make-delayed exchange deferred-response)))
    (setf (deferred-response-context deferred-response) delayed
          ;; Last, since the end of the exchange uses the context.
          (exchange-deferred-response exchange) deferred-response)
    (labels ((withdraw ()
               (withdraw-deferred-response deferred-response)
               (drop-answer (take-answer deferred-response)))
             (give-up ()
               (setf (delayed-thread delayed) nil)
               (withdraw)
               (drop-answer (delayed-written delayed)))
             (settle (written)
               (ecase (delayed-side delayed)
                 (:idle (leave-response delayed))
                 (:body (if (or (eq :none (written-framing written))
                                (shared-queue-shut-p (written-shared-queue written)))
                            (end-written written t)
                            (leave-response delayed)))
                 ((:done :switched :error) ; perhaps without the responder
                  (withdraw)))))
      (unless-returned (progn
                         (funcall function (lambda (response) (give-response delayed response)))
                         (let ((socket (exchange-upgrade exchange)))
                           (when (and socket (websocket-on-message socket))
                             (take-over exchange)))
                         (setf (delayed-thread delayed) nil)
                         (order-memory) ; a thread that closes the writer reads that next
                         (if (lift-handler-limit exchange)
                             (settle (delayed-written delayed))
                             (give-up)))
        (give-up)))))

;;; What the server asks when the answer comes, and at the end

(defmethod send-deferred-response ((server clack-server) deferred-response answer)
  (let* ((delayed (deferred-response-context deferred-response))
         (exchange (delayed-exchange delayed)))
    (handler-case (send-answer delayed answer)
      ((or descriptor-broken stream-timeout) (condition)
        (error condition))              ; the end of the connection drops ANSWER
      (error (condition)
        (drop-answer answer)
        (report-failure exchange condition nil)))
    (cond ((not (eq :body (delayed-side delayed)))
           (conclude-request exchange))
          ((eq :none (written-framing answer))
           (end-written answer)
           (conclude-request exchange))
          (t
           :deferred))))

(defmethod end-stream ((server clack-server) deferred-response shared-queue)
  (declare (ignore shared-queue))
  (let ((delayed (deferred-response-context deferred-response)))
    (end-written (delayed-written delayed))
    (conclude-request (delayed-exchange delayed))))

(defmethod drop-deferred ((server clack-server) deferred-response)
  (let ((exchange (delayed-exchange (deferred-response-context deferred-response))))
    (note-served exchange)
    (abandon-content (exchange-http exchange))))
