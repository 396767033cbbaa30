(in-package #:hunchentoot-recycling-taskmaster)

;;;; Server-sent events (HTML Living Standard, section 9.2): deferred replies that are streams of
;;;; events.

(defun start-event-stream (reply &key headers (high-water-mark *high-water-mark*) (heartbeat t))
  "Makes REPLY, which DEFER-REPLY has deferred, a stream of server-sent events.  Returns an
OUTGOING-STREAM for SEND-EVENT and SUBSCRIBE, or NIL when the client has left.  HEADERS and
HIGH-WATER-MARK are as in START-STREAM.  Further headers ask proxies not to buffer the events.  With
HEARTBEAT, the server sends comments to a silent stream; see *HEARTBEAT-SECONDS*.  Every stop of the
server, also a soft one, ends the stream; its client connects again by itself.  Signals
REPLY-ALREADY-SENT."
  (setf (deferred-response-endless-p (deferred-reply-deferred-response reply)) t)
  (let ((stream (start-stream reply :headers (append headers '((:cache-control . "no-cache")
                                                               (:x-accel-buffering . "no")))
                                    :content-type "text/event-stream"
                                    :high-water-mark high-water-mark)))
    (when (and stream heartbeat
               ;; Comments would use up the announced length.
               (not (shared-queue-announced (outgoing-stream-shared-queue stream))))
      (begin-heartbeat
       (suspended-exchange-application (outgoing-stream-deferred-response stream)) stream))
    stream))

(defun send-event (stream data &key event id retry wait)
  "Sends an event to STREAM, an OUTGOING-STREAM of START-EVENT-STREAM.  DATA is a string of any
number of lines, or NIL.  EVENT, the type, and ID, the identifier, are strings, objects that PRINC
makes strings of, or NIL.  RETRY is after how many milliseconds the client connects again when the
connection has ended, an integer or NIL.  WAIT, values and conditions are as in WRITE-OUTGOING.
Signals MALFORMED-EVENT, too."
  (write-octets stream (encode-event data :event event :id id :retry retry) wait))

(defun send-comment (stream text &key wait)
  "Sends TEXT, a string, as a comment to STREAM, an OUTGOING-STREAM of START-EVENT-STREAM.  The
client ignores it, but proxies see that the connection is alive.  WAIT, values and conditions are as
in SEND-EVENT."
  (write-octets stream (encode-comment text) wait))

(defun last-event-id (&key (request hunchentoot:*request*))
  "The identifier of the last event that the client of REQUEST got before its connection ended, a
string; NIL where the client tells none (HTML Living Standard, section 9.2.4)."
  (let ((id (hunchentoot:header-in :last-event-id request)))
    ;; Clients send UTF-8, and heads are read as Latin-1.
    (and id
         (text-in-charset id "utf-8" :latin-1))))
