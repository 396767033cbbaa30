(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The head of the next request of a connection, and what becomes of one that is not acceptable, or
;;;; does not come in time.

(defun waiting-request (application connection link &optional ahead-p)
  "The head of the next request over LINK; :NONE when it has not come whole; :END when none will
come, or when what came was refused.  When AHEAD-P, what came is left to be read by whoever comes
first, and where it does not begin a request that is :SOME."
  (let* ((wire (link-wire link))
         (parser (or (shiftf (link-parser link) nil) (take-parser (application-limits application))))
         (head nil)
         (result (handler-case
                     (acceptable-head
                      application
                      (setf head (cond (ahead-p (read-head-ahead wire parser))
                                       ((connection-parkable-p connection)
                                        (head-unless-late link parser (read-head wire parser)))
                                       (t (read-head-in-time link parser)))))
                   (descriptor-broken () :end)
                   (protocol-error (refusal)
                     (cond (ahead-p :some)
                           (t (reject application link parser head refusal)
                              :end))))))
    (when ahead-p
      (setf result (leave-to-others wire result)))
    (cond ((not (eq :none result))
           (setf (link-head-deadline link) nil)
           (release-input wire)
           (return-parser parser)
           result)
          ((keep-parser application connection link parser)
           :none)
          (t                            ; without an answer where others may read
           (setf (link-parser link) nil)
           (unless ahead-p
             (reject application link parser nil (make-refusal :no-memory)))
           :end))))

(defun head-late-p (link)
  "True when what comes over LINK should have come whole by now."
  (let ((deadline (link-head-deadline link)))
    (and deadline (<= deadline (milliseconds)))))

(defun head-unless-late (link parser head)
  "HEAD, what PARSER has read over LINK.  Signals PROTOCOL-ERROR where a part has come, and the whole should have.
The sentinel ends who is parked; whose head comes in parts until the end may always be owned when it looks."
  (when (and (eq head :none)
             (parser-begun-p parser)
             (head-late-p link))
    (error (make-refusal :request-timeout)))
  head)

(defun read-head-in-time (link parser)
  "Like READ-HEAD, over LINK, where a worker waits for it.  Signals PROTOCOL-ERROR when a head came in part,
and the rest not in time: the sentinel ends the input then."
  (let ((head (handler-case (read-head (link-wire link) parser)
                (stream-timeout () :late)
                ;; Not every Lisp tells what has ended a wait.
                (descriptor-broken (condition)
                  (if (head-late-p link) :late (error condition))))))
    (cond ((not (or (eq head :late) (and (eq head :end) (head-late-p link))))
           head)
          ((parser-begun-p parser)
           (error (make-refusal :request-timeout)))
          (t :end))))

(defun reject (application link parser head refusal)
  "Answers the request over LINK, which PARSER has read as HEAD or, if that is NIL, not whole, with
REFUSAL."
  (if (tls-begun-p link refusal)
      ;; Who speaks TLS takes an answer in plain text for a broken record.
      (note-rejected application link (make-refusal :tls-to-plain-http))
      (handler-case
          (progn
            ;; First, so that a client which has its answer finds the request counted.
            (multiple-value-call #'note-rejected application link refusal
              (if head
                  (values (head-method head) (head-uri head) (head-protocol head))
                  (request-line-so-far link parser)))
            (send-refusal (link-wire link) refusal))
        (descriptor-broken () nil))))   ; who is gone does not get it

(defun request-line-so-far (link parser)
  "What KNOWN-REQUEST-LINE returns for PARSER, which has read over LINK."
  (let ((wire (link-wire link)))
    (known-request-line parser (or (wire-input wire) (make-octets 0))
                        (+ (wire-start wire) (wire-kept wire)) (wire-end wire))))

(defun tls-begun-p (link refusal)
  "True when REFUSAL is of the beginning of a TLS handshake over LINK."
  (let ((wire (link-wire link)))
    (and (eq :malformed-method (protocol-error-refusal refusal))
         (input-left-p wire)
         ;; No more than this may have come.
         (= +tls-handshake-record+ (aref (wire-input wire) (wire-start wire))))))

(defun leave-to-others (wire result)
  "RESULT, what looking ahead in WIRE has found; also octets that are no request can be read."
  (cond ((and (eq result :end) (input-left-p wire))
         (begin-anew wire)
         :some)
        (t
         (when (eq result :some)
           (begin-anew wire))
         result)))

(defun acceptable-head (application head)
  "HEAD, or what READ-HEAD returned in place of one.  Signals PROTOCOL-ERROR for one that APPLICATION does
not serve, and for CONNECT: after a 2xx to that, what follows is no HTTP."
  (when (typep head 'head)
    (case (head-method head)
      ((:get :head))                    ; everybody serves these (RFC 9110, section 9.1)
      (:connect (error (make-refusal :connect-not-served)))
      (t (check-head application head))))
  head)

(defun keep-parser (application connection link parser)
  "Keeps the octets that PARSER has read until more comes: of a head, or of the empty lines before one.  What has
been read of a head is not input that waits: only the poller tells when there is more.  NIL where there is no memory for
them."
  ;; Over TLS octets may come that make no octet of a request yet.
  (settle-head-deadline application connection link (awaited-of connection parser))
  (cond ((parser-fresh-p parser)
         (return-parser parser))
        (t
         (forget-head parser)
         (setf (link-parser link) parser)))
  (input-kept-p (worker-engine *worker*) link))

(defun input-kept-p (engine link)
  "Keeps what came over LINK, of a connection of ENGINE, that waits: input, as KEEP-INPUT does, and the request of which the
rest, or whose reply, is to come.  Where there is no memory for it, others that have kept some for longest give way first, so
that new clients get in."
  (let* ((wire (link-wire link))
         (more (request-memory-kept link))
         (share (if (and (link-continuation link) (plusp more)) *request-share* *waiting-share*)))
    (or (keep-input wire more share)
        (and (evict-oldest engine)
             (keep-input wire more share)))))

(defun request-memory-kept (link)
  "How many octets of memory the request that came over LINK takes while the rest of it, or its reply, is to come."
  (let ((body-prefetch (link-body-prefetch link))
        (continuation (link-continuation link)))
    (cond (body-prefetch
           (or (body-prefetch-memory body-prefetch)
               (setf (body-prefetch-memory body-prefetch) (head-memory (body-prefetch-head body-prefetch)))))
          (continuation (continuation-memory continuation))
          (t 0))))

(defun awaited-of (connection parser)
  "What CONNECTION, whose PARSER has no whole head, waits for: the kind of its deadline."
  (cond ((parser-begun-p parser) :head)
        ((and (parser-fresh-p parser) (zerop (connection-served connection))) :first-byte)
        (t :idle)))

(defun settle-head-deadline (application connection link kind)
  "Gives CONNECTION the deadline of what came in part over LINK: all of a head has one, and so have all
empty lines and parts of TLS records before it, or a client could send an octet a second for ever."
  (unless (and (link-head-deadline link)
               (eq kind (link-awaited link)))
    (set-deadline connection kind (idle-seconds application) (milliseconds))
    (setf (link-head-deadline link) (connection-deadline connection)
          (link-awaited link) kind))
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) (link-head-deadline link)))

