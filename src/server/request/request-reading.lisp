(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Reading the head of the next request of a connection, and answering one that is not acceptable
;;;; or late.

(defun waiting-request (application connection http &optional ahead-p)
  "The head of the next request over HTTP; :NONE when it is incomplete; :END when none will come, or
when it was refused.  If AHEAD-P, the octets are left for the first reader, and the result is :SOME
where they do not begin a request."
  (forget-client http)
  (let* ((io (http-io http))
         (parser (or (shiftf (http-parser http) nil)
                     (take-parser (application-limits application))))
         (head nil)
         (result (handler-case
                     (acceptable-head
                      application http
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
          (t                            ; no answer where another reader may come
           (setf (http-parser http) nil)
           (unless ahead-p
             (reject application http parser nil (make-refusal :no-memory)))
           :end))))

(defun head-late-p (http)
  "True when the deadline of the head over HTTP has passed."
  (let ((deadline (http-head-deadline http)))
    (and deadline (<= deadline (milliseconds)))))

(defun head-unless-late (http parser head)
  "HEAD, the result of PARSER over HTTP.  Signals PROTOCOL-ERROR where the head is incomplete and
late.  The sentinel ends only parked connections; one whose head comes in small parts may be owned
whenever it looks."
  (when (and (eq head :none)
             (parser-begun-p parser)
             (head-late-p http))
    (error (make-refusal :request-timeout)))
  head)

(defun read-head-in-time (http parser)
  "Like READ-HEAD, over HTTP, where a worker waits.  Signals PROTOCOL-ERROR when a head came in
part, and the rest not in time: the sentinel ends the input then."
  (let ((head (handler-case (read-head (http-io http) parser)
                (stream-timeout () :late)
                ;; Not every Lisp reports why a wait has ended.
                (descriptor-broken (condition)
                  (if (head-late-p http) :late (error condition))))))
    (cond ((not (or (eq head :late) (and (eq head :end) (head-late-p http))))
           head)
          ((parser-begun-p parser)
           (error (make-refusal :request-timeout)))
          (t :end))))

(defun reject (application http parser head refusal)
  "Answers the request over HTTP with REFUSAL.  HEAD is its head, or NIL where PARSER has not read
all of it."
  (if (tls-begun-p http refusal)
      ;; A client that speaks TLS would take an answer in plain text for a broken record.
      (note-rejected application http (make-refusal :tls-to-plain-http))
      (handler-case
          (progn
            ;; Before the answer, so that a client that has it finds the request counted.
            (multiple-value-call #'note-rejected application http refusal
              (if head
                  (values (head-method head) (head-uri head) (head-protocol head))
                  (request-line-so-far http parser)))
            (send-refusal (http-io http) refusal (and head (eq :head (head-method head)))))
        (descriptor-broken () nil))))   ; the client is gone

(defun request-line-so-far (http parser)
  "The result of KNOWN-REQUEST-LINE for PARSER, which has read over HTTP."
  (let ((io (http-io http)))
    (known-request-line parser (or (io-input io) (make-octets 0))
                        (+ (io-start io) (io-kept io)) (io-end io))))

(defun tls-begun-p (http refusal)
  "True when the octets over HTTP that caused REFUSAL begin a TLS handshake."
  (let ((io (http-io http)))
    (and (eq :malformed-method (protocol-error-refusal refusal))
         (input-left-p io)
         ;; No more than this may have come.
         (= +tls-handshake-record+ (aref (io-input io) (io-start io))))))

(defun leave-to-others (io result)
  "RESULT of looking ahead in IO; :SOME also for octets that are no request, since another reader
may use them."
  (cond ((and (eq result :end) (input-left-p io))
         (begin-anew io)
         :some)
        (t
         (when (eq result :some)
           (begin-anew io))
         result)))

(defun acceptable-head (application http head)
  "HEAD, which came over HTTP, or the other result of READ-HEAD.  Signals PROTOCOL-ERROR for a
request that APPLICATION does not serve, and for CONNECT: after a 2xx reply to that, the connection
does not carry HTTP."
  (when (typep head 'head)
    (when (http-trusted http)
      (settle-client http head))
    (case (head-method head)
      ((:get :head))                    ; every server supports these (RFC 9110, section 9.1)
      (:connect (error (make-refusal :connect-not-served)))
      (t (check-head application head))))
  head)

(defun keep-parser (application connection http parser)
  "Keeps PARSER, which has read a part of a head, or empty lines before one, until more comes.  That
part is not input that waits: only the poller reports more.  NIL where there is no memory for it."
  ;; Over TLS, octets may come that make no octet of a request yet.
  (settle-head-deadline application connection http (awaited-of connection parser))
  (cond ((parser-fresh-p parser)
         (return-parser parser))
        (t
         (forget-head parser)
         (setf (http-parser http) parser)))
  (keep-waiting-input (worker-engine *worker*) http))

(defun keep-waiting-input (engine http)
  "Reserves memory for the state of HTTP, of a connection of ENGINE, while it waits: its input, as
KEEP-INPUT does, and the request whose rest or reply is to come.  If there is no memory, the
connections that would end first give way, so that new clients get in."
  (let* ((io (http-io http))
         (more (request-memory-kept http))
         (share (if (and (http-suspended-exchange http) (plusp more))
                    *request-share*
                    *waiting-share*)))
    (or (keep-input io more share)
        (and (evict-oldest engine)
             (keep-input io more share)))))

(defun request-memory-kept (http)
  "How many octets of memory the request over HTTP takes while the rest of it, or its reply, is to
come."
  (let ((suspended-exchange (http-suspended-exchange http)))
    (cond (suspended-exchange (suspended-exchange-memory suspended-exchange))
          ((content-pending-p http) (head-memory (content-head (http-content http))))
          (t 0))))

(defun awaited-of (connection parser)
  "The kind of deadline of CONNECTION, whose PARSER has no complete head."
  (cond ((parser-begun-p parser) :head)
        ((and (parser-fresh-p parser) (zerop (connection-served connection))) :first-byte)
        (t :idle)))

(defun settle-head-deadline (application connection http kind)
  "Gives CONNECTION the deadline, of KIND, of the octets that came in part over HTTP.  All of a head
has one deadline, and so have all empty lines and parts of TLS records before it.  Otherwise a
client could send an octet a second for ever."
  (unless (and (http-head-deadline http)
               (eq kind (http-awaited http)))
    (set-deadline connection kind (seconds-for application kind) (milliseconds))
    (setf (http-head-deadline http) (connection-deadline connection)
          (http-awaited http) kind))
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) (http-head-deadline http)))

;;; A worker waits

(defparameter *look-milliseconds* 250
  "How often a worker that waits for the next request of its connection checks whether it still
should.")

(defun await-request (application socket connection http wait-p)
  "The head of the next request of CONNECTION, with SOCKET, to APPLICATION, over HTTP, whose reads
do not wait; :END when none comes, and :NONE when it has not come and WAIT-P is false."
  (loop for input = (waiting-request application connection http)
        while (and wait-p (eq input :none))
        unless (await-more application socket connection http)
          return :end
        finally (unless (eq input :none)
                  (setf (connection-deadline connection) nil))
                (return input)))

(defun read-next-request (application socket connection http)
  "The head of the next request of CONNECTION, with SOCKET, to APPLICATION, over HTTP, whose reads
wait; :END when none comes."
  (if (or (zerop (connection-served connection)) ; a new client sends a request
          (await-more application socket connection http))
      (let ((seconds (seconds-for application :head)))
        (setf (http-head-deadline http) (end-after seconds))
        (call-with-deadline connection :head seconds
                            (lambda ()
                              (waiting-request application connection http))))
      :end))

(defun await-more (application socket connection http)
  "Waits until CONNECTION has more input on SOCKET, over HTTP.  NIL when the worker should not wait
for a request any more."
  (when (and (http-waits-p http)        ; otherwise the buffered octets were read
             (input-waiting-p (http-io http)))
    (return-from await-more t))
  (finish-output (http-stream http))
  (unless (connection-deadline connection)
    ;; At this deadline the sentinel ends the input.
    (set-deadline connection :idle (seconds-for application :idle) (milliseconds)))
  (loop until (await-input socket :until (+ (milliseconds) *look-milliseconds*))
        never (or (and (null (http-parser http))
                       (winding-down-p (worker-engine *worker*)))
                  ;; Nor for the rest of a head, when there was enough time for it.
                  (drain-over-p (worker-engine *worker*) (milliseconds)))))
