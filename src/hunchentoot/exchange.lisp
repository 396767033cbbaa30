(in-package #:hunchentoot-recycling-taskmaster)

;;;; One request by our own code: its head is read off a descriptor without waiting, its
;;;; objects are Hunchentoot's, and its reply, where a handler returns it whole, is made of
;;;; octets and sent at once.
;;;;
;;;;   octets -> *HEAD* (waiting-request) -> PROCESS-CONNECTION (process-head)
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
                         (acceptable-head (setf head (if ahead-p
                                                         (read-head-ahead wire parser)
                                                         (read-head wire parser))))
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

(defun reject (acceptor link parser head refusal)
  "Answers the request over LINK, which PARSER has read as HEAD or, if that is NIL, not whole, with
REFUSAL."
  (unwind-protect
       (send-refusal (link-socket-stream link) refusal)
    (multiple-value-call #'note-rejection acceptor link refusal
      (if head
          (values (head-method head) (head-uri head) (head-protocol head))
          (known-request-line parser)))))

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
  (cond ((parser-fresh-p parser)
         (return-parser parser))
        (t
         (settle-head-deadline connection acceptor link
                               (if (parser-begun-p parser) :head :idle))
         (setf (link-parser link) parser)))
  (lend-no-buffers (link-wire link)))

(defun settle-head-deadline (connection acceptor link kind)
  "Gives CONNECTION the deadline of what came in part over LINK: all of a head has one, and so have all
empty lines before it, or a client could send an octet a second for ever."
  (unless (and (link-head-deadline link)
               (eq kind (link-awaited link)))
    (set-deadline connection kind (hunchentoot:acceptor-read-timeout acceptor) (milliseconds))
    (setf (link-head-deadline link) (connection-deadline connection)
          (link-awaited link) kind))
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) (link-head-deadline link)))

(defun invitation (stream)
  "A function that tells the peer of STREAM to send content, unless it has its reply already."
  (lambda ()
    (unless (headers-sent-p)
      (copy-continue)
      (send-continue stream))))

(defun content-of (acceptor head link)
  "The stream from which the content of the request HEAD, which follows on LINK, is read."
  (let* ((framing (head-framing head))
         (stream (link-socket-stream link))
         (invite (and (head-expect-100-continue-p head) (invitation stream))))
    (case framing
      ;; Who asks for another protocol may be granted it, and then talks on.
      (:none (if (head-upgrade head) stream *no-content*))
      (:chunked (make-chunked-content (link-wire link) (acceptor-limits acceptor)
                                      #'answer-refusal invite))
      (t (make-content-stream stream framing #'answer-refusal invite)))))

(defun call-with-content (content thunk)
  "Calls THUNK, which processes the request with CONTENT; what that has in memory counts as garbage
then."
  (if (and (not (eq content *no-content*)) (typep content 'content))
      (unwind-protect (funcall thunk)
        (release-memory content))
      (funcall thunk)))

(defun process-head (acceptor head link)
  "Processes the request HEAD, which came over LINK, in the context of CALL-WITH-CONNECTION-
STREAM.  True."
  (let* ((stream (link-socket-stream link))
         (content (content-of acceptor head link))
         (*cut-short-p* nil))
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
        (call-with-content content #'process-it))
      (finish-if-switched))
    (if *cut-short-p*
        (abandon-reply stream)
        (finish-exchange acceptor link content))
    t))

(defun finish-exchange (acceptor link content)
  "Completes the reply, and sees to it that the next request over LINK begins where this one's
CONTENT ends."
  (finish-request acceptor (link-wire link))
  (unless (or (eq content *no-content*)
              (eq content (link-socket-stream link)) ; the protocol may have been switched
              (drop-content content *unread-limit*))
    (finish-connection)))
