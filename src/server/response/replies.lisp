(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Whole replies.

(defmacro with-reply ((reply) &body body)
  "Evaluates BODY with REPLY bound to an empty OUTPUT that belongs to the worker."
  `(let ((,reply (reset-output (if *worker-buffers*
                                   (worker-buffers-reply *worker-buffers*)
                                   (make-output)))))
     ,@body))

(defun send-reply (io reply &optional body)
  "Sends REPLY, an OUTPUT, and then BODY, octets or a list of parts (see PART), to IO.  What the
descriptor does not accept is queued: BODY must not change any more."
  (when (or (io-unsent io) (io-lent io) (plusp (io-fill io)))
    (send-output io))                   ; octets that were written before
  (let ((queue (io-queue io))
        (octets (output-octets reply))
        (fill (output-fill reply)))
    (check-sent io (if body
                       (write-parts queue (cons (make-octets-part (subseq octets 0 fill))
                                                (if (listp body)
                                                    body
                                                    (list (make-octets-part body)))))
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
thread need not own the connection."
  (with-reply (reply)
    (encode-refusal reply refusal head-only-p)
    (write-to-queue (io-queue io) (output-octets reply) 0 (output-fill reply))))

(defun send-continue (io)
  "Asks the peer of IO for the content that it holds back (RFC 9110, section 10.1.1)."
  (with-reply (reply)
    (encode-head reply 100 '())
    (handler-case (send-reply io reply)
      (descriptor-broken () nil))))     ; reading finds the end

;;; The connection headers of a reply

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
          ((head-keep-alive-requested-p head)
           (let ((seconds (seconds-for (exchange-application exchange) :idle)))
             (when seconds
               (values "Keep-Alive" (format nil "timeout=~D" seconds))))))))

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

;;; The time limit of a handler: when it has passed, the sentinel answers 503 on the handler's
;;; behalf.  The handler runs on, and so does its worker, which owns the connection.  Whoever
;;; changes the claim of the EXCHANGE first, by compare-and-set, has the reply:
;;;
;;;   claim       event                                  becomes      action
;;;   :RUNNING    the handler's reply begins             :REPLYING
;;;               early hints are sent                   :HINTING     then :RUNNING again
;;;               the handler is left                    :OVER
;;;               the limit has passed                   :LATE        the sentinel sends 503, and
;;;                                                                   shuts the connection down
;;;   :HINTING    the limit has passed                   -            the sentinel looks again
;;;   :REPLYING   the handler is left                    :OVER
;;;               the limit has passed                   :LATE        the sentinel shuts it down
;;;   :LATE       the handler's reply begins             -            DESCRIPTOR-BROKEN
;;;               the handler is left                    -            its reply is dropped
;;;
;;; The sentinel and no timer looks after the limit, because handlers that are late may have all
;;; workers, and timers need one.

(defmacro change-state (place &rest states)
  "Changes PLACE by compare-and-set to the state that follows its state in STATES, if there is one.
Returns the state before."
  `(loop for state = ,place
         for next = (getf ',states state)
         when (or (null next) (compare-and-set ,place state next))
           return state))

(defun call-with-handler-limit (exchange function)
  "Calls FUNCTION, the handler of EXCHANGE, under the limit of its application.  Returns the values
of FUNCTION."
  (let ((seconds (limits-handler-seconds (application-limits (exchange-application exchange))))
        (http (exchange-http exchange)))
    (cond ((null seconds) (funcall function))
          (t
           (setf (exchange-claim exchange) :running
                 (exchange-limit exchange) (end-after seconds)
                 (http-limited-exchange http) exchange)
           (set-deadline-at (exchange-connection exchange) :handler (exchange-limit exchange))
           (unwind-protect (funcall function)
             (lift-handler-limit exchange)
             (setf (http-limited-exchange http) nil
                   (connection-deadline (exchange-connection exchange)) nil))))))

(defun begin-limited-reply (exchange)
  "Notes that the reply of EXCHANGE begins now.  Signals DESCRIPTOR-BROKEN where the client was
answered in place of the handler."
  (when (eq :late (change-state (exchange-claim exchange) :running :replying))
    (fail-as-broken (http-io (exchange-http exchange)))))

(defun lift-handler-limit (exchange)
  "Ends the limit of the handler of EXCHANGE, if there is one.  NIL when it has passed, and the
handler's reply is not to be sent: the sentinel has answered by then."
  (or (not (eq :late (change-state (exchange-claim exchange) :running :over :replying :over)))
      (bt:with-lock-held ((application-late-lock (exchange-application exchange)))
        nil)))

(defmethod time-out-handler ((application http-service) connection)
  (let* ((http (connection-data connection))
         (exchange (and http (http-limited-exchange http)))
         (refusal (make-refusal :handler-timeout))
         (claim nil))
    (when (and exchange (<= (exchange-limit exchange) (milliseconds)))
      ;; A worker whose handler is left now waits until the answer is sent.
      (bt:with-lock-held ((application-late-lock application))
        (setf claim (change-state (exchange-claim exchange) :running :late :replying :late))
        (when (eq :running claim)
          (setf (exchange-status exchange) (protocol-error-status refusal))
          (handler-case (send-refusal (http-io http) refusal
                                      (eq :head (head-method (exchange-head exchange))))
            (stream-error () nil))))    ; the client is gone
      (when (member claim '(:running :replying))
        (when (eq :running claim)
          (note-rejected application http refusal (exchange-head exchange)))
        (count-late (exchange-engine exchange) :handler)
        (wake-from-client (exchange-engine exchange) connection :io)))))

(defun request-timed-out-p ()
  "True when the handler that the current thread runs, or the application of Clack, has run for
longer than :HANDLER-TIMEOUT.  Then its client was answered 503, or its reply was cut if that had
begun, and what the handler returns is dropped.  NIL without a request."
  (and *exchange* (eq :late (exchange-claim *exchange*))))

;;; Early hints

(defgeneric reply-begun-p (application exchange)
  (:documentation "True unless APPLICATION may still send something before the reply of EXCHANGE,
which the current thread serves.")
  (:method ((application http-service) exchange)
    (exchange-output exchange)))

(defun send-early-hints (links)
  "Tells the client of the current request at once what the page that it will get needs: sends an
interim reply with status 103 (Early Hints, RFC 8297) and a header field Link for each of LINKS, a
list of strings such as \"</style.css>; rel=preload; as=style\" (RFC 8288, section 3).  The handler,
or Clack's application, calls this before its reply begins, as often as it likes, in the thread that
has called it.

Returns true when the hints were sent.  Returns NIL, and sends nothing, if LINKS is empty; to a
client of HTTP/1.0, or one that has left; when the reply has begun, or was sent in place of a late
handler; and where the current thread serves no request whose head the server has read.  Waits for a
client that does not take what it was sent before, as a reply does.  Signals INVALID-HEADER, and
sends nothing, if one of LINKS cannot be sent."
  (let ((exchange *exchange*)
        (head (current-head)))
    (when (and links
               head
               (not (eq :http/1.0 (head-protocol head))) ; RFC 9110, section 15.2
               (not (reply-begun-p (exchange-application exchange) exchange)))
      (with-reply (reply)
        (encode-head reply 103 (mapcar (lambda (link) (cons :link link)) links))
        (unless (eq :late (change-state (exchange-claim exchange) :running :hinting))
          (unwind-protect
               (handler-case (progn (send-reply (http-io (exchange-http exchange)) reply)
                                    t)
                 (client-left () nil))  ; the reply finds it, too
            (change-state (exchange-claim exchange) :hinting :running)))))))
