(in-package #:hunchentoot-recycling-taskmaster)

;;;; Server-sent events (HTML Living Standard, section 9.2): deferred replies that are streams of
;;;; events.

(defun start-event-stream (reply &key headers (high-water-mark *high-water-mark*) (heartbeat t))
  "Makes REPLY, which DEFER-REPLY has deferred, a stream of server-sent events, and returns that as
START-STREAM does: for SEND-EVENT and SUBSCRIBE.  HEADERS and HIGH-WATER-MARK are as there.  What
stands before the server is told to keep nothing back.  With HEARTBEAT a comment is sent now and
then, see *HEARTBEAT-SECONDS*.  NIL when the client has left already.  When the server stops,
however gently, the stream ends: its client comes again, and may find another one."
  (setf (deferred-response-endless-p (deferred-reply-deferred-response reply)) t)
  (let ((stream (start-stream reply :headers (append headers '((:cache-control . "no-cache")
                                                               (:x-accel-buffering . "no")))
                                    :content-type "text/event-stream"
                                    :high-water-mark high-water-mark)))
    (when (and stream heartbeat
               ;; Comments would take what is left of it.
               (not (shared-queue-announced (outgoing-stream-shared-queue stream))))
      (begin-heartbeat (suspended-exchange-application (outgoing-stream-deferred-response stream)) stream))
    stream))

(defun send-event (stream data &key event id retry wait)
  "Sends an event to STREAM, an OUTGOING-STREAM of START-EVENT-STREAM: DATA, a string of any number
of lines, or NIL; its type EVENT and identifier ID, strings or what PRINC makes strings of, or NIL;
RETRY is after how many milliseconds, an integer or NIL, a client comes again whose connection has
ended.  WAIT, values and conditions are as in WRITE-OUTGOING; signals MALFORMED-EVENT, too."
  (write-octets stream (encode-event data :event event :id id :retry retry) wait))

(defun send-comment (stream text &key wait)
  "Sends a comment to STREAM, an OUTGOING-STREAM of START-EVENT-STREAM, which its client ignores:
TEXT, a string.  What stands between then does not take the connection for a dead one.  WAIT, values
and conditions are as in SEND-EVENT."
  (write-octets stream (encode-comment text) wait))

(defun last-event-id (&optional (request hunchentoot:*request*))
  "The identifier of the last event that the client of REQUEST has got before its connection ended,
a string; NIL where it tells none (HTML Living Standard, section 9.2.4)."
  (hunchentoot:header-in :last-event-id request))
