(in-package #:hunchentoot-recycling-taskmaster)

;;;; Deferred replies that are streams, of events too: any thread writes them, and does not wait for
;;;; the client.
;;;;
;;;;   framing     the end of the content is               written data becomes
;;;;   :CHUNKED    the last chunk                          a chunk
;;;;   a number    the announced Content-Length            octets, no more than were announced
;;;;   :PLAIN      the end of the connection (HTTP/1.0)    octets
;;;;   :NONE       not sent (in a reply to HEAD, say)      nothing

(defstruct (outgoing-stream (:include shared-queue) (:copier nil))
  "A deferred reply whose content any thread may write."
  (format nil :read-only t)             ; the external format of strings
  (settle nil :read-only t))            ; a function that sets status and headers in the reply

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
  (let ((stream
          (destructuring-bind (&optional request answer) (deferred-reply-objects reply)
            (when request               ; the reply is not over
              (let* ((length (or (cdr (assoc :content-length headers :test #'string-equal))
                                 (hunchentoot:content-length answer)))
                     (status (or status (hunchentoot:return-code answer)))
                     (framing (framing-for request status length)))
                (multiple-value-bind (coding varied-p)
                    (and (null length)
                         (coding-of-reply-here status nil
                                               (or content-type (hunchentoot:content-type answer))
                                               :reply answer
                                               :exchange (deferred-response-exchange reply)))
                  (make-queue
                   #'make-outgoing-stream reply high-water-mark framing coding
                   :format (hunchentoot:reply-external-format answer)
                   :settle (lambda (stream)
                             (settle-reply status headers content-type)
                             (when varied-p
                               (tell-coding status (outgoing-stream-coding stream)))))))))))
    (and (answer-deferred-response reply stream)
         stream)))

(defun begin-outgoing (deferred-response stream)
  "Sends the head of STREAM, the answer to DEFERRED-RESPONSE, in the context of that."
  (let ((framing (outgoing-stream-framing stream)))
    (flet ((end-with-head ()            ; no content follows
             (setf (deferred-response-shared-queue deferred-response) nil)
             (note-event *exchange* :reply-end)
             (end-shared-queue stream)))
      (handler-case
          (progn
            (funcall (outgoing-stream-settle stream) stream)
            (unless (eql framing
                         (framing-for hunchentoot:*request* (hunchentoot:return-code*)
                                      (hunchentoot:content-length*)))
              (error 'reply-failed
                     :reason "Its status or length was changed after START-STREAM."))
            (unwind-protect             ; HEAD requests are left by a throw
                 (let ((*hunchentoot-stream* *hunchentoot-stream*)) ; nothing is written to it
                   (start-streaming hunchentoot:*acceptor* hunchentoot:*request*
                                    (hunchentoot:return-code*) nil))
              (push-output (http-io (exchange-http *exchange*)))
              (when (eq :none framing)
                (end-with-head))))
        ;; For others, the end of the connection drops STREAM.
        ((and error (not descriptor-broken) (not stream-timeout)) (condition)
          (end-with-head)
          (report-error hunchentoot:*acceptor* hunchentoot:*request* condition nil))))))

;;; Octets

(defun write-outgoing (stream data &key (start 0) end wait)
  "Writes DATA, a string or a vector of octets, from START to END, to STREAM, an OUTGOING-STREAM.
The octets leave at once, as far as the client takes them.  True when more may be written.  NIL when
more octets than the high-water mark are unsent.

WAIT is NIL, a number of seconds, a real, or T for no limit: the call waits that long for room.  It
never waits in the handler itself, since nothing leaves before that has returned.

Signals STREAM-FULL when an earlier call has returned NIL and the client has taken nothing since.
Signals CONTENT-TOO-LONG, and writes nothing, when DATA exceeds the announced length.  Signals
REPLY-ALREADY-SENT after CLOSE-OUTGOING; otherwise CLIENT-LEFT when the client has left, the server
has stopped, or the reply has no content, as the reply to HEAD."
  (let ((end (or end (length data))))
    (write-content stream
                   (coerce (if (stringp data)
                               (flexi-streams:string-to-octets
                                data :start start :end end
                                     :external-format (outgoing-stream-format stream))
                               (subseq data start end))
                           'octets)
                   wait)))

(defun close-outgoing (stream)
  "Ends STREAM, an OUTGOING-STREAM.  Octets that were written are still sent, and then the reply is
complete.  True for the first call, unless the client has left before."
  (close-content stream))

(defun outgoing-open-p (stream)
  "True while STREAM, an OUTGOING-STREAM, is not closed and its client is not known to have left."
  (not (or (deferred-response-left-p (outgoing-stream-suspended-exchange stream))
           (shared-queue-shut-p stream))))

;;; Server-sent events (HTML Living Standard, section 9.2)

(defun start-event-stream (reply &key headers (high-water-mark *high-water-mark*) (heartbeat t))
  "Makes REPLY, which DEFER-REPLY has deferred, a stream of server-sent events.  Returns an
OUTGOING-STREAM for SEND-EVENT and SUBSCRIBE, or NIL when the client has left.  HEADERS and
HIGH-WATER-MARK are as in START-STREAM.  Further headers ask proxies not to buffer the events.  With
HEARTBEAT, the server sends it comments; see *HEARTBEAT-SECONDS*.  Every stop of the
server, also a soft one, ends the stream; its client connects again by itself.  Signals
REPLY-ALREADY-SENT."
  (setf (deferred-response-endless-p reply) t)
  (let ((stream (start-stream reply :headers (append headers '((:cache-control . "no-cache")
                                                               (:x-accel-buffering . "no")))
                                    :content-type "text/event-stream"
                                    :high-water-mark high-water-mark)))
    (when (and stream heartbeat
               ;; Comments would use up the announced length.
               (not (shared-queue-announced stream)))
      (begin-heartbeat
       (suspended-exchange-application (outgoing-stream-suspended-exchange stream)) stream))
    stream))

(defun send-event (stream data &key event id retry wait)
  "Sends an event to STREAM, an OUTGOING-STREAM of START-EVENT-STREAM.  DATA is a string of any
number of lines, or NIL.  EVENT, the type, and ID, the identifier, are strings, objects that PRINC
makes strings of, or NIL.  RETRY is after how many milliseconds the client connects again when the
connection has ended, an integer or NIL.  WAIT, values and conditions are as in WRITE-OUTGOING.
Signals MALFORMED-EVENT, too."
  (write-content stream (encode-event data :event event :id id :retry retry) wait))

(defun send-comment (stream text &key wait)
  "Sends TEXT, a string, as a comment to STREAM, an OUTGOING-STREAM of START-EVENT-STREAM.  The
client ignores it, but proxies see that the connection is alive.  WAIT, values and conditions are as
in SEND-EVENT."
  (write-content stream (encode-comment text) wait))

(defun last-event-id (&key (request hunchentoot:*request*))
  "The identifier of the last event that the client of REQUEST got before its connection ended, a
string; NIL where the client tells none (HTML Living Standard, section 9.2.4)."
  (let ((id (hunchentoot:header-in :last-event-id request)))
    ;; Clients send UTF-8, and heads are read as Latin-1.
    (and id
         (utf-8-text (map 'octets #'char-code id)))))
