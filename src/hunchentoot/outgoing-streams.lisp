(in-package #:hunchentoot-recycling-taskmaster)

;;;; Deferred replies that are streams: any thread writes them, and does not wait for the client.
;;;;
;;;;   framing     the end of the content is               written data becomes
;;;;   :CHUNKED    the last chunk                          a chunk
;;;;   a number    the announced Content-Length            octets, no more than were announced
;;;;   :PLAIN      the end of the connection (HTTP/1.0)    octets
;;;;   :NONE       not sent (in a reply to HEAD, say)      nothing

(defstruct (outgoing-stream (:include streamed-answer)
                            (:constructor make-outgoing-stream
                                (deferred-response shared-queue framing format completion))
                            (:copier nil))
  "A deferred reply whose content any thread may write.  SHARED-QUEUE counts the octets of an
announced length."
  (framing :plain :type (or (member :chunked :plain :none) content-size) :read-only t)
  (format nil :read-only t)             ; the external format of strings
  (completion nil :read-only t))        ; status and headers, a COMPLETION

(setf (documentation 'outgoing-stream-p 'function)
      "True when OBJECT, the argument, is an OUTGOING-STREAM; see START-STREAM.")

(defun start-stream (reply &key status headers content-type (high-water-mark *high-water-mark*))
  "Makes REPLY, which DEFER-REPLY has deferred, a stream.  Returns an OUTGOING-STREAM;
WRITE-OUTGOING writes to it and CLOSE-OUTGOING ends it, in any thread.  Returns NIL when the client
has left or the time of REPLY has run out.

STATUS, HEADERS and CONTENT-TYPE are as COMPLETE-REPLY takes them.  HIGH-WATER-MARK is how many
octets, an integer, may wait for a client that does not take them.  REPLY has no deadline from now
on, and its status and Content-Length must not change.  A stream that is not closed stays open until
the client leaves or the server stops.  Signals REPLY-ALREADY-SENT."
  (let ((deferred-response (deferred-reply-deferred-response reply))
        (completion (make-completion nil status headers content-type))
        (stream nil))
    (and (call-to-answer deferred-response
                         (lambda ()
                           (setf stream
                                 (make-outgoing deferred-response completion high-water-mark))))
         stream)))

(defun draft-of (reply completion)
  "A fresh reply with those facts of REPLY, changed by COMPLETION, on which the framing depends."
  (let ((hunchentoot:*reply* (make-instance 'hunchentoot:reply)))
    (setf (hunchentoot:return-code*) (hunchentoot:return-code reply))
    (when (hunchentoot:content-length reply)
      (setf (hunchentoot:content-length*) (hunchentoot:content-length reply)))
    (settle-reply completion)
    hunchentoot:*reply*))

(defun make-outgoing (deferred-response completion mark)
  "An OUTGOING-STREAM for DEFERRED-RESPONSE, with the status and headers of COMPLETION, in which
MARK octets may wait.  NIL when the reply is over."
  ;; A draft of the reply, since the handler may still use the reply in another thread, and the
  ;; reply must stay as it is if the stream comes too late.
  (multiple-value-bind (request reply)
      (handler-case (objects-of (deferred-response-context deferred-response))
        (client-left () (return-from make-outgoing nil)))
    (let* ((context (deferred-response-context deferred-response))
           (hunchentoot:*acceptor* (deferred-reply-acceptor context))
           (hunchentoot:*request* request)
           (hunchentoot:*reply* (draft-of reply completion))
           (framing (current-framing))
           (queue (queue-of-exchange (deferred-response-exchange deferred-response) mark
                                     (and (integerp framing) framing))))
      (make-outgoing-stream deferred-response queue framing
                            (hunchentoot:reply-external-format reply)
                            completion))))

(defun end-with-head (deferred-response stream)
  "Ends STREAM, the answer to DEFERRED-RESPONSE, after its head: no content follows."
  (setf (deferred-response-shared-queue deferred-response) nil)
  (end-shared-queue (outgoing-stream-shared-queue stream)))

(defun settle-start (stream)
  "Sets the status and headers of STREAM in the current reply.  Signals REPLY-FAILED."
  (handler-case (settle-reply (outgoing-stream-completion stream))
    (error (condition)
      (error 'reply-failed :reason (princ-to-string condition))))
  (unless (eql (current-framing) (outgoing-stream-framing stream))
    (error 'reply-failed :reason "Its status or length was changed after START-STREAM.")))

(defun begin-outgoing (deferred-response context stream)
  "Sends the head of STREAM, the answer to DEFERRED-RESPONSE, in CONTEXT."
  (let ((acceptor (deferred-reply-acceptor context))
        (request (deferred-reply-request context)))
    (setf (deferred-response-shared-queue deferred-response) (outgoing-stream-shared-queue stream)
          (deferred-response-answer deferred-response) nil) ; the answer has begun
    (handler-case
        (progn
          (settle-start stream)
          (unwind-protect               ; HEAD requests are left by a throw
               (start-streaming acceptor request (hunchentoot:return-code*))
            (when (eq :none (outgoing-stream-framing stream))
              (end-with-head deferred-response stream)))
          (push-output (http-io (current-http-connection))))
      ((or invalid-header reply-failed) (condition)
        (end-with-head deferred-response stream)
        (report-error acceptor request condition nil)))))

;;; Octets

(defun outgoing-octets (data start end format)
  "A fresh vector of the octets of DATA, a string in FORMAT or a vector of octets, from START to
END."
  (coerce (if (stringp data)
              (flexi-streams:string-to-octets data :start start :end end :external-format format)
              (subseq data start end))
          'octets))

(defun write-outgoing (stream data &key (start 0) end wait)
  "Writes DATA, a string or a vector of octets, from START to END, to STREAM, an OUTGOING-STREAM.
The octets leave at once, as far as the client takes them.  True when more may be written.  NIL when
more octets than the high-water mark are unsent: CALL-WHEN-WRITABLE tells when to go on.

WAIT is NIL, a number of seconds, a real, or T for no limit: the call waits that long for room.  It
never waits in the handler itself, nor in a function that CALL-WHEN-WRITABLE calls, since nothing
leaves before these have returned.

Signals STREAM-FULL when an earlier call has returned NIL and the client has taken nothing since.
Signals CONTENT-TOO-LONG, and writes nothing, when DATA exceeds the announced length.  Signals
REPLY-ALREADY-SENT after CLOSE-OUTGOING; otherwise CLIENT-LEFT when the client has left, the server
has stopped, or the reply has no content, as the reply to HEAD."
  (write-octets stream
                (outgoing-octets data start (or end (length data)) (outgoing-stream-format stream))
                wait))

(defun write-octets (stream octets wait)
  "Writes OCTETS, which do not change any more, to STREAM.  WAIT and values are as in
WRITE-OUTGOING."
  (let ((framing (outgoing-stream-framing stream)))
    (cond ((shared-queue-shut-p (outgoing-stream-shared-queue stream))
           (refuse-write stream))
          ((or (eq :none framing) (zerop (length octets))))
          (t
           (write-framed stream (framed octets framing) wait)))))

(defun write-framed (stream octets wait)
  "Writes OCTETS, which are framed and do not change any more, to STREAM.  WAIT and values are as in
WRITE-OUTGOING."
  (let ((shared-queue (outgoing-stream-shared-queue stream))
        (deferred-response (outgoing-stream-deferred-response stream)))
    (ecase (put-in-shared-queue shared-queue octets)
      (:room
       (have-owner-send deferred-response)
       t)
      (:full
       (have-owner-send deferred-response)
       (room-p stream wait))
      (:refused
       (if (room-p stream wait)
           (write-framed stream octets wait)
           (error 'stream-full)))
      (:too-long
       (error 'content-too-long :stream nil))
      (:over
       (refuse-write stream)))))

(defun room-p (stream wait)
  "True when STREAM has room, for which this waits as WAIT says, unless the current thread is the
one that would make room.  Signals CLIENT-LEFT."
  (let* ((shared-queue (outgoing-stream-shared-queue stream))
         (owner (deferred-response-owner (outgoing-stream-deferred-response stream)))
         (room-p (if (and wait (not (eq (bt:current-thread) owner)))
                     (await-room shared-queue (if (eq t wait) nil wait))
                     (not (full-p shared-queue)))))
    (when (and (shared-queue-ended-p shared-queue)
               (not (outgoing-stream-closed-p stream))) ; else the octets may have been sent
      (refuse-write stream))
    room-p))

(defun call-when-writable (stream function)
  "Calls FUNCTION, without arguments, once, when STREAM, an OUTGOING-STREAM, has room: at once if it
has room now, else when a send has left at most half of the high-water mark, or a slow client has
taken everything.  Also calls it when STREAM is over; then a write signals why.  Any thread may make
the call, so FUNCTION must not wait.  An error in FUNCTION is logged, except CLIENT-LEFT, by which a
writer ends."
  (call-when-room (outgoing-stream-shared-queue stream) function))

(defun close-outgoing (stream)
  "Ends STREAM, an OUTGOING-STREAM.  Octets that were written are still sent, and then the reply is
complete.  True for the first call, unless the client has left before."
  (setf (outgoing-stream-closed-p stream) t)
  (when (close-shared-queue (outgoing-stream-shared-queue stream))
    (resume (outgoing-stream-deferred-response stream))
    t))

(defun outgoing-open-p (stream)
  "True while STREAM, an OUTGOING-STREAM, is not closed and its client is not known to have left."
  (let ((deferred-response (outgoing-stream-deferred-response stream)))
    (not (or (deferred-response-left-p deferred-response)
             (shared-queue-shut-p (outgoing-stream-shared-queue stream))))))
