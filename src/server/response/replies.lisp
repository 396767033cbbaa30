(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Whole replies.

(defmacro with-reply ((reply) &body body)
  "Evaluates BODY with REPLY bound to an empty OUTPUT that belongs to the worker."
  `(let ((,reply (reset-output (if *worker-buffers*
                                   (worker-buffers-reply *worker-buffers*)
                                   (make-output)))))
     ,@body))

(defun send-reply (io reply &optional body)
  "Sends REPLY, an OUTPUT, and then BODY, octets, a PART or NIL, to IO.  What the descriptor does
not accept is queued: BODY must not change any more."
  (when (or (io-unsent io) (io-lent io) (plusp (io-fill io)))
    (send-output io))                   ; octets that were written before
  (let ((queue (io-queue io))
        (octets (output-octets reply))
        (fill (output-fill reply)))
    (check-sent io (if body
                       (write-parts queue (list (make-octets-part (subseq octets 0 fill))
                                                (if (part-p body) body (make-octets-part body))))
                       (write-to-queue queue octets 0 fill)))))

(defparameter *retry-seconds* 1
  "The value of Retry-After for a refused client, an integer of seconds.")

(defun encode-refusal (reply refusal head-only-p)
  "Appends the last answer of a connection to REPLY: the status and the reason of REFUSAL, a
PROTOCOL-ERROR; without content if HEAD-ONLY-P."
  (let ((text (protocol-error-reason refusal)))
    (encode-head reply (protocol-error-status refusal)
                 `((:connection . "close")
                   ,@(when (member (protocol-error-refusal refusal) '(:no-memory :busy))
                       `((:retry-after . ,*retry-seconds*)))
                   (:content-type . "text/plain; charset=us-ascii")
                   (:content-length . ,(length text)))
                 :second (get-universal-time))
    (unless head-only-p
      (encode-string reply text :latin-1))))

(defun send-refusal (io refusal &optional head-only-p)
  "Answers the peer of IO with REFUSAL, a PROTOCOL-ERROR; sends no content if HEAD-ONLY-P.  The
thread need not own the connection.  True when it is sent, or queued."
  (with-reply (reply)
    (encode-refusal reply refusal head-only-p)
    (null (write-to-queue (io-queue io) (output-octets reply) 0 (output-fill reply)))))

(defun send-continue (io)
  "Asks the peer of IO for the content that it holds back (RFC 9110, section 10.1.1)."
  (with-reply (reply)
    (encode-head reply 100 '())
    (handler-case (send-reply io reply)
      (descriptor-broken () nil))))     ; reading finds the end

;;; The connection headers of a reply

(defvar *keep-alive* '(nil . nil)
  "The last timeout for Keep-Alive in seconds, and its text; replaced as a whole.")

(defun settle-reply-connection (exchange status kept-p said)
  "Decides what becomes of the connection of EXCHANGE after its reply with STATUS, which is noted:
it is kept only if KEPT-P, and if the program's header Connection, SAID, a string or NIL, does not
have the option close (RFC 9110, section 7.6.1).  Returns the default values of the headers
Connection and Keep-Alive, strings or NIL: none after a 101, whose headers the program sets."
  (setf (exchange-status exchange) status)
  (when (or (not kept-p)
            (and (stringp said)
                 (find "close" (uiop:split-string said :separator ",")
                       :test (lambda (option part)
                               (string-equal option (string-trim '(#\Space #\Tab) part))))))
    (setf (exchange-kept-p exchange) nil))
  (let ((head (exchange-head exchange)))
    (cond ((eql 101 status)
           nil)
          ((not (exchange-kept-p exchange))
           "Close")
          ((or (head-keep-alive-requested-p head)
               (not (eq (head-protocol head) :http/1.1)))
           (let ((seconds (seconds-for (exchange-application exchange) :idle))
                 (known *keep-alive*))
             (when seconds
               (unless (eql seconds (car known))
                 (setf known (cons seconds (format nil "timeout=~D" seconds)))
                 (set-published *keep-alive* known))
               (values "Keep-Alive" (cdr known))))))))

(defun content-wanted-p (method status)
  "True when a reply with STATUS to a request by METHOD, a keyword or a string, has content (RFC
9110, section 6.4.1)."
  (and (body-allowed-p status)
       (not (eq :head method))))

;;; The end

(defun end-exchange (exchange)
  "Ends EXCHANGE, whose reply is over: counts it, and releases its content.  Returns the outcome for
its connection, :PARK if that may be used again, else :CLOSE."
  (let ((http (exchange-http exchange))
        (done-p (eq :done (exchange-output exchange))))
    ;; A client that has announced its last request sends nothing more.
    (when (and done-p (not (head-keep-alive-p (exchange-head exchange))))
      (setf (http-phase http) :over))
    (abandon-content http)              ; until here, the release would give it back
    (note-served exchange)
    (if (and done-p (exchange-kept-p exchange)) :park :close)))

;;; Overload

(defun send-busy (socket)
  "Answers SOCKET, a connection for which there is no room, that the server is busy (RFC 9110,
section 15.6.4).  Waits for at most a second."
  (let ((reply (make-output)))
    (encode-refusal reply (make-refusal :busy) nil)
    (limit-waits socket 1)
    (write-stream-octets (socket-octet-stream socket) (output-octets reply) 0 (output-fill reply))))
