(in-package #:hunchentoot-recycling-taskmaster)

;;;; The access log: which requests get a line, and when.  journals.lisp writes the lines.
;;;;
;;;; In the format :COMBINED the line is made when the reply begins, as with Hunchentoot.  In other
;;;; formats it tells how long the request took, so it is made at the end of the request.

;;; Lines

(defun write-access-line (acceptor destination encode)
  "Writes a line to the access log of ACCEPTOR, at DESTINATION.  ENCODE, a function of an OUTPUT,
appends the line to that, or returns NIL for none.  An error is counted and logged, and does not
harm the request."
  (let ((journal (journal-for acceptor :access destination)))
    (handler-case
        (with-line (line)
          (when (funcall encode line)
            (append-line journal line)))
      (error (condition)
        (lose-line journal condition)))))

(defun log-access (acceptor destination request reply status duration)
  "Writes a line about REQUEST to the access log of ACCEPTOR, at DESTINATION."
  (flet ((encode (line)
           (encode-access line acceptor request reply status duration)))
    (declare (dynamic-extent #'encode))
    (write-access-line acceptor destination #'encode)))

(defstruct (access (:include opaque) (:constructor make-access ()))
  "A request that is to be logged at its end."
  (request nil)                         ; NIL while its reply has not begun
  (reply nil)
  (status nil))

(defmethod hunchentoot:acceptor-log-access ((acceptor parallel-acceptor) &key return-code)
  "Has a log thread write the line that Hunchentoot would write, or one in another
:ACCESS-LOG-FORMAT; see REOPEN-LOGS."
  (let ((destination (hunchentoot:acceptor-access-log-destination acceptor)))
    (cond ((null destination))
          ((and *exchange* (exchange-access *exchange*))
           (let ((access (exchange-access *exchange*)))
             (setf (access-request access) hunchentoot:*request*
                   (access-reply access) hunchentoot:*reply*
                   (access-status access) return-code)))
          (t
           (log-access acceptor destination hunchentoot:*request* hunchentoot:*reply*
                       return-code nil)))))

;;; Requests whose line is made at their end

(defun call-timed (acceptor exchange thunk)
  "Calls THUNK, which serves the request of EXCHANGE.  Where the access log of ACCEPTOR tells how
long requests take, writes the line after the call, also when the call is left by an error or a
throw."
  (if (and (hunchentoot:acceptor-access-log-destination acceptor)
           (typep acceptor 'parallel-acceptor)
           (not (eq :combined (access-log-format acceptor))))
      (let ((access (or (and (exchange-deferred-response exchange) (exchange-access exchange))
                        (make-access))))
        (setf (exchange-access exchange) access)
        (unwind-protect (funcall thunk)
          (unless (or (deferred-p exchange)
                      ;; A nested call has written it.
                      (not (eq access (exchange-access exchange))))
            (setf (exchange-access exchange) nil)
            (finish-access acceptor exchange access))))
      (funcall thunk)))

(defun finish-access (acceptor exchange access)
  "Writes the line of ACCESS, of the request of EXCHANGE, once, if its reply has begun."
  (let ((destination (hunchentoot:acceptor-access-log-destination acceptor))
        (request (shiftf (access-request access) nil)))
    (when (and destination request)
      (log-access acceptor destination request (access-reply access)
                  (access-status access) (exchange-duration exchange)))))
