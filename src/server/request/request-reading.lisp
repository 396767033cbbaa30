(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The head of the next request of a connection, and what becomes of one that is not acceptable,
;;;; or does not come in time.

(defun waiting-request (application connection http &optional ahead-p)
  "The head of the next request over HTTP; :NONE when it has not come whole; :END when none will
come, or when what came was refused.  When AHEAD-P, what came is left to be read by whoever comes
first, and where it does not begin a request that is :SOME."
  (let* ((io (http-io http))
         (parser (or (shiftf (http-parser http) nil) (take-parser (application-limits application))))
         (head nil)
         (result (handler-case
                     (acceptable-head
                      application
                      (setf head (cond (ahead-p (read-head-ahead io parser))
                                       ((connection-parkable-p connection)
                                        (head-unless-late http parser (read-head io parser)))
                                       (t (read-head-in-time http parser)))))
                   (descriptor-broken () :end)
                   (protocol-error (refusal)
                     (cond (ahead-p :some)
                           (t (reject application http parser head refusal)
                              :end))))))
    (when ahead-p
      (setf result (leave-to-others io result)))
    (cond ((not (eq :none result))
           (setf (http-head-deadline http) nil)
           (release-input io)
           (return-parser parser)
           result)
          ((keep-parser application connection http parser)
           :none)
          (t                            ; without an answer where others may read
           (setf (http-parser http) nil)
           (unless ahead-p
             (reject application http parser nil (make-refusal :no-memory)))
           :end))))

(defun head-late-p (http)
  "True when what comes over HTTP should have come whole by now."
  (let ((deadline (http-head-deadline http)))
    (and deadline (<= deadline (milliseconds)))))

(defun head-unless-late (http parser head)
  "HEAD, what PARSER has read over HTTP.  Signals PROTOCOL-ERROR where a part has come, and the
whole should have.  The sentinel ends who is parked; whose head comes in parts until the end may
always be owned when it looks."
  (when (and (eq head :none)
             (parser-begun-p parser)
             (head-late-p http))
    (error (make-refusal :request-timeout)))
  head)

(defun read-head-in-time (http parser)
  "Like READ-HEAD, over HTTP, where a worker waits for it.  Signals PROTOCOL-ERROR when a head came
in part, and the rest not in time: the sentinel ends the input then."
  (let ((head (handler-case (read-head (http-io http) parser)
                (stream-timeout () :late)
                ;; Not every Lisp tells what has ended a wait.
                (descriptor-broken (condition)
                  (if (head-late-p http) :late (error condition))))))
    (cond ((not (or (eq head :late) (and (eq head :end) (head-late-p http))))
           head)
          ((parser-begun-p parser)
           (error (make-refusal :request-timeout)))
          (t :end))))

(defun reject (application http parser head refusal)
  "Answers the request over HTTP, which PARSER has read as HEAD or, if that is NIL, not whole, with
REFUSAL."
  (if (tls-begun-p http refusal)
      ;; Who speaks TLS takes an answer in plain text for a broken record.
      (note-rejected application http (make-refusal :tls-to-plain-http))
      (handler-case
          (progn
            ;; First, so that a client which has its answer finds the request counted.
            (multiple-value-call #'note-rejected application http refusal
              (if head
                  (values (head-method head) (head-uri head) (head-protocol head))
                  (request-line-so-far http parser)))
            (send-refusal (http-io http) refusal))
        (descriptor-broken () nil))))   ; who is gone does not get it

(defun request-line-so-far (http parser)
  "What KNOWN-REQUEST-LINE returns for PARSER, which has read over HTTP."
  (let ((io (http-io http)))
    (known-request-line parser (or (io-input io) (make-octets 0))
                        (+ (io-start io) (io-kept io)) (io-end io))))

(defun tls-begun-p (http refusal)
  "True when REFUSAL is of the beginning of a TLS handshake over HTTP."
  (let ((io (http-io http)))
    (and (eq :malformed-method (protocol-error-refusal refusal))
         (input-left-p io)
         ;; No more than this may have come.
         (= +tls-handshake-record+ (aref (io-input io) (io-start io))))))

(defun leave-to-others (io result)
  "RESULT, what looking ahead in IO has found; also octets that are no request can be read."
  (cond ((and (eq result :end) (input-left-p io))
         (begin-anew io)
         :some)
        (t
         (when (eq result :some)
           (begin-anew io))
         result)))

(defun acceptable-head (application head)
  "HEAD, or what READ-HEAD returned in place of one.  Signals PROTOCOL-ERROR for one that
APPLICATION does not serve, and for CONNECT: after a 2xx to that, what follows is no HTTP."
  (when (typep head 'head)
    (case (head-method head)
      ((:get :head))                    ; everybody serves these (RFC 9110, section 9.1)
      (:connect (error (make-refusal :connect-not-served)))
      (t (check-head application head))))
  head)

(defun keep-parser (application connection http parser)
  "Keeps the octets that PARSER has read until more comes: of a head, or of the empty lines before
one.  What has been read of a head is not input that waits: only the poller tells when there is
more.  NIL where there is no memory for them."
  ;; Over TLS octets may come that make no octet of a request yet.
  (settle-head-deadline application connection http (awaited-of connection parser))
  (cond ((parser-fresh-p parser)
         (return-parser parser))
        (t
         (forget-head parser)
         (setf (http-parser http) parser)))
  (input-kept-p (worker-engine *worker*) http))

(defun input-kept-p (engine http)
  "Keeps what came over HTTP, of a connection of ENGINE, that waits: input, as KEEP-INPUT does, and
the request of which the rest, or whose reply, is to come.  Where there is no memory for it, others
that have kept some for longest give way first, so that new clients get in."
  (let* ((io (http-io http))
         (more (request-memory-kept http))
         (share (if (and (http-suspended-exchange http) (plusp more)) *request-share* *waiting-share*)))
    (or (keep-input io more share)
        (and (evict-oldest engine)
             (keep-input io more share)))))

(defun request-memory-kept (http)
  "How many octets of memory the request that came over HTTP takes while the rest of it, or its
reply, is to come."
  (let ((body-prefetch (http-body-prefetch http))
        (suspended-exchange (http-suspended-exchange http)))
    (cond (body-prefetch
           (or (body-prefetch-memory body-prefetch)
               (setf (body-prefetch-memory body-prefetch) (head-memory (body-prefetch-head body-prefetch)))))
          (suspended-exchange (suspended-exchange-memory suspended-exchange))
          (t 0))))

(defun awaited-of (connection parser)
  "What CONNECTION, whose PARSER has no whole head, waits for: the kind of its deadline."
  (cond ((parser-begun-p parser) :head)
        ((and (parser-fresh-p parser) (zerop (connection-served connection))) :first-byte)
        (t :idle)))

(defun settle-head-deadline (application connection http kind)
  "Gives CONNECTION the deadline of what came in part over HTTP: all of a head has one, and so have
all empty lines and parts of TLS records before it, or a client could send an octet a second for
ever."
  (unless (and (http-head-deadline http)
               (eq kind (http-awaited http)))
    (set-deadline connection kind (idle-seconds application) (milliseconds))
    (setf (http-head-deadline http) (connection-deadline connection)
          (http-awaited http) kind))
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) (http-head-deadline http)))

