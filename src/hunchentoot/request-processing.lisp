(in-package #:hunchentoot-recycling-taskmaster)

;;;; One request by our own code: its head is read off a descriptor without waiting, its
;;;; objects are Hunchentoot's, and its reply is made of octets: sent at once where a handler
;;;; returns it whole, else as the handler writes it (streaming.lisp).
;;;;
;;;;   octets -> head (waiting-request) -> content (whole-request) -> PROCESS-CONNECTION (process-head)
;;;;          -> PROCESS-REQUEST (reply.lisp) -> octets

(defun waiting-request (connection acceptor link &optional ahead-p)
  "The head of the next request over LINK; :NONE when it has not come whole; :END when none will
come, or when what came was refused.  When AHEAD-P, what came is left to be read by whoever comes
first, and where it does not begin a request that is :SOME."
  (let* ((wire (link-wire link))
         (parser (or (shiftf (link-parser link) nil) (take-parser (acceptor-limits acceptor))))
         (head nil)
         (result (handler-case
                     (handler-case
                         (acceptable-head (setf head (cond (ahead-p (read-head-ahead wire parser))
                                                           ((connection-parkable-p connection)
                                                            (read-head wire parser))
                                                           (t (read-head-in-time link parser)))))
                       (protocol-error (refusal)
                         (cond (ahead-p :some)
                               (t (reject acceptor link parser head refusal)
                                  :end))))
                   (descriptor-broken () :end)))) ; read from, or written to
    (when ahead-p
      (setf result (leave-to-others wire result)))
    (case result
      (:none (keep-parser connection acceptor link parser))
      (t (setf (link-head-deadline link) nil)
         (return-parser parser)))
    result))

(defun read-head-in-time (link parser)
  "Like READ-HEAD, over LINK, where a worker waits for it.  Signals PROTOCOL-ERROR when a head came in part,
and the rest not in time: the sentinel ends the input then."
  (flet ((late-p ()
           (let ((deadline (link-head-deadline link)))
             (and deadline (<= deadline (milliseconds))))))
    (let ((head (handler-case (read-head (link-wire link) parser)
                  (stream-timeout () :late)
                  ;; Not every Lisp tells what has ended a wait.
                  (descriptor-broken (condition)
                    (if (late-p) :late (error condition))))))
      (cond ((not (or (eq head :late) (and (eq head :end) (late-p))))
             head)
            ((parser-begun-p parser)
             (error (make-refusal :request-timeout)))
            (t :end)))))

(defun reject (acceptor link parser head refusal)
  "Answers the request over LINK, which PARSER has read as HEAD or, if that is NIL, not whole, with
REFUSAL."
  ;; First, so that a client which has its answer finds the request counted.
  (multiple-value-call #'note-rejection acceptor link refusal
    (if head
        (values (head-method head) (head-uri head) (head-protocol head))
        (known-request-line parser)))
  (send-refusal (wire-stream (link-wire link)) refusal))

(defun leave-to-others (wire result)
  "RESULT, what looking ahead in WIRE has found; also octets that are no request can be read."
  (cond ((and (eq result :end) (input-left-p wire))
         (begin-anew wire)
         :some)
        (t
         (when (eq result :some)
           (begin-anew wire))
         result)))

(defun acceptable-head (head)
  "HEAD, or what READ-HEAD returned in place of one.  Signals PROTOCOL-ERROR for a method that
Hunchentoot would refuse, and for CONNECT: after a 2xx to that, what follows is no HTTP."
  (when (typep head 'head)
    (cond ((eq :connect (head-method head))
           (error (make-refusal :connect-not-served)))
          ((not (method-served-p (head-method head)))
           (error 'protocol-error :refusal :malformed-method :status 400
                                  :section "RFC 9110, section 9"
                                  :reason "The method is not known here."))))
  head)

(defun keep-parser (connection acceptor link parser)
  "Keeps what PARSER has read until more comes: of a head, or of the empty lines before one.  What has
been read of a head is not input that waits: only the poller tells when there is more."
  ;; Over TLS octets may come that make no octet of a request yet.
  (settle-head-deadline connection acceptor link (awaited-of connection parser))
  (if (parser-fresh-p parser)
      (return-parser parser)
      (setf (link-parser link) parser))
  (lend-no-buffers (link-wire link)))

(defun awaited-of (connection parser)
  "What CONNECTION, whose PARSER has no whole head, waits for: the kind of its deadline."
  (cond ((parser-begun-p parser) :head)
        ((and (parser-fresh-p parser) (zerop (connection-served connection))) :first-byte)
        (t :idle)))

(defun settle-head-deadline (connection acceptor link kind)
  "Gives CONNECTION the deadline of what came in part over LINK: all of a head has one, and so have all
empty lines and parts of TLS records before it, or a client could send an octet a second for ever."
  (unless (and (link-head-deadline link)
               (eq kind (link-awaited link)))
    (set-deadline connection kind (hunchentoot:acceptor-read-timeout acceptor) (milliseconds))
    (setf (link-head-deadline link) (connection-deadline connection)
          (link-awaited link) kind))
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) (link-head-deadline link)))