;;; By a worker that waits

(defparameter *look-milliseconds* 250
  "How often a worker that waits for the next request of its connection looks whether it still should.")

(defun await-request (application socket connection link wait-p)
  "The head of the next request of CONNECTION, with SOCKET, to APPLICATION, over LINK, which does not wait;
:END when none comes, and :NONE when it has not come and WAIT-P is false."
  (loop for input = (waiting-request application connection link)
        while (and wait-p (eq input :none))
        unless (await-more application socket connection link)
          return :end
        finally (unless (eq input :none)
                  (setf (connection-deadline connection) nil))
                (return input)))

(defun read-next-request (application socket connection link)
  "The head of the next request of CONNECTION, with SOCKET, to APPLICATION, over LINK, which waits; :END when
none comes."
  (if (or (zerop (connection-served connection)) ; then there is somebody who wants something
          (await-more application socket connection link))
      (let ((seconds (idle-seconds application)))
        (setf (link-head-deadline link) (end-after seconds))
        (call-with-deadline connection :head seconds
                            (lambda ()
                              (waiting-request application connection link))))
      :end))

(defun await-more (application socket connection link)
  "Waits until more of CONNECTION comes by SOCKET, over LINK.  NIL when nobody should wait for a request
any more."
  (when (and (link-waits-p link)        ; else what was buffered has been read
             (input-waiting-p (link-wire link)))
    (return-from await-more t))
  (finish-output (link-stream link))
  (unless (connection-deadline connection)
    ;; The sentinel will end it, so that its input is at the end.
    (set-deadline connection :idle (idle-seconds application) (milliseconds)))
  (loop until (await-input socket :until (+ (milliseconds) *look-milliseconds*))
        never (or (and (null (link-parser link))
                       (winding-down-p (worker-engine *worker*)))
                  ;; Nor for the rest of a head, when there was time enough for it.
                  (drain-over-p (worker-engine *worker*) (milliseconds)))))
