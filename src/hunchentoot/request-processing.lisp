(in-package #:hunchentoot-recycling-taskmaster)

;;;; One request, whose head the server has read: its objects are Hunchentoot's, and its reply is
;;;; made of octets: sent at once where a handler returns it whole (reply.lisp), else as the handler
;;;; writes it
;;;; (streaming.lisp).

(defun call-with-content (http content thunk)
  "Calls THUNK, which processes the request over HTTP with CONTENT; what that has in memory counts
as garbage then, unless a program has taken the connection away: it may read on."
  (if (and (not (eq content *no-content*)) (typep content 'content))
      (unwind-protect (funcall thunk)
        (cond ((http-suspended-exchange http)) ; it may still be read
              ((connection-taken-p)
               (leave-content content)
               (setf (http-content http) nil))
              (t
               (release-octets content))))
      (funcall thunk)))

(defun call-processing (exchange http content thunk)
  "Calls THUNK, which processes the request of EXCHANGE, as CALL-WITH-CONTENT does.  Who leaves it
otherwise than by returning ends what the connection was to be."
  (unless-returned (call-with-content http content thunk)
    (drop-upgrade exchange)))

(defun process-head (acceptor exchange http)
  "Processes the request of EXCHANGE, which came over HTTP, in the context of CALL-WITH-CONNECTION-
STREAM.  True when the connection may be used for another one; :DEFERRED when the reply comes
later."
  (let* ((head (exchange-head exchange))
         (content (take-content (application-of acceptor exchange) exchange #'announce-continue)))
    (setf (exchange-protocol exchange) (state-after-head (exchange-protocol exchange) head))
    ;; Of one before, where a program has one exchange for all.
    (setf (exchange-deferred-response exchange) nil
          (exchange-upgrade exchange) nil)
    (copy-head head)
    (let ((hunchentoot:*reply* (make-reply acceptor))
          (hunchentoot:*session* nil))
      (when (eq :chunked (head-framing head))
        (expect-chunked-body acceptor))
      (flet ((process-it ()
               (hunchentoot:process-request
                (make-request acceptor http (head-headers head) (head-method head)
                              (head-uri head) (head-protocol head) content))))
        (declare (dynamic-extent #'process-it))
        (call-processing exchange http content #'process-it)))
    (cond ((deferred-p exchange)
           (finish-content acceptor exchange)
           :deferred)
          ((switch-protocols exchange http)
           (abandon-body-prefetch http)
           :deferred)
          (t
           (drop-upgrade exchange)
           (conclude-exchange acceptor exchange http)))))

(defun conclude-exchange (acceptor exchange http)
  "Completes the reply of EXCHANGE, which came over HTTP.  True when the connection may be used for
another one."
  (cond ((eq :error (our-side (exchange-protocol exchange)))
         (abandon-reply (http-stream http) (http-io http)))
        (t
         (finish-request acceptor exchange (http-io http))
         (finish-content acceptor exchange))) ; waits for the rest
  (abandon-body-prefetch http)          ; until here whoever releases HTTP gives it back
  (reusable-p (exchange-protocol exchange)))

(defun finish-content (acceptor exchange)
  "Drops the rest of the content of the request of EXCHANGE."
  (end-content (application-of acceptor exchange) exchange (connection-taken-p)))