(defun invitation (exchange stream)
  "A function that tells the client of EXCHANGE, by STREAM, to send content, unless it has its reply
already."
  (lambda ()
    (unless (headers-sent-p)
      (note-event exchange :continue)
      (copy-continue)
      (send-continue stream))))

(defun pace-content (acceptor link)
  "Holds content that is read off LINK to the least rate of ACCEPTOR."
  (let ((limits (acceptor-limits acceptor)))
    (pace-wire (link-wire link) (limits-content-rate limits) (limits-content-grace limits))))

(defun content-of (acceptor head link &optional exchange)
  "The stream from which the content of the request HEAD, which follows on LINK, is read; its client may
hold that back until it is told to send it, if there is an EXCHANGE."
  (let* ((framing (head-framing head))
         (wire (link-wire link))
         (invite (and exchange
                      (head-expect-100-continue-p head)
                      (invitation exchange (wire-stream wire)))))
    (if (eq :none framing)
        (pace-wire wire nil nil)
        (pace-content acceptor link))
    (case framing
      ;; Who asks for another protocol may be granted it, and then talks on.
      (:none (if (head-upgrade head) (link-stream link) *no-content*))
      (:chunked (make-chunked-content wire (acceptor-limits acceptor) #'answer-refusal invite))
      (t (make-content-stream (wire-stream wire) framing #'answer-refusal invite)))))

;;; Content that is received before its request is served: see reception.lisp

(defgeneric content-received-early-p (acceptor method uri)
  (:documentation "True when the content of a request to ACCEPTOR with METHOD, a keyword or a string, for
URI, a string, undecoded, is received before the request is served, as far as it is no more than
:MAX-EARLY-OCTETS; so it is by default.  When false, the request is served at once, and its handler reads
content as it comes: for programs that answer before they have all of it.  Called where connections are
parked, in a worker's thread, before there is a request object.")
  (:method (acceptor method uri)
    (declare (ignore acceptor method uri))
    t))

(defun received-early-p (acceptor head)
  "True when the content of the request HEAD, if there is any, is received before that is served."
  (and (not (eq :none (head-framing head)))
       (not (head-expect-100-continue-p head))
       (plusp (limits-early-octets (acceptor-limits acceptor)))
       (content-received-early-p acceptor (head-method head) (head-uri head))))

(defun whole-request (connection acceptor link)
  "Like WAITING-REQUEST, but :NONE until the content of the request has come too, as far as it is
received before that is served."
  (handler-case
      (cond ((link-reception link)
             (received-request connection acceptor link))
            (t
             (abandon-reception link)   ; of a request that nobody has processed
             (let ((head (waiting-request connection acceptor link)))
               (if (and (typep head 'head) (received-early-p acceptor head))
                   (begin-reception connection acceptor link head)
                   head))))
    (descriptor-broken ()
      (abandon-reception link)
      :end)))

(defun begin-reception (connection acceptor link head)
  (let ((content (content-of acceptor head link)))
    (cond ((all-buffered-p content)
           (setf (link-content link) content)
           head)
          (t
           (setf (link-reception link) (make-reception head content))
           (received-request connection acceptor link)))))

(defun received-request (connection acceptor link)
  "The head of the request whose content is being received over LINK; :NONE when more of that is to come,
:END when it will not.  Signals DESCRIPTOR-BROKEN."
  (let ((reception (link-reception link))
        (idle (as-milliseconds (hunchentoot:acceptor-read-timeout acceptor))))
    (cond ((or (eq :all (receive-ahead reception (limits-early-octets (acceptor-limits acceptor))))
               (unfinished-served-p reception idle))
           ;; At each moment LINK has one of them: whoever releases it gives back what that has.
           (setf (link-content link) (reception-content reception)
                 (link-reception link) nil)
           (reception-head reception))
          (t
           (await-rest connection acceptor link reception idle)))))

(defun await-rest (connection acceptor link reception idle)
  "Lets CONNECTION wait for the rest of RECEPTION, which comes over LINK: returns :NONE.  When it is too
late, answers the request, and returns :END.  IDLE is for how many milliseconds nothing may come, or NIL."
  (let ((now (milliseconds))
        (deadline (reception-deadline reception (acceptor-limits acceptor) idle))
        (pause (pause-end reception idle)))
    (cond ((and deadline (<= deadline now))
           (send-refusal (wire-stream (link-wire link)) (reject-reception acceptor link))
           (abandon-reception link)
           :end)
          (t
           (if (and (< now pause) (or (null deadline) (< pause deadline)))
               (set-deadline-at connection :pause pause)
               (set-deadline-at connection :body deadline))
           (lend-no-buffers (link-wire link))
           :none))))

(defun reject-reception (acceptor link)
  "Counts and logs the request whose content did not come over LINK in time; returns its refusal."
  (let ((head (reception-head (link-reception link)))
        (refusal (make-refusal :request-timeout)))
    (note-rejection acceptor link refusal
                    (head-method head) (head-uri head) (head-protocol head))
    refusal))

(defun abandon-reception (link)
  "Gives back what was received over LINK for a request that will not be served."
  (uninterruptibly                      ; or who is destroyed amid it would leave some to nobody
    (when (link-reception link)
      (drop-reception (shiftf (link-reception link) nil)))
    (when (link-content link)
      (release-content (shiftf (link-content link) nil)))))

(defun call-with-content (content thunk)
  "Calls THUNK, which processes the request with CONTENT; what that has in memory counts as garbage
then."
  (if (and (not (eq content *no-content*)) (typep content 'content))
      (unwind-protect (funcall thunk)
        (release-content content))
      (funcall thunk)))

(defun process-head (acceptor exchange link)
  "Processes the request of EXCHANGE, which came over LINK, in the context of CALL-WITH-CONNECTION-
STREAM.  True when the connection may be used for another one."
  (let* ((head (exchange-head exchange))
         (content (or (link-content link)
                      (content-of acceptor head link exchange))))
    (setf (exchange-protocol exchange) (state-after-head (exchange-protocol exchange) head))
    (copy-head head)
    (let ((hunchentoot:*reply* (make-reply acceptor))
          (hunchentoot:*session* nil))
      (when (eq :chunked (head-framing head))
        (expect-chunked-body acceptor))
      (flet ((process-it ()
               (hunchentoot:process-request
                (make-request acceptor link (head-headers head) (head-method head)
                              (head-uri head) (head-protocol head) content))))
        (declare (dynamic-extent #'process-it))
        (call-with-content content #'process-it)
        (setf (link-content link) nil))) ; until here whoever releases LINK gives it back
    (if (eq :error (our-side (exchange-protocol exchange)))
        (abandon-reply (link-stream link) (link-wire link))
        (finish-exchange acceptor exchange link content))
    (reusable-p (exchange-protocol exchange))))

(defun finish-exchange (acceptor exchange link content)
  "Completes the reply of EXCHANGE, and sees to it that the next request over LINK begins where this one's
CONTENT ends."
  (finish-request acceptor exchange (link-wire link))
  (when (member (client-side (exchange-protocol exchange)) '(:body :held))
    (note-event exchange (if (drop-rest acceptor link content) :request-end :request-fault)))
  (setf (link-over-p link) (last-request-read-p (exchange-protocol exchange))))

(defun drop-rest (acceptor link content)
  "Drops what was not read of CONTENT, which came over LINK; NIL where it is too much, or late."
  (pace-content acceptor link)          ; who has read it may have had its own
  (prog1 (drop-content content *unread-limit*)
    (pace-wire (link-wire link) nil nil)))
