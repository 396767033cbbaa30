(in-package #:hunchentoot-recycling-taskmaster)

;;;; Deferred replies that are streams: any thread writes, and nobody waits.
;;;;
;;;;   framing       the client is told the end by                      what is written becomes
;;;;   :CHUNKED      the last chunk                                     a chunk
;;;;   a number      the Content-Length that the handler has set        octets, no more than are left
;;;;   :PLAIN        the end of the connection (HTTP/1.0)               octets
;;;;   :NONE         nothing: the request was a HEAD, or the like       nothing

(defstruct (outgoing-stream (:include streamed-answer)
                            (:constructor make-outgoing-stream (deferred-response shared-queue framing format completion))
                            (:copier nil))
  "The content of a deferred reply, as any thread may write it.  Where its length was announced,
SHARED-QUEUE counts."
  (framing :plain :type (or (member :chunked :plain :none) content-size) :read-only t)
  (format nil :read-only t)             ; of strings
  (completion nil :read-only t))        ; what is said of the reply besides its content

(setf (documentation 'outgoing-stream-p 'function)
      "True when the argument is a stream that START-STREAM has returned.")

(define-condition stream-full (recycling-error)
  ()
  (:report "More than its high-water mark is on its way to the client already.")
  (:documentation "Signalled to who writes to a stream that has said that nobody should go on."))

(defun start-stream (reply &key status headers content-type (high-water-mark *high-water-mark*))
  "Makes REPLY, which DEFER-REPLY has deferred, a stream, and returns that, an OUTGOING-STREAM:
WRITE-OUTGOING writes to it, and CLOSE-OUTGOING ends it, in any thread.  STATUS, HEADERS and
CONTENT-TYPE are as COMPLETE-REPLY takes them.  HIGH-WATER-MARK is how many octets, an integer, may
wait for a client that does not take them.  The deadline of REPLY ends with this; status and
Content-Length are not to be changed afterwards.  A stream that nobody closes stays open until its
client leaves or the server stops.  NIL when nobody waits for REPLY any more.  Signals
ALREADY-ANSWERED."
  (let ((deferred-response (deferred-reply-deferred-response reply))
        (completion (make-completion nil status headers content-type))
        (stream nil))
    (and (call-to-answer deferred-response
                         (lambda ()
                           (setf stream (make-outgoing deferred-response completion high-water-mark))))
         stream)))

(defun draft-of (reply completion)
  "A reply with what says in REPLY how its content is framed, as COMPLETION changes that."
  (let ((hunchentoot:*reply* (make-instance 'hunchentoot:reply)))
    (setf (hunchentoot:return-code*) (hunchentoot:return-code reply))
    (when (hunchentoot:content-length reply)
      (setf (hunchentoot:content-length*) (hunchentoot:content-length reply)))
    (settle-reply completion)
    hunchentoot:*reply*))

(defun make-outgoing (deferred-response completion mark)
  "The stream of DEFERRED-RESPONSE, whose reply gets what COMPLETION says; MARK octets may wait in
it.  NIL when that reply is over."
  ;; The handler, in another thread, may have the rest of its context still; and the reply is not to
  ;; be changed before it is known that somebody waits for the stream.
  (multiple-value-bind (request reply)
      (handler-case (objects-of (deferred-response-context deferred-response))
        (client-left () (return-from make-outgoing nil)))
    (let* ((hunchentoot:*acceptor* (deferred-reply-acceptor (deferred-response-context deferred-response)))
           (hunchentoot:*request* request)
           (hunchentoot:*reply* (draft-of reply completion))
           (framing (current-framing)))
      (make-outgoing-stream deferred-response
                            (make-shared-queue mark :engine (suspended-exchange-engine deferred-response)
                                                    :announced (and (integerp framing) framing))
                            framing
                            (hunchentoot:reply-external-format reply)
                            completion))))

(defun end-with-head (deferred-response stream)
  "Lets nothing follow the head of STREAM, which DEFERRED-RESPONSE was to become: it is over, and
nobody is told of its client's leaving."
  (uninterruptibly                      ; who has one of the two only has it for ever
    (setf (deferred-response-shared-queue deferred-response) nil)
    (end-shared-queue (outgoing-stream-shared-queue stream))))

(defun settle-start (stream)
  "Gives the current reply what was said of it when it became STREAM.  Signals REPLY-FAILED."
  (handler-case (settle-reply (outgoing-stream-completion stream))
    (error (condition)
      (error 'reply-failed :reason (princ-to-string condition))))
  (unless (eql (current-framing) (outgoing-stream-framing stream))
    (error 'reply-failed :reason "Its status or length was changed after START-STREAM.")))

(defun begin-outgoing (deferred-response context stream)
  "Writes the head of STREAM, which DEFERRED-RESPONSE becomes."
  (let ((acceptor (deferred-reply-acceptor context))
        (request (deferred-reply-request context))
        (head (current-head)))
    (setf (deferred-response-shared-queue deferred-response) (outgoing-stream-shared-queue stream)
          (deferred-response-answer deferred-response) nil) ; it is begun
    (handler-case
        (progn
          (settle-start stream)
          (unwind-protect               ; HEAD requests are left by a throw
               (start-streaming acceptor request head (hunchentoot:return-code*))
            (when (eq :none (outgoing-stream-framing stream))
              (end-with-head deferred-response stream)))
          (leave-output-to-engine (http-io (current-http-connection))))
      ((or invalid-header reply-failed) (condition)
        (end-with-head deferred-response stream)
        (report-error acceptor request head condition nil)))))

;;; Octets

(defun outgoing-octets (data start end format)
  "The octets of DATA, a string in FORMAT or a vector of octets, from START to END, in a vector that
is nobody else's."
  (coerce (if (stringp data)
              (flexi-streams:string-to-octets data :start start :end end :external-format format)
              (subseq data start end))
          'octets))

(defun write-outgoing (stream data &key (start 0) end wait)
  "Writes DATA, a string or a vector of octets, from START to END, to STREAM, an OUTGOING-STREAM.
It leaves at once, as far as the client takes it.  True when more may be written; NIL when more than
the high-water mark is on its way, so that nobody should write before CALL-WHEN-WRITABLE calls.
When WAIT, waits for that instead: up to WAIT seconds, a real, or for ever where it is T; but not in
the handler itself, nor in a function that CALL-WHEN-WRITABLE calls, since nothing leaves before
they have returned.

Signals STREAM-FULL when it has returned NIL before, and nothing was taken since; CONTENT-TOO-LONG,
and nothing is written, where the head has announced less; and CLIENT-LEFT when the client has left,
or STREAM was closed or has ended, as it does with the head where a client has asked for no more;
unless the client has left and its reply has an :ON-ABANDON, which is told of that once: then it
returns NIL."
  (let ((end (or end (length data))))
    (or (= start end)
        (write-octets stream (outgoing-octets data start end (outgoing-stream-format stream)) wait))))

(defun write-octets (stream octets wait)
  "Writes OCTETS, which nobody changes any more, to STREAM.  WAIT and values are as in
WRITE-OUTGOING."
  (if (eq :none (outgoing-stream-framing stream))
      (or (not (shared-queue-over-p (outgoing-stream-shared-queue stream)))
          (refuse-octets stream))
      (write-framed stream (framed octets (outgoing-stream-framing stream)) wait)))

(defun left-and-told-p (stream)
  "True when the client of STREAM has left, and the :ON-ABANDON of its reply was told, or is being
told."
  (let ((deferred-response (outgoing-stream-deferred-response stream)))
    (and (deferred-response-left-p deferred-response)
         (deferred-response-on-leaving deferred-response)
         t)))

(defun refuse-octets (stream)
  "Tells who writes to STREAM, which is over; NIL where he was told."
  (unless (left-and-told-p stream)
    (error 'client-left)))

(defun write-framed (stream octets wait)
  "Writes OCTETS, which nobody changes any more, as they are to STREAM.  WAIT and values are as in
WRITE-OUTGOING."
  (let ((shared-queue (outgoing-stream-shared-queue stream))
        (deferred-response (outgoing-stream-deferred-response stream)))
    (ecase (uninterruptibly             ; who is destroyed amid it would leave them unsent
             (let ((result (put-in-shared-queue shared-queue octets)))
               (when (member result '(:room :full))
                 (resume deferred-response))
               result))
      ((:room :full)
       (or (not (full-p shared-queue))
           (room-came-p stream wait)))
      (:refused
       (if (room-came-p stream wait)
           (write-framed stream octets wait)
           (error 'stream-full)))
      (:too-long
       (error 'content-too-long :stream nil))
      (:over
       (refuse-octets stream)))))

(defun room-came-p (stream wait)
  "Waits for room in STREAM as WAIT says, unless the current thread is the one that would make it.
True when there is some."
  (and wait
       (not (eq (bt:current-thread) (deferred-response-owner (outgoing-stream-deferred-response stream))))
       (await-room (outgoing-stream-shared-queue stream) (if (eq t wait) nil wait))))

(defun call-when-writable (stream function)
  "Calls FUNCTION, without arguments, once, when the system has taken what waits for the client of
STREAM, or half of what the high-water mark allows was taken at once; or when the client has left;
at once if nothing has to be waited for.  Called in any thread, so FUNCTION must not wait.  Never
called where STREAM is over already, and the :ON-ABANDON of the reply is what tells that its client
has left: who writes and asks in turns would go on for ever."
  (let ((shared-queue (outgoing-stream-shared-queue stream)))
    (unless (and (shared-queue-shut-p shared-queue) (left-and-told-p stream))
      (call-when-room shared-queue function))))

(defun close-outgoing (stream)
  "Ends STREAM, an OUTGOING-STREAM: what was written is still sent, and then the reply is complete.
True for the first who does so, unless the client has left before."
  (uninterruptibly
    (when (close-shared-queue (outgoing-stream-shared-queue stream))
      (resume (outgoing-stream-deferred-response stream))
      t)))

(defun outgoing-open-p (stream)
  "True while STREAM, an OUTGOING-STREAM, was not closed, and its client has not left, as far as
that is known."
  (let ((deferred-response (outgoing-stream-deferred-response stream)))
    (not (or (deferred-response-left-p deferred-response)
             (shared-queue-over-p (outgoing-stream-shared-queue stream))))))
