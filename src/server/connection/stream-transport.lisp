(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A stream that waits for its peer as transport.
;;;;
;;;; Invariant: no octet is read that nobody wanted yet.  A program that has made the stream, or
;;;; talks another protocol after the request, reads on in it; and who asked for more than comes
;;;; would wait in vain.  So of a head, whose length nobody knows, one line is read at a time.

(defstruct (stream-transport (:include transport)
                             (:constructor make-stream-transport (source base)))
  "A stream of octets, perhaps made of that of BASE."
  (ready-p nil))                        ; the socket has something that was not read

(defmacro or-broken ((stream) &body body)
  "The value of BODY, which reads or writes STREAM and returns a number; or minus an error number
where that fails.  Signals STREAM-TIMEOUT to who has waited in vain."
  `(handler-case (progn ,@body)
     (stream-timeout (condition) (error condition)) ; of the buffered connection beneath
     ;; What the Lisp, or the program, signals when the peer is gone, is not known.
     (error (condition)
       (if (wait-timed-out-p condition)
           (error 'stream-timeout :stream ,stream)
           (- +eio+)))))

(defun read-line-octets (stream octets start end)
  "Reads a line of STREAM with its end to OCTETS from START, up to END.  Returns how many octets;
those that came before it failed, if any did.  What begins TLS has no lines, and is not waited for."
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
      ;; Streams may signal their end here already: who reads will see it too.
      (handler-case (listen (transport-source transport))
        (error () t))))

(defmethod note-socket-ready ((transport stream-transport))
  ;; LISTEN of ABCL does not tell the end.  Where another stream stands between, a reader may still have to wait
  ;; although a few octets are there.
  (unless (or (transport-base transport)
              (transport-tls-handle transport))
    (setf (stream-transport-ready-p transport) t)))

(defmethod transport-for (stream base)
  (make-stream-transport stream base))
