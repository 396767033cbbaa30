(in-package #:hunchentoot-recycling-taskmaster)

;;;; One request, whose head the server has read: its objects are Hunchentoot's, and its reply is made of
;;;; octets: sent at once where a handler returns it whole (reply.lisp), else as the handler writes it
;;;; (streaming.lisp).

(defun call-with-content (link content thunk)
  "Calls THUNK, which processes the request over LINK with CONTENT; what that has in memory counts as garbage
then, unless a program has taken the connection away: it may read on."
  (if (and (not (eq content *no-content*)) (typep content 'content))
      (unwind-protect (funcall thunk)
        (cond ((link-continuation link)) ; it may still be read
              ((connection-taken-p)
               (leave-content content)
               (setf (link-content link) nil))
              (t
               (release-octets content))))
      (funcall thunk)))

(defun call-processing (exchange link content thunk)
  "Calls THUNK, which processes the request of EXCHANGE, as CALL-WITH-CONTENT does.  Who leaves it otherwise than by
returning ends what the connection was to be."
  (unless-returned (call-with-content link content thunk)
    (drop-upgrade exchange)))

(defun process-head (acceptor exchange link)
  "Processes the request of EXCHANGE, which came over LINK, in the context of CALL-WITH-CONNECTION-
STREAM.  True when the connection may be used for another one; :DEFERRED when the reply comes later."
  (let* ((head (exchange-head exchange))
         (content (take-content (application-of acceptor exchange) exchange #'announce-continue)))
    (setf (exchange-protocol exchange) (state-after-head (exchange-protocol exchange) head))
    (setf (exchange-deferral exchange) nil ; of one before, where a program has one exchange for all
          (exchange-upgrade exchange) nil)
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
        (call-processing exchange link content #'process-it)))
    (cond ((deferred-p exchange)
           (finish-content acceptor exchange)
           :deferred)
          ((switch-protocols exchange link)
           (abandon-body-prefetch link)
           :deferred)
          (t
           (drop-upgrade exchange)
           (conclude-exchange acceptor exchange link)))))

(defun conclude-exchange (acceptor exchange link)
  "Completes the reply of EXCHANGE, which came over LINK.  True when the connection may be used for another one."
  (cond ((eq :error (our-side (exchange-protocol exchange)))
         (abandon-reply (link-stream link) (link-wire link)))
        (t
         (finish-request acceptor exchange (link-wire link))
         (finish-content acceptor exchange))) ; waits for the rest
  (abandon-body-prefetch link)          ; until here whoever releases LINK gives it back
  (reusable-p (exchange-protocol exchange)))

(defun finish-content (acceptor exchange)
  "Drops the rest of the content of the request of EXCHANGE."
  (end-content (application-of acceptor exchange) exchange (connection-taken-p)))
