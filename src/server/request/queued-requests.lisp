(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Requests that have waited for a thread for long.
;;;;
;;;;   the request has waited, and          then
;;;;   for *LONG-SECONDS*, its client has   it is not served, and counted as :LEFT
;;;;   left meanwhile
;;;;   for longer than :QUEUE-TIMEOUT       it is answered 503, and counted as :QUEUE

(defparameter *long-seconds* 1
  "After so many seconds of waiting for a thread, a request is served only if its client has not
left meanwhile.  One that has closed only its sending side counts as one that has left.")

(defun client-gone-meanwhile-p (http)
  "True when the client of the request that was read over HTTP has closed its side."
  (let ((base (http-base http)))
    (and base
         (input-ended-p base))))

(defun outcome-after-queue (application connection head)
  "The outcome of CONNECTION, whose request HEAD was read, where APPLICATION is not to respond,
since the request has waited for too long; else NIL."
  (let* ((engine (application-engine application))
         (http (connection-data connection))
         (limit (as-milliseconds (limits-queue-seconds (application-limits application))))
         (long (as-milliseconds *long-seconds*))
         (least (if limit (min limit long) long))
         (queued (milliseconds-queued engine connection least)))
    (flet ((end-as (kind)
             (count-late engine kind)
             :close))
      (cond ((< queued least) nil)
            ((and (<= long queued) (client-gone-meanwhile-p http))
             (end-as :left))
            ((and limit (<= limit queued))
             (reject application http nil head (make-refusal :queue-timeout))
             (end-as :queue))))))
