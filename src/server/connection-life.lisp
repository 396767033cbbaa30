(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The life of a connection that speaks HTTP, between the engine and an application.
;;;;
;;;;   the engine calls SERVE   WAITING-INPUT reads a head, and spools content;
;;;;                            RESPOND has the application answer, to the buffered connection;
;;;;                            octets that the socket did not accept stay in the send queue
;;;;   SERVE returns            :CLOSE, :PARK, :DEFERRED, :DETACHED or :BROKEN
;;;;   SERVE after :DEFERRED    CONTINUE-HTTP-CONNECTION continues the suspended exchange

(declaim (inline connection-suspended-exchange))
(defun connection-suspended-exchange (connection)
  "The SUSPENDED-EXCHANGE of CONNECTION; NIL while requests are read, and before."
  (let ((http (connection-data connection)))
    (and http (http-suspended-exchange http))))

(defmethod serve ((application http-service) connection resuming-p)
  (note-missed-input connection)
  (let ((outcome (cond ((null (connection-suspended-exchange connection))
                        (and (not resuming-p)
                             (serve-request-of application connection)))
                       (resuming-p
                        (resume-exchange-of connection))
                       (t
                        (continue-after-event (connection-data connection))))))
    (and outcome
         (settled-outcome connection outcome))))

(defvar *free-worker-buffers* (make-free-list 16)
  "Worker buffers that no thread uses: a thread borrows some when it resumes another connection than
the one that it serves.")

(defun resume-exchange-of (connection)
  "The result of CONTINUE-HTTP-CONNECTION for CONNECTION in a resuming thread."
  (let ((*worker-buffers* (or (take-from-free-list *free-worker-buffers*) (make-worker-buffers))))
    (prog1 (continue-http-connection (connection-data connection) t)
      (put-on-free-list *free-worker-buffers* *worker-buffers*))))

(defun settled-outcome (connection outcome)
  "OUTCOME of a service of CONNECTION, as SERVE returns it: :BROKEN where the rest of its output
cannot be sent, and :NEXT instead of :PARK where octets that were read are still to be served."
  (cond ((or (eq :broken outcome) (not (settle-output connection)))
         :broken)
        (t
         (when (and (eq :park outcome)
                    (null (connection-output connection))
                    (input-to-serve-p connection))
           (setf outcome :next))
         (when (all-read-p connection)
           (setf (connection-input connection) :read))
         outcome)))

(defun serve-request-of (application connection)
  "Reads a request of CONNECTION and has APPLICATION answer it.  Returns the outcome for
CONNECTION."
  (let* ((kind (reading-kind application))
         (input (waiting-input application connection kind))
         (outcome (case input
                    (:none :park)
                    (:end :close)
                    (:some
                     (respond-or-abandon application
                                         (make-exchange application connection :kind kind)))
                    (t
                     (or (outcome-after-queue application connection input)
                         (respond-or-abandon application
                                             (make-exchange application connection
                                                            :kind kind :head input)))))))
    (case outcome
      (:deferred                        ; it may have been answered in the meantime
       (setf outcome (continue-http-connection (connection-data connection) nil)))
      (t (when (eq :none input)
           (leave-reading-to-engine connection))))
    outcome))

(defun respond-or-abandon (application exchange)
  "The result of RESPOND.  However RESPOND is left, a deferred reply that no suspended exchange
continues is ended."
  (when (established-http (exchange-connection exchange))
    (let* ((io (http-io (exchange-http exchange)))
           (pace (io-pace io)))         ; of content that has begun to come
      ;; The progress of the client is counted from 0.
      (reset-taking (io-queue (io-base io)))
      (when pace
        (decf (pace-received pace) (io-received io)))
      (setf (io-received io) 0)))
  (note-task exchange)
  (unwind-protect (respond application exchange)
    (note-task nil)
    (let ((deferred-response (exchange-deferred-response exchange))
          (http (exchange-http exchange)))
      (when (and deferred-response
                 (not (and http (eq deferred-response (http-suspended-exchange http)))))
        (end-deferred-response deferred-response)))))

;;; Before the first request

(defun establish-http-connection (application socket connection)
  "Prepares CONNECTION, with SOCKET, for its first request to APPLICATION.  If the worker does a TLS
handshake, that happens here, under a deadline.  Signals PEER-GONE when the client has left, or when
the handshake failed, which was logged."
  (let ((socket-stream (socket-octet-stream socket))
        (http (or (connection-data connection) ; made for a header of the PROXY protocol
                  (http-connection-to-socket application socket))))
    (settle-io http connection socket-stream
               (call-with-deadline connection :handshake (seconds-for application :handshake)
                                   (lambda ()
                                     (checked-program-stream application socket-stream))))
    (setf (connection-data connection) http)))

(defun checked-program-stream (application socket-stream)
  "The stream that APPLICATION makes of SOCKET-STREAM.  Signals PEER-GONE after a failed handshake,
which is logged."
  (handler-bind ((error (lambda (condition)
                          (when (and (encrypted-p application) (handshake-failure-kind condition))
                            (note-failed-handshake application condition)
                            (error 'peer-gone)))))
    (program-stream application socket-stream)))

(defun http-connection-of (application socket connection)
  "The HTTP connection of CONNECTION, with SOCKET; established for APPLICATION if there is none."
  (or (established-http connection)
      (establish-http-connection application socket connection)))

(defun try-to-establish (application connection)
  "Establishes the HTTP connection of CONNECTION, outside of the methods of a program.  Returns NIL
when the client has left, or the handshake failed.  With TLS, any other error is logged as a failed
handshake, too."
  (handler-bind ((error (lambda (condition)
                          (when (encrypted-p application)
                            (note-failed-handshake application condition)
                            (return-from try-to-establish nil)))))
    (handler-case (establish-http-connection application (connection-usocket connection) connection)
      (peer-gone () nil))))

;;; A worker waits, or a program reads first

(defun next-request-missing (application socket exchange wait-p)
  "Reads the head of the next request to APPLICATION of the connection of EXCHANGE, with SOCKET.
Waits for it if WAIT-P, and for its content.  Stores it in EXCHANGE and returns NIL; if there is
none, returns the outcome for the connection, as RESPOND does."
  (let* ((connection (exchange-connection exchange))
         (http (handler-case (http-connection-of application socket connection)
                 ;; The client may leave before its address is read.
                 (peer-gone () (return-from next-request-missing :close))))
         (head (if (http-waits-p http)
                   (read-next-request application socket connection http)
                   (await-request application socket connection http wait-p))))
    (when (typep head 'head)
      (setf head (request-with-content application connection http head t)))
    (case head
      (:end :close)
      (:none :park)
      (t
       (setf (exchange-head exchange) head
             (exchange-began exchange) (microseconds)
             (exchange-status exchange) nil
             (exchange-counted-p exchange) nil)
       (outcome-after-queue application connection head)))))

;;; Before each request

(defun waiting-input (application connection kind)
  "The input of CONNECTION, of KIND, after an event: the head of a request that the server has read;
:SOME input for the first reader; :NONE so far; or its :END."
  (let ((http (established-http connection)))
    (cond ((and (null http) (proxy-header-due-p application connection))
           (input-after-proxy-header application connection kind))
          ((not (connection-parkable-p connection)) ; its worker waits
           :some)
          ((and http (http-handshaking-p http))
           (input-after-handshake application connection http kind))
          ((and http (content-pending-p http) (not (eq :own kind)))
           :end)                        ; a reader would take the rest of the content for a request
          ((eq :foreign kind)
           (octets-waiting connection))
          ((and http (http-waits-p http))
           (if (input-waiting-p (http-io http)) :some (octets-waiting connection)))
          ((and http (eq :wrapped kind))
           (waiting-request application connection http t))
          (http
           (whole-request application connection http))
          ((and (encrypted-p application) (eq :none (octets-waiting connection)))
           :none)
          ((handshake-begins-p application connection kind)
           (handler-case (input-after-handshake application connection
                                                (begin-handshake application connection) kind)
             (peer-gone () :end)))
          ((and (encrypted-p application) (eq :wrapped kind))
           :some)                       ; the program may read first
          ((try-to-establish application connection)
           (waiting-input application connection kind))
          (t :end))))

(defun input-after-handshake (application connection http kind)
  "The result of WAITING-INPUT for CONNECTION, of KIND, once the handshake over HTTP is done; until
then :NONE, or :END where it fails."
  (multiple-value-bind (done-p result) (continue-handshake application connection http)
    (if done-p
        (waiting-input application connection kind)
        result)))

(defun input-after-proxy-header (application connection kind)
  "The result of WAITING-INPUT for CONNECTION, of KIND, once its header of the PROXY protocol has
come whole; until then :NONE, or :END where it is malformed."
  (if (and (connection-parkable-p connection) (eq :none (octets-waiting connection)))
      :none
      (let ((result (take-proxy-header application connection)))
        (if (eq :read result)
            (waiting-input application connection kind)
            result))))

(defun octets-waiting (connection)
  "Returns :SOME when the descriptor of CONNECTION has input, otherwise :NONE."
  (if (await-descriptor (connection-descriptor connection) :input :until (milliseconds))
      :some
      :none))

;;; Questions of the engine

(defun note-missed-input (connection)
  "Makes the next reader of CONNECTION look for input where the engine may have consumed an event."
  (when (eq :missed (shiftf (connection-input connection) nil))
    (let* ((http (established-http connection))
           (io (and http (http-io http))))   ; none before the handshake
      (when io
        (setf (io-drained-p io) nil)))))

(defun input-to-serve-p (connection)
  "True when octets of CONNECTION that were read already, or its end, are to be served: the poller
will not report them.  Otherwise returns the empty buffers."
  (let* ((http (established-http connection))
         (io (and http (http-io http))))
    (cond ((null http) nil)
          ((http-handshaking-p http) nil)   ; OpenSSL has read all
          ;; A part of a request is no input to serve, and its reader has read all.
          ((and (null (http-parser http)) (not (content-pending-p http))
                (or (input-waiting-p io)
                    (io-awaits-output-p io)))     ; SERVE leaves this to the engine
           t)
          (t
           (lend-no-buffers io)
           nil))))

(defun all-read-p (connection)
  "True when all octets of CONNECTION that had come were read."
  (let ((http (established-http connection)))
    (and http
         (not (http-handshaking-p http))
         (not (http-waits-p http))
         ;; An unfinished head stays in the buffered connection.
         (if (http-parser http)
             (io-drained-p (http-io http))
             (io-all-read-p (http-io http))))))

(defmethod keep-unread-input ((application http-service) engine connection)
  (let ((http (connection-data connection)))
    (or (null http)
        (null (http-io http))
        (keep-waiting-input engine http))))

(defmethod input-kept-p ((application http-service) connection)
  (let* ((http (connection-data connection))
         (io (and http (http-io http)))
         (content (and http (content-pending-p http) (http-content http)))
         (suspended-exchange (and http (http-suspended-exchange http))))
    (and io
         (or (plusp (io-reserved io))
             (and content (plusp (content-reserved content)))
             (and (websocket-p suspended-exchange)
                  (plusp (account-size (websocket-memory suspended-exchange))))))))

(defmethod give-notice ((application http-service) connection)
  "Answers a request that came in part with 408 (RFC 9110, section 15.5.9).  A client that has not
begun one gets no answer, unless it is refused."
  (let ((kind (connection-deadline-kind connection)))
    (if (member kind *refusal-reasons*)
        (turn-away application connection kind)
        (notice-of-late-request application connection))))

(defun notice-of-late-request (application connection)
  "Answers the unfinished request of CONNECTION to APPLICATION, if there is one; else NIL."
  (let ((http (established-http connection)))
    (and http
         (io-open-p (http-io http))
         (not (http-waits-p http))      ; a reply could wait, too
         (let ((refusal (reject-late application connection http)))
           (and refusal
                (send-refusal-at-once (http-io http) refusal))))))

(defun reject-late (application connection http)
  "Counts and logs the unfinished request over HTTP, of CONNECTION, which is late or evicted.
Returns its refusal, or NIL when there is no unfinished request."
  (let ((parser (http-parser http))
        (refusal (make-refusal (if (eq :evicted (connection-deadline-kind connection))
                                   :no-memory
                                   :request-timeout))))
    (cond ((content-pending-p http)
           (reject-content application http refusal))
          ((and parser (parser-begun-p parser))
           (multiple-value-call #'note-rejected application http refusal
             (request-line-so-far http parser))
           refusal))))

(defun more-may-come-p (connection)
  "True when the client of CONNECTION may send more.  A client that has announced its last request,
and sent more all the same, may still be sending."
  (let ((http (established-http connection)))
    (not (and http
              (eq :over (http-phase http))
              (not (input-left-p (http-io http)))))))

;;; After each request

(defun settle-output (connection)
  "True where the engine sends the rest of the answer of CONNECTION.  Otherwise the worker waits for
the peer, and the result is NIL when that is gone, or takes no octets in time."
  (or (null (connection-output connection))
      (connection-parkable-p connection)
      (send-rest (io-base (http-io (connection-data connection))))))

(defun leave-reading-to-engine (connection)
  "For CONNECTION, which has no input: if its transport has octets to send before it can read on,
has the engine continue when the peer takes octets."
  (let* ((http (established-http connection))
         (io (and http (http-io http))))
    (when (and io (io-awaits-output-p io) (null (connection-output connection)))
      (write-parts (connection-queue connection)
                   (list (make-step-part (lambda ()
                                           (await-descriptor (connection-descriptor connection)
                                                             :output :until (milliseconds)))))))))

;;; The end

(defmethod release ((application http-service) connection)
  (prog1 (more-may-come-p connection)   ; a released connection has no input
    (let-go-of application connection)))

(defun let-go-of (application connection)
  "Releases the state of CONNECTION for APPLICATION, and flushes its output."
  (let ((http (established-http connection))
        (socket (connection-socket connection)))
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
                 ;; A TLS stream closes the stream that it was made of.
                 ;; The engine is closing the descriptor, and may still drain what comes.
                 (when (and io (eq :engine (io-owner io)))
                   (setf (io-owner io) :closing))
                 (close-outer-stream application
                                     (http-stream http)))
               (when (and (open-stream-p socket-stream)
                          (not (dead-p (connection-queue connection))))
                 (finish-output socket-stream)))
          (when io
            (end-tls io)
            (drop-descriptor io)
            (close-lent io)))))))

(defun close-outer-stream (application stream)
  "Closes STREAM, which PROGRAM-STREAM of APPLICATION has made of the stream of a socket."
  (handler-bind ((error (lambda (condition)
                          (declare (ignore condition))
                          ;; TLS ends with a farewell message.  A client that is gone does not get
                          ;; it, which is no failure; but the conditions of OpenSSL do not
                          ;; distinguish it from one.
                          (when (encrypted-p application)
                            (close stream :abort t)
                            (return-from close-outer-stream nil)))))
    (close stream)))