;;; By a worker that waits

(defparameter *look-milliseconds* 250
  "How often a worker that waits for the next request of its connection looks whether it still
should.")

(defun await-request (application socket connection http wait-p)
  "The head of the next request of CONNECTION, with SOCKET, to APPLICATION, over HTTP, which does
not wait; :END when none comes, and :NONE when it has not come and WAIT-P is false."
  (loop for input = (waiting-request application connection http)
        while (and wait-p (eq input :none))
        unless (await-more application socket connection http)
          return :end
        finally (unless (eq input :none)
                  (setf (connection-deadline connection) nil))
                (return input)))

(defun read-next-request (application socket connection http)
  "The head of the next request of CONNECTION, with SOCKET, to APPLICATION, over HTTP, which waits;
:END when none comes."
  (if (or (zerop (connection-served connection)) ; then there is somebody who wants something
          (await-more application socket connection http))
      (let ((seconds (idle-seconds application)))
        (setf (http-head-deadline http) (end-after seconds))
        (call-with-deadline connection :head seconds
                            (lambda ()
                              (waiting-request application connection http))))
      :end))

(defun await-more (application socket connection http)
  "Waits until more of CONNECTION comes by SOCKET, over HTTP.  NIL when nobody should wait for a
request any more."
  (when (and (http-waits-p http)        ; else what was buffered has been read
             (input-waiting-p (http-io http)))
    (return-from await-more t))
  (finish-output (http-stream http))
  (unless (connection-deadline connection)
    ;; The sentinel will end it, so that its input is at the end.
    (set-deadline connection :idle (idle-seconds application) (milliseconds)))
  (loop until (await-input socket :until (+ (milliseconds) *look-milliseconds*))
        never (or (and (null (http-parser http))
                       (winding-down-p (worker-engine *worker*)))
                  ;; Nor for the rest of a head, when there was time enough for it.
                  (drain-over-p (worker-engine *worker*) (milliseconds)))))
