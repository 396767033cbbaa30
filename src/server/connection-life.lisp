(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The life of a connection that speaks HTTP, between the engine and an application.
;;;;
;;;;   the engine calls SERVE:  WAITING-INPUT reads a head, and content that is received early
;;;;                            RESPOND has the application answer, which writes to the wire
;;;;                            what the socket did not take stays in the connection's queue
;;;;   and gets back            :CLOSE, :PARK, :DEFERRED, :DETACHED or :BROKEN
;;;;   or, after :DEFERRED,     CONTINUE-LINK goes on with what is to come later

(declaim (inline connection-continuation))
(defun connection-continuation (connection)
  "What goes on over CONNECTION, a CONTINUATION; NIL while requests are read, and before."
  (let ((link (connection-data connection)))
    (and link (link-continuation link))))

(defmethod serve ((application http-service) connection)
  (if (connection-continuation connection)
      (settle-continued connection (continue-after-event (connection-data connection)))
      (serve-request-of application connection)))

(defmethod serve-visitor ((application http-service) connection)
  (flet ((continue-it ()
           (settle-continued connection (continue-link (connection-data connection) t))))
    (declare (dynamic-extent #'continue-it))
    (and (connection-continuation connection)
         (call-with-borrowed-kit #'continue-it))))

(defmethod output-unwanted-p ((application http-service) connection)
  (let ((continuation (connection-continuation connection)))
    (and continuation (over-at-once-p continuation))))

(defun settle-continued (connection outcome)
  "OUTCOME, of CONTINUE-LINK for CONNECTION; or :BROKEN, where what is left of its output cannot be sent."
  (if (and (not (eq :broken outcome)) (output-settled-p connection))
      outcome
      :broken))

(defun serve-request-of (application connection)
  "Reads a request of CONNECTION, has APPLICATION answer it, and returns what SERVE does."
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
       (setf outcome (continue-link (connection-data connection) nil)))
      (t (when (eq :none input)
           (leave-reading-to-engine connection))))
    (if (output-settled-p connection) outcome :broken)))

(defun respond-or-abandon (application exchange)
  "What RESPOND returns.  However it is left, a reply that was deferred is sent by who continues it, or abandoned."
  (when (exchange-link exchange)
    (begin-request-on (link-wire (exchange-link exchange))))
  (unwind-protect (respond application exchange)
    (let ((deferral (exchange-deferral exchange))
          (link (exchange-link exchange)))
      (when (and deferral
                 (not (and link (eq deferral (link-continuation link)))))
        (end-deferral deferral)))))

;;; Before the first request

(defun establish-link (application socket connection)
  "Prepares CONNECTION, with SOCKET, for its first request to APPLICATION.  Where a TLS handshake is the
worker's, it happens here, under a deadline.  Signals PEER-GONE where nobody is there any more, or the
handshake failed, which was told."
  (let ((socket-stream (socket-octet-stream socket))
        (link (link-to-socket application socket)))
    (settle-wire link connection socket-stream
                 (call-with-deadline connection :handshake (idle-seconds application)
                                     (lambda ()
                                       (shaken-stream application socket-stream))))
    (setf (connection-data connection) link)))

(defun shaken-stream (application socket-stream)
  "The stream that APPLICATION makes of SOCKET-STREAM.  Signals PEER-GONE where a handshake failed in that."
  (handler-bind ((error (lambda (condition)
                          (when (and (encrypted-p application) (handshake-failure-kind condition))
                            (note-failed-handshake application condition)
                            (error 'peer-gone)))))
    (program-stream application socket-stream)))

(defun link-of (application socket connection)
  "The link of CONNECTION, with SOCKET, established for APPLICATION when it has none."
  (or (connection-data connection)
      (establish-link application socket connection)))

(defun established-p (application connection)
  "Establishes the link of CONNECTION, outside of the methods of a program.  NIL when nobody is there any
more, or the handshake failed; what else fails there is told as that."
  (handler-bind ((error (lambda (condition)
                          (when (encrypted-p application)
                            (note-failed-handshake application condition)
                            (return-from established-p nil)))))
    (handler-case (establish-link application (connection-usocket connection) connection)
      (peer-gone () nil))))

;;; By a worker that waits, or where a program reads first

(defun next-request-missing (application socket exchange wait-p)
  "Reads the head of the next request to APPLICATION of the connection of EXCHANGE, with SOCKET, and gives it to
EXCHANGE: returns NIL.  Waits for it if WAIT-P.  Where there is none, returns what is to become of the
connection, as RESPOND does."
  (let* ((connection (exchange-connection exchange))
         (link (handler-case (link-of application socket connection)
                 ;; A client may leave before we ask who it is.
                 (peer-gone () (return-from next-request-missing :close))))
         (head (if (link-waits-p link)
                   (read-next-request application socket connection link)
                   (await-request application socket connection link wait-p))))
    (case head
      (:end :close)
      (:none :park)
      (t
       (setf (exchange-head exchange) head)
       nil))))

;;; Before each request

(defun waiting-input (application connection kind)
  "What a worker that was told of CONNECTION, of KIND, finds: the head of a request, which we have read;
:SOME input, which whoever comes first is to read; :NONE yet; or the :END."
  (let ((link (connection-data connection)))
    (cond ((not (connection-parkable-p connection)) ; its worker waits
           :some)
          ((and link (link-shaking-p link))
           (input-after-handshake application connection link kind))
          ((and link (link-body-prefetch link) (not (eq :own kind)))
           :end)                        ; who reads now would take the rest of content for a request
          ((eq :foreign kind)
           (octets-waiting connection))
          ((and link (link-waits-p link))
           (if (input-waiting-p (link-wire link)) :some (octets-waiting connection)))
          ((and link (eq :wrapped kind))
           (waiting-request application connection link t))
          (link
           (whole-request application connection link))
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

(defun input-after-handshake (application connection link kind)
  "What WAITING-INPUT returns for CONNECTION, of KIND, once the handshake over LINK is done; until then :NONE,
or :END where it fails."
  (multiple-value-bind (done-p result) (shaken-p application connection link)
    (if done-p
        (waiting-input application connection kind)
        result)))

(defun octets-waiting (connection)
  "Whether the descriptor of CONNECTION has :SOME input, or :NONE."
  (if (await-descriptor (connection-descriptor connection) :input :until (milliseconds))
      :some
      :none))

;;; What the engine asks

(defmethod input-buffered-p ((application http-service) connection)
  (let* ((link (connection-data connection))
         (wire (and link (link-wire link))))
    (cond ((null link) nil)
          ((link-shaking-p link) nil)   ; OpenSSL has read all
          ;; A part of a request is no input to be served, and who read it has read all.
          ((and (null (link-parser link)) (null (link-body-prefetch link))
                (or (input-waiting-p wire)
                    (wire-awaits-output-p wire))) ; which SERVE leaves to the engine
           t)
          (t
           (lend-no-buffers wire)
           nil))))

(defmethod all-read-p ((application http-service) connection)
  (let ((link (connection-data connection)))
    (and link
         (not (link-shaking-p link))
         (not (link-waits-p link))
         (if (link-parser link)         ; the part of a head that has come stays in the wire
             (wire-drained-p (link-wire link))
             (wire-all-read-p (link-wire link))))))

(defmethod note-input-missed ((application http-service) connection)
  (let* ((link (connection-data connection))
         (wire (and link (link-wire link)))) ; none before the handshake
    (when wire
      (setf (wire-drained-p wire) nil))))

(defmethod give-notice ((application http-service) connection)
  "A request that came in part is answered 408 (RFC 9110, section 15.5.9); who has not begun one was
asked nothing, and is told nothing."
  (let ((link (connection-data connection)))
    (and link
         (wire-open-p (link-wire link))
         (not (link-waits-p link))      ; nor may we
         (let ((refusal (reject-late application connection link)))
           (and refusal
                (send-refusal-at-once (link-wire link) refusal))))))

(defun reject-late (application connection link)
  "Counts and logs the request that came in part over LINK, of CONNECTION, which is late, or evicted; returns its refusal, or
NIL when there is none."
  (let ((parser (link-parser link))
        (refusal (make-refusal (if (eq :evicted (connection-deadline-kind connection))
                                   :no-memory
                                   :request-timeout))))
    (cond ((link-body-prefetch link)
           (reject-body-prefetch application link refusal))
          ((and parser (parser-begun-p parser))
           (multiple-value-call #'note-rejected application link refusal
             (request-line-so-far link parser))
           refusal))))

(defmethod more-may-come-p ((application http-service) connection)
  "A client that has said it would send no more, and has sent more all the same, may still be sending it."
  (let ((link (connection-data connection)))
    (not (and link
              (link-over-p link)
              (not (input-left-p (link-wire link)))))))

;;; After each request

(defun output-settled-p (connection)
  "True where the engine sends what the socket of CONNECTION did not take of the answer.  Where a
worker keeps the connection, it waits for the peer: NIL when that is gone, or takes none in time."
  (or (null (connection-output connection))
      (connection-parkable-p connection)
      (unsent-sent-p (wire-base (link-wire (connection-data connection))))))

(defun leave-reading-to-engine (connection)
  "Has the engine go on with CONNECTION, of which nothing has come, when its peer takes octets, where what
carries its wire has some of its own to send before it reads on."
  (let* ((link (connection-data connection))
         (wire (and link (link-wire link))))
    (when (and wire (wire-awaits-output-p wire) (null (connection-output connection)))
      (enqueue (connection-queue connection)
               (list (make-step-part (lambda ()
                                       (await-descriptor (connection-descriptor connection) :output
                                                         :until (milliseconds)))))))))

;;; The end

(defmethod release ((application http-service) connection)
  (let ((link (connection-data connection))
        (socket (connection-socket connection)))
    (when socket
      (let* ((socket-stream (socket-octet-stream socket))
             (wire (stream-wire socket-stream)))
        (unwind-protect                 ; a program may end its thread amid that
             (progn
               (when link
                 (release-input (link-wire link))
                 (abandon-continuation link)
                 (abandon-body-prefetch link))
               (when (connection-parkable-p connection) ; the engine has sent what is to be sent
                 (clear-queue (connection-queue connection)))
               (when (and link (not (eq (link-stream link) socket-stream)))
                 ;; TLS streams close what they are made of.
                 (when wire
                   (leave-end-to-engine wire))
                 (close-outer-stream application
                                     (link-stream link)))
               (when (open-stream-p socket-stream)
                 (finish-output socket-stream)))
          (when wire
            (end-encryption wire)
            (drop-descriptor wire)
            (close-lent wire)))))))

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
