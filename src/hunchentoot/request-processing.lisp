(in-package #:hunchentoot-recycling-taskmaster)

;;;; One request by our own code: its head is read off a descriptor without waiting, its
;;;; objects are Hunchentoot's, and its reply is made of octets: sent at once where a handler
;;;; returns it whole, else as the handler writes it (streaming.lisp).
;;;;
;;;;   octets -> head (waiting-request) -> PROCESS-CONNECTION (process-head)
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

(defun content-of (acceptor exchange link)
  "The stream from which the content of the request of EXCHANGE, which follows on LINK, is read."
  (let* ((head (exchange-head exchange))
         (framing (head-framing head))
         (wire (link-wire link))
         (invite (and (head-expect-100-continue-p head) (invitation exchange (wire-stream wire)))))
    (case framing
      ;; Who asks for another protocol may be granted it, and then talks on.
      (:none (if (head-upgrade head) (link-stream link) *no-content*))
      (:chunked (make-chunked-content wire (acceptor-limits acceptor) #'answer-refusal invite))
      (t (make-content-stream (wire-stream wire) framing #'answer-refusal invite)))))

(defun call-with-content (content thunk)
  "Calls THUNK, which processes the request with CONTENT; what that has in memory counts as garbage
then."
  (if (and (not (eq content *no-content*)) (typep content 'content))
      (unwind-protect (funcall thunk)
        (release-memory content))
      (funcall thunk)))

(defun process-head (acceptor exchange link)
  "Processes the request of EXCHANGE, which came over LINK, in the context of CALL-WITH-CONNECTION-
STREAM.  True when the connection may be used for another one."
  (let* ((head (exchange-head exchange))
         (content (content-of acceptor exchange link)))
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
        (call-with-content content #'process-it)))
    (if (eq :error (our-side (exchange-protocol exchange)))
        (abandon-reply (link-stream link) (link-wire link))
        (finish-exchange acceptor exchange link content))
    (reusable-p (exchange-protocol exchange))))

(defun finish-exchange (acceptor exchange link content)
  "Completes the reply of EXCHANGE, and sees to it that the next request over LINK begins where this one's
CONTENT ends."
  (finish-request acceptor exchange (link-wire link))
  (when (member (client-side (exchange-protocol exchange)) '(:body :held))
    (note-event exchange (if (drop-content content *unread-limit*) :request-end :request-fault)))
  (setf (link-over-p link) (last-request-read-p (exchange-protocol exchange))))
