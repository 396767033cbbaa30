(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Whole replies.

(defun current-second ()
  "The universal time, which the Date of a reply tells."
  (get-universal-time))

(defmacro with-reply ((reply) &body body)
  "Evaluates BODY with REPLY bound to an empty OUTPUT that belongs to the worker."
  `(let ((,reply (reset-output (if *worker-buffers* (worker-buffers-reply *worker-buffers*) (make-output)))))
     ,@body))

(defun send-reply (io reply &optional body)
  "Sends REPLY, an OUTPUT, and then BODY, octets, a PART or NIL, to IO, without waiting: what
its descriptor does not take is queued, so that nobody may change BODY afterwards; the octets of
REPLY are given away then."
  (send-output io)                      ; what was written to it before
  (sending-wholly (io)
    (let* ((fill (output-fill reply))
           (sent (if body
                     0
                     (max 0 (send io (output-octets reply) 0 fill)))))
      (unless (= sent fill)             ; as it is with almost every reply
        (enqueue (io-queue io)
                 (cons (make-octets-part (output-octets reply) sent fill)
                       (typecase body
                         (null '())
                         (part (list body))
                         (t (list (make-octets-part body))))))
        (flush-io io)
        (when (io-unsent io)
          (give-octets-away reply))))))

(defun encode-last-text (reply status headers text &optional second)
  "Appends the last answer of a connection to REPLY: with STATUS, HEADERS, an alist, and TEXT, of
characters of ASCII; dated SECOND, a universal time, unless that is NIL."
  (encode-head reply status
               `((:connection . "close")
                 ,@headers
                 (:content-type . "text/plain; charset=us-ascii")
                 (:content-length . ,(length text)))
               :second second)
  (encode-string reply text :latin-1))

(defun encode-refusal (reply refusal)
  "Appends the answer with the status and the reason of REFUSAL to REPLY."
  (encode-last-text reply (protocol-error-status refusal) '() (protocol-error-reason refusal)
                    (current-second)))

(defun send-refusal (io refusal)
  "Answers the peer of IO with the status and the reason of REFUSAL, a PROTOCOL-ERROR."
  (with-reply (reply)
    (encode-refusal reply refusal)
    (send-reply io reply)))

(defun send-refusal-at-once (io refusal)
  "Like SEND-REFUSAL, but waits for nobody: what the descriptor of IO does not take now is not
sent.  True when some of it was."
  (with-reply (reply)
    (encode-refusal reply refusal)
    (plusp (send io (output-octets reply) 0 (output-fill reply)))))

(defun send-continue (io)
  "Tells the peer of IO to send the content that it held back (RFC 9110, section 10.1.1)."
  (with-reply (reply)
    (encode-continue reply)
    (send-reply io reply)))

;;; What a reply says of its connection

(defvar *keep-alive* '(nil . nil)
  "The seconds for which connections were last said to be kept, and the words; replaced whole.")

(defun keep-alive-of (seconds)
  "What the header Keep-Alive says of SECONDS."
  (let ((known *keep-alive*))
    (unless (eql seconds (car known))
      (setf known (cons seconds (format nil "timeout=~D" seconds)))
      (set-published *keep-alive* known))
    (cdr known)))

(defun says-close-p (value)
  "True when VALUE, of a header Connection or NIL, has the option close (RFC 9110, section 7.6.1)."
  (and (stringp value)
       (find "close" (uiop:split-string value :separator ",")
             :test (lambda (option part)
                     (string-equal option (string-trim '(#\Space #\Tab) part))))
       t))

(defun reply-event (status kept-p)
  "What it is for the connection, an event that NEXT-STATE knows, to send a reply with STATUS, after
which the connection may be used again if KEPT-P."
  (cond ((eql 101 status) :switch)
        (kept-p :reply)
        (t :last-reply)))

(defun connection-headers (exchange event seconds)
  "The values of the headers Connection and Keep-Alive, strings or NIL, that the reply of EXCHANGE,
whose sending is EVENT, should have if it has none.  SECONDS is for how long the connection is kept,
a real, or NIL for no limit."
  (let ((state (next-state (exchange-protocol exchange) event))
        (head (exchange-head exchange)))
    (cond ((eq :switch event)
           (values nil nil))            ; what is to be said of the new protocol, the program says
          ((not (persists-p state))
           (values "Close" nil))
          ((and seconds
                (or (head-keep-alive-requested-p head)
                    (not (eq (head-protocol head) :http/1.1))))
           (values "Keep-Alive" (keep-alive-of seconds)))
          (t
           (values nil nil)))))

(defun content-wanted-p (method status)
  "True when a client that has asked by METHOD, a keyword or a string, gets the content of a reply
with STATUS
(RFC 9110, section 6.4.1)."
  (and (body-allowed-p status)
       (not (eq :head method))))

;;; Overload

(defparameter *retry-seconds* 1
  "What a refused client is told to wait before it tries again, an integer of seconds.")

(defun send-busy (socket)
  "Answers SOCKET, a connection for which there is no room, that the server is busy (RFC 9110,
section 15.6.4).  Waits a second at most."
  (let ((reply (make-output)))
    (encode-last-text reply 503 `((:retry-after . ,*retry-seconds*))
                      "The server is busy.  Please try again in a moment.")
    (limit-waits socket 1)
    (write-stream-octets (socket-octet-stream socket) (output-octets reply) 0 (output-fill reply))))
