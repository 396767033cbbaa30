(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The life of a connection that speaks HTTP, between the engine and an application.
;;;;
;;;;   the engine calls SERVE   NEXT-REQUEST-MISSING reads a head, and spools content;
;;;;                            RESPOND has the application answer, to the buffered connection;
;;;;                            octets that the socket did not accept stay in the send queue
;;;;   SERVE returns            :CLOSE, :PARK, :NEXT, :DEFERRED, :DETACHED or :BROKEN
;;;;   SERVE after :DEFERRED    CONTINUE-HTTP-CONNECTION continues the suspended exchange
;;;;   RELEASE                  the connection ends

(defmethod serve ((application http-service) connection)
  "Reads a request, has APPLICATION respond, and settles what becomes of CONNECTION."
  (let* ((http (connection-data connection))
         (parkable-p (connection-parkable-p connection))
         (outcome :park)
         (io nil))
    ;; The engine may have consumed an event, so the next reader is to look.
    (when (and (eq :missed (shiftf (connection-input connection) nil)) http (http-io http))
      (setf (io-drained-p (http-io http)) nil))
    (if (and http (http-suspended-exchange http))
        (setf outcome (continue-http-connection http))
        (let* ((exchange (make-exchange application connection))
               (missing (next-request-missing exchange (not parkable-p)
                                              (reads-first-p application))))
          (setf outcome (or missing
                            (unwind-protect (progn (note-task exchange)
                                                   (respond application exchange))
                              (note-task nil)
                              ;; No suspended exchange continues it.
                              (let ((deferred-response (exchange-deferred-response exchange)))
                                (setf http (connection-data connection))
                                (when (and deferred-response
                                           (not (and http
                                                     (eq deferred-response
                                                         (http-suspended-exchange http)))))
                                  (if (deferred-response-unsent-p deferred-response)
                                      (abandon deferred-response)
                                      (drop-deferred application deferred-response)))))))
          (when (eq :deferred outcome)  ; it may have been answered in the meantime
            (setf outcome (continue-http-connection (connection-data connection) nil)))))
    (setf http (connection-data connection)
          io (and http (or (http-io http) (http-base http))))
    (cond ((null io))
          ((or (eq :broken outcome)
               ;; A worker that keeps its connection waits for the peer; else the engine sends.  A
               ;; program may have written to the stream beside it, or closed that.
               (and (or (and (connection-output connection) (not parkable-p))
                        (and (eq :park outcome) (io-lent (io-base io))))
                    (not (send-rest (io-base io)))))
           (setf outcome :broken))
          (t
           (when (and (eq :park outcome) (null (connection-output connection)))
             (cond ((and (http-io http) ; octets were read that the poller will not report
                         (not (http-part-p http)) ; a part of a request is no input to serve
                         (input-waiting-p io))
                    (setf outcome :next))
                   (t
                    (lend-no-buffers io)
                    ;; TLS may have octets to send before it can read on: when the peer takes them,
                    ;; the engine continues.
                    (when (and parkable-p (io-tls io) (io-awaits-output-p io))
                      (with-send-queue ((connection-queue connection))
                        (arm-for-output (connection-queue connection)))))))
           (when (and (http-io http)
                      (io-drained-p io)
                      ;; An unfinished head stays in the buffered connection.
                      (or (http-part-p http) (= (io-start io) (io-end io))))
             (setf (connection-input connection) :read))))
    outcome))

(defun next-request-missing (exchange wait-p &optional program-p)
  "Reads the next request of the connection of EXCHANGE, with its content, and stores it there.
Returns NIL then, and without a request if PROGRAM-P and a program is to have its turn first: at
each call with WAIT-P, otherwise when the first input has come.  Where there is no request, returns
the outcome for the connection, as RESPOND does; with WAIT-P only once none can come."
  (let* ((application (exchange-application exchange))
         (connection (exchange-connection exchange))
         (http nil)
         (phase nil)
         (head nil))
    (handler-case
        (loop
          (setf http (or (connection-data connection)
                         (begin-http-connection application connection))
                phase (http-phase http)
                head (cond ((eq :proxy phase)
                            (read-proxy-header application connection http))
                           ((and program-p wait-p)
                            :program)
                           ((eq :handshake phase)
                            (continue-handshake application connection http))
                           ((eq :preface phase)
                            (read-preface application connection http))
                           ((not (eq :new phase))
                            (if (content-pending-p http)
                                (receive-spooled application connection http wait-p)
                                (read-head application connection http wait-p)))
                           ;; No thread waits for the first octet of a handshake.
                           ((and (not wait-p)
                                 (or program-p (encrypted-p application))
                                 (not (octets-waiting-p connection)))
                            :none)
                           ((and program-p ; unless TLS begins (RFC 8446, section 5.1)
                                 (not (and (handshake-context application)
                                           (eql 22 (first-octet
                                                    (connection-descriptor connection))))))
                            :program)
                           ((and (handshake-context application) (http-base http))
                            (begin-tls (http-base http) (handshake-context application))
                            (setf (http-phase http) :handshake)
                            :next)
                           (t
                            (establish application connection http))))
          (cond ((eq :next head))
                ((not (and wait-p (eq :none head)))
                 (return))
                ((not (await-more application connection http))
                 (setf head :end)
                 (return))))
      (peer-gone () (setf head :end)))
    (setf (exchange-began exchange) (microseconds))
    (case head
      (:end :close)
      (:none :park)
      (:session :deferred)
      (:program nil)
      (t
       (setf (exchange-head exchange) head
             (exchange-status exchange) nil
             (exchange-counted-p exchange) nil)
       nil))))

;;; Reading a request

(defun seconds-for (application kind)
  "How many seconds, a real, the server waits for what KIND, a kind of deadline, says of a client of
APPLICATION: :HANDSHAKE, :HEAD or :IDLE; NIL for no limit."
  (let* ((limits (application-limits application))
         (seconds (ecase kind
                    (:handshake (limits-handshake-seconds limits))
                    (:head (limits-head-seconds limits))
                    (:idle (limits-idle-seconds limits)))))
    (if (eq :read-timeout seconds)
        (read-seconds application)
        seconds)))

(defun octets-waiting-p (connection)
  "True when the descriptor of CONNECTION has input."
  (await-descriptor (connection-descriptor connection) :input :until (milliseconds)))

(defun await-more (application connection http)
  "Waits until CONNECTION has more input for HTTP.  NIL when the worker should not wait for a
request any more."
  (let* ((io (http-io http))
         (base (http-base http))
         (engine (worker-engine *worker*)))
    (when io
      (finish-output (http-stream http)))
    (unless (connection-deadline connection)
      ;; At this deadline the sentinel ends the input.
      (set-deadline connection :idle (seconds-for application :idle) (milliseconds)))
    (or (and io (io-source io) (input-waiting-p io))
        (loop for until = (+ (milliseconds) 250)
              until (if (and base (io-awaits-output-p base))
                        (await-descriptor (open-descriptor base) :output :until until)
                        (await-input (connection-handle connection) :until until))
              never (or (and (not (http-part-p http)) (engine-overloaded-p engine))
                        ;; Nor for the rest of a head, when there was enough time for it.
                        (drain-over-p engine (milliseconds)))))))

(defun read-head (application connection http wait-p)
  "Reads the head of the next request of CONNECTION to APPLICATION over HTTP, and its content, if it
has some.  Returns the head; :NONE so far; or :END.  A request
that is not acceptable, or late, is answered."
  ;; A stream waits when it is read.
  (when (io-source (http-io http))
    (cond ((input-waiting-p (http-io http)))
          ((not wait-p)
           (unless (octets-waiting-p connection)
             (return-from read-head :none)))
          ((not (await-more application connection http))
           (return-from read-head :end)))
    (settle-head-deadline application connection http :head))
  (let* ((io (http-io http))
         (looked (or (shiftf (http-part-p http) nil) 0)) ; at so many octets in vain
         (head (shiftf (http-head http) nil)))
    (setf (http-origin http) nil)
    (handler-case
        (loop
          ;; Each look begins at the start.  So after the first ones, the next is at a line end, or
          ;; many octets later: else a client that sends octet by octet would take a processor.
          (let ((start (io-start io)) (end (io-end io)))
            (when (and (null head)
                       (< (+ start looked) end)
                       (or (< looked 4096)
                           (< (+ start looked 1024) end)
                           (find 10 (io-input io) :start (+ start looked) :end end)))
              (setf looked (- end start))
              (multiple-value-bind (found position)
                  (parse-head (io-input io) start end (application-limits application))
                (when (setf head found)
                  (setf (io-start io) position)))))
          (when head
            (when (typep head 'protocol-error)
              (error head))
            (when (http-trusted http)
              (settle-client http head))
            ;; After a 2xx reply to that, the connection does not carry HTTP.
            (when (eq :connect (head-method head))
              (error (make-refusal :connect-not-served)))
            (return))
          (let ((more (fill-input io :more)))
            (unless (eq :some more)
              ;; The sentinel ends only parked connections; one whose head comes in small parts may
              ;; be owned whenever it looks.  Where a worker waits, it ends the input.
              (when (and (head-begun-p io) (head-late-p http))
                (error (make-refusal :request-timeout)))
              (setf head more)
              (return))))
      (protocol-error (refusal)
        (reject application http refusal (if (eq head refusal) nil head))
        (setf head :end))
      ((or stream-timeout descriptor-broken) (condition)
        ;; Not every Lisp reports why a wait has ended.
        (when (and (head-begun-p io)
                   (or (head-late-p http) (typep condition 'stream-timeout)))
          (reject application http (make-refusal :request-timeout) nil))
        (setf head :end)))
    (cond ((not (eq :none head))
           (setf (http-head-deadline http) nil
                 (connection-deadline connection) nil)
           (when (plusp (io-reserved io))
             (release-input io))
           (if (or (eq :end head) (member (head-framing head) '(:none 0)))
               head
               (begin-content application connection http head wait-p)))
          (t
           ;; What was parsed is not input that waits: only the poller reports more.  Over TLS,
           ;; octets may come that make no octet of a request yet.
           (settle-head-deadline application connection http
                                 (if (head-begun-p io) :head :idle))
           (cond ((keep-waiting-input (worker-engine *worker*) http)
                  (setf (http-part-p http) (and (plusp looked) looked))
                  :none)
                 (t
                  (reject application http (make-refusal :no-memory) nil)
                  :end))))))

(defun head-begun-p (io)
  "True when the input of IO begins with a part of a request, behind empty lines perhaps."
  (and (< (io-start io) (io-end io))
       (< (request-start (io-input io) (io-start io) (io-end io)) (io-end io))))

(defun settle-head-deadline (application connection http kind)
  "Gives CONNECTION the deadline, of KIND, of the octets that came in part over HTTP.  All of a head
has one deadline, and so have all empty lines and parts of TLS records before it.  Otherwise a
client could send an octet a second for ever."
  (unless (and (http-head-deadline http)
               (eq kind (connection-deadline-kind connection)))
    (set-deadline connection kind (seconds-for application kind) (milliseconds))
    (setf (http-head-deadline http) (connection-deadline connection)))
  (setf (connection-deadline connection) (http-head-deadline http)))

(defun head-late-p (http)
  "True when the deadline of the head over HTTP has passed."
  (let ((deadline (http-head-deadline http)))
    (and deadline (<= deadline (milliseconds)))))

(defun keep-waiting-input (engine http)
  "Reserves memory for the state of HTTP, of a connection of ENGINE, while it waits: its input, as
KEEP-INPUT does, and the request whose rest or reply is to come.  If there is no memory, the
connections that would end first give way, so that new clients get in."
  (let* ((io (http-io http))
         (suspended-exchange (http-suspended-exchange http))
         (more (cond ((deferred-response-p suspended-exchange)
                      (request-memory
                       (exchange-head (deferred-response-exchange suspended-exchange))))
                     ((content-pending-p http) (request-memory (content-head (http-content http))))
                     (t 0)))
         (share (if (plusp more) *request-share* *waiting-share*)))
    (or (keep-input io more share)
        (and (evict-oldest engine)
             (keep-input io more share)))))

;;; Requests that are not served

(defun reject (application http refusal head)
  "Counts the request over HTTP as rejected because of REFUSAL, and answers it.  HEAD is its head,
or NIL where that has not come whole."
  (let* ((io (http-io http))
         (head (or head (known-request-line (or (io-input io) *no-octets*) (io-start io) (io-end io)
                                            (application-limits application)))))
    ;; Before the answer, so that a client that has it finds the request counted.
    (note-rejected application http refusal head)
    (handler-case (send-refusal io refusal (and head (eq :head (head-method head))))
      (client-left () nil))))

(defmethod give-notice ((application http-service) connection)
  "Answers a request that came in part with 408 (RFC 9110, section 15.5.9).  A client that has not
begun one gets no answer, unless it is refused."
  (let* ((kind (connection-deadline-kind connection))
         (http (established-http connection))
         (refusal (make-refusal (if (eq :evicted kind) :no-memory :request-timeout))))
    (cond ((member kind *refusal-reasons*)
           (turn-away application connection kind))
          ((not (and http
                     (io-open-p (http-io http))
                     (not (io-source (http-io http))))) ; a reply could wait, too
           nil)
          ((content-pending-p http)
           (reject application http refusal (content-head (http-content http))))
          ((and (http-part-p http) (head-begun-p (http-io http)))
           (reject application http refusal nil)))))

;;; While it waits

(defmethod keep-unread-input ((application http-service) engine connection)
  (let ((http (established-http connection)))
    (or (null http)
        (keep-waiting-input engine http))))

(defmethod input-kept-p ((application http-service) connection)
  (let* ((http (established-http connection))
         (content (and http (content-pending-p http) (http-content http)))
         (suspended-exchange (and http (http-suspended-exchange http))))
    (and http
         (or (plusp (io-reserved (http-io http)))
             (and content (plusp (content-reserved content)))
             (and (websocket-p suspended-exchange)
                  (plusp (websocket-reserved suspended-exchange)))))))

;;; The end

(defmethod release ((application http-service) connection)
  (let* ((http (established-http connection))
         (socket (connection-socket connection))
         ;; A client that has announced its last request, and sent more all the same, may still be
         ;; sending.  A released connection has no input.
         (more-p (not (and http
                           (eq :over (http-phase http))
                           (= (io-start (http-io http)) (io-end (http-io http)))))))
    (when socket
      (let* ((socket-stream (socket-octet-stream socket))
             (io (stream-io socket-stream)))
        (unwind-protect                 ; a program may end the thread halfway
             (progn
               (when http
                 (release-input (http-io http))
                 (abandon-suspended-exchange http)
                 (abandon-content http))
               (when (and (connection-parkable-p connection) (connection-output connection))
                 (end-queue (connection-queue connection))) ; its peer does not take it
               (when (and http (not (eq (http-stream http) socket-stream)))
                 (handler-case (close (http-stream http))
                   ;; A client that is gone gets no farewell of TLS.
                   (error () (close (http-stream http) :abort t)))))
          (when io
            (end-tls io)
            (drop-descriptor io)
            (close-lent io)))))
    more-p))
