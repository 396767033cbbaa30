(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The life of a connection that speaks HTTP, between the engine and an application.
;;;;
;;;;   the engine calls SERVE:  WAITING-INPUT reads a head, and content that is received early
;;;;                            RESPOND has the application answer, which writes to the buffered connection
;;;;                            what the socket did not take stays in the connection's queue
;;;;   and gets back            :CLOSE, :PARK, :DEFERRED, :DETACHED or :BROKEN
;;;;   or, after :DEFERRED,     CONTINUE-HTTP-CONNECTION goes on with what is to come later

(declaim (inline connection-suspended-exchange))
(defun connection-suspended-exchange (connection)
  "What goes on over CONNECTION, a SUSPENDED-EXCHANGE; NIL while requests are read, and before."
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

(defun resume-exchange-of (connection)
  "What CONTINUE-HTTP-CONNECTION returns for CONNECTION in a resuming thread."
  (flet ((continue-it ()
           (continue-http-connection (connection-data connection) t)))
    (declare (dynamic-extent #'continue-it))
    (call-with-borrowed-worker-buffers #'continue-it)))

(defmethod output-unwanted-p ((application http-service) connection)
  (let ((suspended-exchange (connection-suspended-exchange connection)))
    (and suspended-exchange (over-at-once-p suspended-exchange))))

(defun settled-outcome (connection outcome)
  "OUTCOME of a service of CONNECTION, as SERVE returns it: :BROKEN where what is left of its output
cannot be sent, and :NEXT in place of :PARK where what was read has not been served."
  (cond ((or (eq :broken outcome) (not (output-settled-p connection)))
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
  "Reads a request of CONNECTION, has APPLICATION answer it, and returns what is to become of
CONNECTION."
  (let* ((kind (reading-kind application))
         (input (waiting-input application connection kind))
         (outcome (case input
                    (:none :park)
                    (:end :close)
                    (t
                     (respond-or-abandon application
                                         (make-exchange application connection
                                                        :kind kind
                                                        :head (if (eq input :some) nil input)))))))
    (case outcome
      (:deferred                        ; it may have been answered meanwhile
       (setf outcome (continue-http-connection (connection-data connection) nil)))
      (t (when (eq :none input)
           (leave-reading-to-engine connection))))
    outcome))

(defun respond-or-abandon (application exchange)
  "What RESPOND returns.  However it is left, a reply that was deferred is sent by who continues it,
or abandoned."
  (when (exchange-http exchange)
    (begin-request-on (http-io (exchange-http exchange))))
  (unwind-protect (respond application exchange)
    (let ((deferred-response (exchange-deferred-response exchange))
          (http (exchange-http exchange)))
      (when (and deferred-response
                 (not (and http (eq deferred-response (http-suspended-exchange http)))))
        (end-deferred-response deferred-response)))))

;;; Before the first request

(defun establish-http-connection (application socket connection)
  "Prepares CONNECTION, with SOCKET, for its first request to APPLICATION.  Where a TLS handshake is
the worker's, it happens here, under a deadline.  Signals PEER-GONE where nobody is there any more,
or the handshake failed, which was told."
  (let ((socket-stream (socket-octet-stream socket))
        (http (http-connection-to-socket application socket)))
    (settle-io http connection socket-stream
               (call-with-deadline connection :handshake (idle-seconds application)
                                   (lambda ()
                                     (shaken-stream application socket-stream))))
    (setf (connection-data connection) http)))

(defun shaken-stream (application socket-stream)
  "The stream that APPLICATION makes of SOCKET-STREAM.  Signals PEER-GONE where a handshake failed
in that."
  (handler-bind ((error (lambda (condition)
                          (when (and (encrypted-p application) (handshake-failure-kind condition))
                            (note-failed-handshake application condition)
                            (error 'peer-gone)))))
    (program-stream application socket-stream)))

(defun http-connection-of (application socket connection)
  "The HTTP connection of CONNECTION, with SOCKET, established for APPLICATION when it has none."
  (or (connection-data connection)
      (establish-http-connection application socket connection)))

(defun established-p (application connection)
  "Establishes the HTTP connection of CONNECTION, outside of the methods of a program.  NIL when
nobody is there any more, or the handshake failed; what else fails there is told as that."
  (handler-bind ((error (lambda (condition)
                          (when (encrypted-p application)
                            (note-failed-handshake application condition)
                            (return-from established-p nil)))))
    (handler-case (establish-http-connection application (connection-usocket connection) connection)
      (peer-gone () nil))))

;;; By a worker that waits, or where a program reads first

(defun next-request-missing (application socket exchange wait-p)
  "Reads the head of the next request to APPLICATION of the connection of EXCHANGE, with SOCKET, and
gives it to EXCHANGE: returns NIL.  Waits for it if WAIT-P.  Where there is none, returns what is to
become of the connection, as RESPOND does."
  (let* ((connection (exchange-connection exchange))
         (http (handler-case (http-connection-of application socket connection)
                 ;; A client may leave before we ask who it is.
                 (peer-gone () (return-from next-request-missing :close))))
         (head (if (http-waits-p http)
                   (read-next-request application socket connection http)
                   (await-request application socket connection http wait-p))))
    (case head
      (:end :close)
      (:none :park)
      (t
       (setf (exchange-head exchange) head)
       nil))))

;;; Before each request

(defun waiting-input (application connection kind)
  "What a worker that was told of CONNECTION, of KIND, finds: the head of a request, which we have
read; :SOME input, which whoever comes first is to read; :NONE yet; or the :END."
  (let ((http (connection-data connection)))
    (cond ((not (connection-parkable-p connection)) ; its worker waits
           :some)
          ((and http (http-shaking-p http))
           (input-after-handshake application connection http kind))
          ((and http (http-body-prefetch http) (not (eq :own kind)))
           :end)                        ; who reads now would take the rest of content for a request
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
           :some)                       ; the program may read before the handshake
          ((established-p application connection)
           (waiting-input application connection kind))
          (t :end))))

(defun input-after-handshake (application connection http kind)
  "What WAITING-INPUT returns for CONNECTION, of KIND, once the handshake over HTTP is done; until
then :NONE, or :END where it fails."
  (multiple-value-bind (done-p result) (shaken-p application connection http)
    (if done-p
        (waiting-input application connection kind)
        result)))

(defun octets-waiting (connection)
  "Whether the descriptor of CONNECTION has :SOME input, or :NONE."
  (if (await-descriptor (connection-descriptor connection) :input :until (milliseconds))
      :some
      :none))

;;; What the engine asks

(defun note-missed-input (connection)
  "Lets whoever reads CONNECTION next look, where the engine may have got an event that it does not
tell of."
  (when (eq :missed (shiftf (connection-input connection) nil))
    (let* ((http (connection-data connection))
           (io (and http (http-io http))))   ; none before the handshake
      (when io
        (setf (io-drained-p io) nil)))))

(defun input-to-serve-p (connection)
  "True when octets of CONNECTION that were read already, or its end, are to be served, of which the
poller will not tell.  Otherwise gives back the buffers that hold nothing."
  (let* ((http (connection-data connection))
         (io (and http (http-io http))))
    (cond ((null http) nil)
          ((http-shaking-p http) nil)   ; OpenSSL has read all
          ;; A part of a request is no input to be served, and who read it has read all.
          ((and (null (http-parser http)) (null (http-body-prefetch http))
                (or (input-waiting-p io)
                    (io-awaits-output-p io)))     ; which SERVE leaves to the engine
           t)
          (t
           (lend-no-buffers io)
           nil))))

(defun all-read-p (connection)
  "True when all octets that had come of CONNECTION were read."
  (let ((http (connection-data connection)))
    (and http
         (not (http-shaking-p http))
         (not (http-waits-p http))
         ;; An unfinished head stays in the buffered connection.
         (if (http-parser http)
             (io-drained-p (http-io http))
             (io-all-read-p (http-io http))))))

(defmethod give-notice ((application http-service) connection)
  "A request that came in part is answered 408 (RFC 9110, section 15.5.9); who has not begun one was
asked nothing, and is told nothing."
  (let ((http (connection-data connection)))
    (and http
         (io-open-p (http-io http))
         (not (http-waits-p http))      ; nor may we
         (let ((refusal (reject-late application connection http)))
           (and refusal
                (send-refusal-at-once (http-io http) refusal))))))

(defun reject-late (application connection http)
  "Counts and logs the request that came in part over HTTP, of CONNECTION, which is late, or
evicted; returns its refusal, or NIL when there is none."
  (let ((parser (http-parser http))
        (refusal (make-refusal (if (eq :evicted (connection-deadline-kind connection))
                                   :no-memory
                                   :request-timeout))))
    (cond ((http-body-prefetch http)
           (reject-body-prefetch application http refusal))
          ((and parser (parser-begun-p parser))
           (multiple-value-call #'note-rejected application http refusal
             (request-line-so-far http parser))
           refusal))))

(defun more-may-come-p (connection)
  "True when the client of CONNECTION may send more.  One that has said it would not, and has sent
more all the same, may still be sending it."
  (let ((http (connection-data connection)))
    (not (and http
              (http-over-p http)
              (not (input-left-p (http-io http)))))))

;;; After each request

(defun output-settled-p (connection)
  "True where the engine sends what the socket of CONNECTION did not take of the answer.  Where a
worker keeps the connection, it waits for the peer: NIL when that is gone, or takes none in time."
  (or (null (connection-output connection))
      (connection-parkable-p connection)
      (unsent-sent-p (io-base (http-io (connection-data connection))))))

(defun leave-reading-to-engine (connection)
  "Has the engine go on with CONNECTION, of which nothing has come, when its peer takes octets,
where what carries its buffered connection has some of its own to send before it reads on."
  (let* ((http (connection-data connection))
         (io (and http (http-io http))))
    (when (and io (io-awaits-output-p io) (null (connection-output connection)))
      (enqueue (connection-queue connection)
               (list (make-step-part (lambda ()
                                       (await-descriptor (connection-descriptor connection) :output
                                                         :until (milliseconds)))))))))

;;; The end

(defmethod release ((application http-service) connection)
  (prog1 (more-may-come-p connection)   ; what is let go of has no input
    (let-go-of application connection)))

(defun let-go-of (application connection)
  "Gives up what APPLICATION keeps for CONNECTION, and flushes what is to be flushed."
  (let ((http (connection-data connection))
        (socket (connection-socket connection)))
    (when socket
      (let* ((socket-stream (socket-octet-stream socket))
             (io (stream-io socket-stream)))
        (unwind-protect                 ; a program may end its thread amid that
             (progn
               (when http
                 (release-input (http-io http))
                 (abandon-suspended-exchange http)
                 (abandon-body-prefetch http))
               (when (connection-parkable-p connection) ; the engine has sent what is to be sent
                 (clear-queue (connection-queue connection)))
               (when (and http (not (eq (http-stream http) socket-stream)))
                 ;; TLS streams close what they are made of.
                 (when io
                   (leave-end-to-engine io))
                 (close-outer-stream application
                                     (http-stream http)))
               (when (open-stream-p socket-stream)
                 (finish-output socket-stream)))
          (when io
            (end-encryption io)
            (drop-descriptor io)
            (close-lent io)))))))

(defun close-outer-stream (application stream)
  "Closes STREAM, which PROGRAM-STREAM has made for APPLICATION of a socket's."
  (handler-bind ((error (lambda (condition)
                          (declare (ignore condition))
                          ;; TLS ends with a farewell.  Who is gone does not get it: that is no
                          ;; failure, and OpenSSL's conditions do not tell it from others.
                          (when (encrypted-p application)
                            (close stream :abort t)
                            (return-from close-outer-stream nil)))))
    (close stream)))
