(in-package #:clack.handler.recycling)

;;;; Delayed responses: the application returns a function, and the server calls it with a
;;;; responder.  Any thread may call the responder, at any time.  It gives the responder a whole
;;;; response, or one without a body; then it gets a writer, another function, for the body.  Each
;;;; is an answer to a deferred response; the server's later.lisp has its states.
;;;;
;;;;   the responder is called
;;;;   in the call of the function              the response, or its head, is sent now
;;;;   elsewhere, before the function returned  it is sent when the function has returned
;;;;   elsewhere, after that                    a worker sends it
;;;;   for the second time                      REPLY-ALREADY-SENT
;;;;   too late, or the client has left         nothing is sent; the writer signals CLIENT-LEFT
;;;;
;;;;   when the function
;;;;   has returned                             the connection waits for the rest of the response
;;;;   has failed                               500 is sent; a response that has begun is cut
;;;;
;;;; A writer puts its pieces into a shared queue, which is sent when the head was.  While it is
;;;; full, the thread of the function, which owns the connection, waits for the client, and other
;;;; threads wait for room.  Socket.lisp tells what happens when the application takes the
;;;; connection over.

(defstruct (written-response (:include shared-queue) (:conc-name written-) (:copier nil))
  "A response with STATUS and HEADERS.  SAID is the second value of FRAMING-OF-STREAM."
  (status nil :read-only t)
  (headers nil :read-only t)
  (said nil :read-only t)
  (varied-p nil :read-only t))          ; the second value of CODING-OF-REPLY

;;; Sending, in the thread that owns the connection

(defun send-answer (deferred-response answer)
  "Sends ANSWER to DEFERRED-RESPONSE: a response with a body, :EXPIRED, or the head of a
WRITTEN-RESPONSE."
  (let* ((exchange (deferred-response-exchange deferred-response))
         (io (http-io (exchange-http exchange))))
    (begin-limited-reply exchange)
    (cond ((eq :expired answer)
           (send-text exchange 504 "Gateway Timeout"))
          ((consp answer)
           (send-response exchange answer))
          (t
           (with-reply (reply)
             (encode-response-head reply exchange (written-status answer) (written-headers answer)
                                   (written-said answer) nil
                                   (written-coding answer) (written-varied-p answer))
             (note-event exchange :reply)
             (send-reply io reply))
           (cond ((eq :none (written-framing answer))
                  (setf (deferred-response-shared-queue deferred-response) nil)
                  (note-event exchange :reply-end))
                 (t
                  (setf (deferred-response-shared-queue deferred-response) answer)
                  (begin-shared-queue answer io)))))))

;;; Writing

(defun make-writer (written)
  "A function with which an application writes WRITTEN: a string, octets or NIL, from START to END.
It closes WRITTEN if CLOSE; pieces that were written are still sent."
  (lambda (chunk &key (start 0) end close)
    (let ((octets (etypecase chunk
                    (null nil)
                    (string             ; a long one is copied once, or many would fill the heap
                     (utf-8-octets (if (or end (plusp start)) (subseq chunk start end) chunk)))
                    ((vector octet) (coerce (subseq chunk start end) 'octets)))))
      (unless (or (zerop (length octets)) (eq :none (written-framing written)))
        (write-content written octets t))
      (when close
        (close-content written))
      (values))))

;;; The responder

(defun give-response (deferred-response response)
  "Answers DEFERRED-RESPONSE with RESPONSE.  Returns a writer if that has no body, else NIL.
Signals REPLY-ALREADY-SENT."
  (check-response response)
  (let* ((within-p (eq (bt:current-thread) (deferred-response-owner deferred-response)))
         (exchange (deferred-response-exchange deferred-response))
         (head (exchange-head exchange))
         (written nil))
    (when (and within-p (taken-over-p exchange))
      (error 'reply-already-sent))
    (destructuring-bind (status &optional headers (body nil whole-p)) response
      (declare (ignore body))
      (unless whole-p
        (let ((length (announced-length headers)))
          (multiple-value-bind (framing said)
              (framing-of-stream (head-method head) status length
                                 (eq :http/1.1 (head-protocol head)))
            (multiple-value-bind (coding varied-p)
                (and (null length)
                     (coding-of-response exchange status headers))
              (setf written (make-queue #'make-written-response
                                        deferred-response *high-water-mark* framing coding
                                        :status status :headers headers :said said
                                        :varied-p varied-p)))))))
    (when (and (answer-deferred-response deferred-response (or written response))
               within-p)
      (take-answer deferred-response)
      (handler-case (unless-returned (send-answer deferred-response (or written response))
                      (when written
                        (end-shared-queue written)))
        ;; The client is gone.  The writer signals it.
        ((or descriptor-broken stream-timeout) ()
          (note-event exchange :reply-cut))))
    (and written (make-writer written))))

(defun respond-later (exchange function)
  "Calls FUNCTION, which the application has returned for the request of EXCHANGE, with a responder.
The response may come later."
  (let ((deferred-response (defer-response #'make-deferred-response exchange :default nil)))
    (flet ((give-up ()
             (setf (deferred-response-owner deferred-response) nil)
             (withdraw-deferred-response deferred-response)
             (when (deferred-response-shared-queue deferred-response)
               (end-shared-queue (deferred-response-shared-queue deferred-response)))))
      (unless-returned
          (progn
            (funcall function (lambda (response) (give-response deferred-response response)))
            (let ((socket (exchange-upgrade exchange)))
              (when (and socket (websocket-on-message socket))
                (take-over exchange)))
            (cond ((or (not (lift-handler-limit exchange)) (taken-over-p exchange))
                   (give-up))
                  (t
                   (setf (deferred-response-owner deferred-response) nil)
                   (when (or (deferred-response-unsent-p deferred-response)
                             (deferred-response-shared-queue deferred-response))
                     (setf (http-suspended-exchange (exchange-http exchange))
                           deferred-response)))))
        (give-up)))))

;;; What the server asks when the answer comes, and at the end

(defmethod send-deferred-response ((server clack-server) deferred-response answer)
  (let ((exchange (deferred-response-exchange deferred-response)))
    (handler-case (send-answer deferred-response answer)
      ;; For others, the end of the connection drops ANSWER.
      ((and error (not descriptor-broken) (not stream-timeout)) (condition)
        (when (written-response-p answer)
          (setf (deferred-response-shared-queue deferred-response) nil)
          (end-shared-queue answer))
        (send-failure exchange condition nil)))
    (if (deferred-response-shared-queue deferred-response)
        :deferred
        (end-exchange exchange))))

(defmethod end-stream ((server clack-server) deferred-response)
  (end-exchange (deferred-response-exchange deferred-response)))

(defmethod drop-deferred ((server clack-server) deferred-response)
  (note-served (deferred-response-exchange deferred-response)))
