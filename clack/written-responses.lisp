(in-package #:clack.handler.recycling)

;;;; Responses that an application writes piece by piece, in any thread.  A writer puts its pieces
;;;; into a shared queue, which is sent when the head was.  While it is full, the thread of the
;;;; function, which owns the connection, waits for the client, and other threads wait for room.
;;;;
;;;;   the queue is         the writer
;;;;   open                 takes the piece
;;;;   over, and CLOSED-P   signals REPLY-ALREADY-SENT
;;;;   over otherwise       signals CLIENT-LEFT

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

(defun signal-client-left (written)
  "Signals CLIENT-LEFT, since the client of WRITTEN is gone."
  (error 'client-left :source (written-deferred-response written)))

(defun drop-written (written)
  "Lets no thread write WRITTEN any more, and drops the pieces that were not sent."
  (end-shared-queue (written-shared-queue written)))

;;; Framing

(defun make-written (delayed status headers)
  "A WRITTEN-RESPONSE to DELAYED with STATUS and HEADERS."
  (let ((head (exchange-head (delayed-exchange delayed)))
        (deferred-response (delayed-deferred-response delayed)))
    (multiple-value-bind (framing announced)
        (framing-of-stream (head-method head) status (announced-length headers)
                           (eq :http/1.1 (head-protocol head)))
      (make-written-response
       deferred-response
       (queue-of-exchange (delayed-exchange delayed) *high-water-mark*
                          (and (integerp framing) framing))
       delayed status headers framing announced))))

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
                 (written-shared-queue written))
           (begin-shared-queue (written-shared-queue written) io)))
    (push-output io)))

(defun end-written (written)
  "Ends WRITTEN, whose octets were all sent or given to the engine."
  (let ((stream (written-stream written)))
    (note-sent-beside stream (written-shared-queue written))
    (note-event (delayed-exchange (written-delayed written))
                (if (end-reply stream) :reply-end :reply-cut))))

(defun written-to-end-p (written)
  "True when nothing more that is written to WRITTEN would be sent."
  (or (eq :none (written-framing written))
      (shared-queue-shut-p (written-shared-queue written))))

(defun end-within (written)
  "Sends the rest of WRITTEN and ends it, in the thread of the application's function."
  (if (shared-queue-ended-p (written-shared-queue written))
      (note-event (delayed-exchange (written-delayed written)) :reply-cut)
      (end-written written)))

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
  (let* ((shared-queue (written-shared-queue written))
         (delayed (written-delayed written))
         (io (delayed-io delayed)))
    (handler-case
        (if (within-function-p delayed)
            (loop while (full-p shared-queue)
                  do (await-peer io :output)
                     (flush-io io))
            ;; When the client takes little, more than one such time may pass.
            (loop until (room-awaited-p written)
                  do (unless (and (written-stream written) (engine-sends-p io))
                       (signal-client-left written))))
      (client-left ()
        (drop-written written)          ; so that no thread waits for room in vain
        (signal-client-left written)))
    (when (shared-queue-ended-p shared-queue)
      (refuse-write written))))

(defun put-piece (written octets)
  "Puts OCTETS, framed, into the shared queue of WRITTEN, and has them sent."
  (ecase (put-in-shared-queue (written-shared-queue written) octets)
    (:room (have-sent written))
    (:full (have-sent written)
           (await-room-in written))
    (:refused (await-room-in written)
              (put-piece written octets))
    (:too-long (error 'content-too-long :stream nil))
    (:over (refuse-write written))))

(defun have-sent (written)
  "Has what was put into WRITTEN sent, unless that was done at once, or will be by the poller or the
function's thread."
  (if (delayed-thread (written-delayed written))
      (send-waiting (shared-queue-queue (written-shared-queue written)))
      (have-owner-send (written-deferred-response written))))

(defun close-written (written)
  "Closes WRITTEN for its writer.  Pieces that were written are still sent."
  (setf (written-closed-p written) t)
  (when (and (close-shared-queue (written-shared-queue written))
             (not (eq :none (written-framing written))))
    (let ((delayed (written-delayed written)))
      (cond ((null (delayed-thread delayed)) (resume (written-deferred-response written)))
            ((and (within-function-p delayed) (eq :body (delayed-side delayed)))
             (end-within written))))))

(defun write-piece (written chunk start end close-p)
  "Writes CHUNK, a string, octets or NIL, from START to END, to WRITTEN.  Closes WRITTEN if
CLOSE-P."
  (let ((octets (chunk-octets chunk start end))
        (delayed (written-delayed written)))
    (unless (within-function-p delayed)
      (setf (delayed-elsewhere-p delayed) t))
    (cond ((and close-p (zerop (length octets))))
          ((shared-queue-shut-p (written-shared-queue written))
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
