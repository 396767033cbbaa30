(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A transport that is a stream, whose reads wait for the peer.
;;;;
;;;; Invariant: no octet is read before a reader wants it.  A program that has made the stream, or
;;;; talks another protocol after the request, goes on reading from it; and a read of more octets
;;;; than come would wait in vain.  The length of a head is unknown, so it is read line by line.

(defstruct (stream-transport (:include transport)
                             (:constructor make-stream-transport (source base)))
  "A stream of octets, SOURCE, perhaps made of the stream of BASE."
  (ready-p nil))                        ; the socket has octets that were not read

(defmacro or-broken ((stream) &body body)
  "The value of BODY, which reads or writes STREAM and returns a number; a negative error number
where that fails.  Signals STREAM-TIMEOUT where a wait was too long."
  `(handler-case (progn ,@body)
     (stream-timeout (condition) (error condition)) ; of the buffered connection beneath
     ;; The Lisp, or the program, may signal any error when the peer is gone.
     (error (condition)
       (if (wait-timed-out-p condition)
           (error 'stream-timeout :stream ,stream)
           (- +eio+)))))

(defun read-line-octets (stream octets start end)
  "Reads a line of STREAM, with its end, to OCTETS from START, up to END.  Returns how many octets;
after a failure, those that came before, if any.  An octet that begins a TLS record is read alone,
since no line end may follow."
  (let ((line-feed (load-time-value (char-code #\Newline)))
        (position start))
    (handler-case (loop while (< position end)
                        do (let ((octet (read-byte stream nil)))
                             (unless octet
                               (return))
                             (setf (aref octets position) octet)
                             (incf position)
                             (when (or (= octet line-feed)
                                       (and (= octet +tls-handshake-record+)
                                            (= position (1+ start))))
                               (return))))
      (error (condition)
        (when (= position start)
          (error condition))))
    (- position start)))

(defmethod transport-receive ((transport stream-transport) octets start end wanted)
  (let ((stream (transport-source transport)))
    (setf (stream-transport-ready-p transport) nil)
    (or-broken (stream)
      (if wanted
          (read-stream-octets stream octets start (min end (+ start wanted)))
          (read-line-octets stream octets start end)))))

(defmethod transport-send ((transport stream-transport) octets start end)
  (let ((stream (transport-source transport)))
    (or-broken (stream)
      (write-stream-octets stream octets start end)
      (- end start))))

(defmethod transport-tls-handle ((transport stream-transport))
  (stream-tls-handle (transport-source transport)))

(defmethod transport-waits-p ((transport stream-transport))
  t)

(defmethod transport-ready-p ((transport stream-transport))
  (or (stream-transport-ready-p transport)
      ;; A stream may signal its end here already; the next read signals it again.
      (handler-case (listen (transport-source transport))
        (error () t))))

(defmethod note-socket-ready ((transport stream-transport))
  ;; LISTEN of ABCL does not show the end.  Where another stream stands between, a reader may have
  ;; to wait although a few octets have come.
  (unless (or (transport-base transport)
              (transport-tls-handle transport))
    (setf (stream-transport-ready-p transport) t)))

(defmethod transport-for (stream base)
  (make-stream-transport stream base))
