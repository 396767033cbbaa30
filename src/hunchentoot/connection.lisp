(in-package #:hunchentoot-recycling-taskmaster)

;;;; PROCESS-CONNECTION of our acceptors.  It stands between the server, which reads and writes, and
;;;; request-processing.lisp, which makes Hunchentoot's requests.

(defun serve-request (acceptor exchange)
  "Serves the request of EXCHANGE.  Returns the connection's outcome."
  (let* ((connection (exchange-connection exchange))
         (http (connection-data connection)))
    (labels ((process-it ()
               (let ((result (process-head acceptor exchange http)))
                 (unless (eq :deferred result)
                   (note-served exchange))
                 result))
             (hand-over ()
               (give-away (application-of acceptor exchange) connection http))
             (left ()
               (setf (connection-outcome connection) (hand-over))))
      (declare (dynamic-extent #'process-it #'left))
      (multiple-value-bind (outcome stream)
          (call-with-connection-stream (http-stream http) #'process-it #'left)
        (unless (eq outcome :deferred)
          (setf (http-stream http) stream))
        (cond ((eq outcome :detached) (hand-over))
              ((eq outcome :deferred) (leave-or-keep exchange))
              ((and (http-base http) (not (settle-lent (http-base http)))) :close)
              (t outcome))))))

;;; How many requests one call of PROCESS-CONNECTION serves
;;;
;;;   in the exchange                     the caller               a call
;;;   the head was read                   calls for each request   serves that request
;;;   it was not, and the program has     calls for each request   reads and serves the next one; if
;;;   not used the socket                                          none has come, the connection is
;;;                                                                parked where the engine can park
;;;   the program has used the socket,    calls once for the       reads and serves all requests
;;;   or has a method in our place        connection

(defun serve-connection (acceptor socket exchange)
  "Serves the requests for which the current call of PROCESS-CONNECTION has EXCHANGE, as the table
above tells.  Returns the connection's outcome."
  (cond ((ecase (exchange-kind exchange)
           (:own nil)
           (:wrapped (socket-asked-p socket))
           (:foreign t))
         (serve-to-the-end acceptor socket exchange))
        ((null (exchange-head exchange))
         (serve-next acceptor socket exchange
                     (not (connection-parkable-p (exchange-connection exchange)))))
        ((and (eq :wrapped (exchange-kind exchange))
              (eq :end (content-behind-head acceptor exchange)))
         :close)
        (t
         (serve-request acceptor exchange))))

(defun content-behind-head (acceptor exchange)
  "Receives the content of EXCHANGE, whose head the server has left to a program.  :END as in
REQUEST-WITH-CONTENT."
  (let ((http (exchange-http exchange)))
    (drop-head (http-io http))
    (request-with-content (application-of acceptor exchange) (exchange-connection exchange)
                          http (exchange-head exchange) t)))

(defun serve-next (acceptor socket exchange wait-p)
  "Serves the next request of the connection of EXCHANGE; waits for it if WAIT-P.  Returns the
connection's outcome."
  (or (next-request-missing (application-of acceptor exchange) socket exchange wait-p)
      (serve-request acceptor exchange)))

(defun serve-to-the-end (acceptor socket exchange)
  "Serves all requests of the connection of EXCHANGE, one after the other.  Returns the connection's
outcome."
  (flet ((serve-it ()
           (serve-next acceptor socket exchange t)))
    (loop for outcome = (call-timed acceptor exchange #'serve-it)
          while (and (eq outcome :park) (not (winding-down-p (exchange-engine exchange))))
          finally (return (if (eq outcome :park) :close outcome)))))

(defmethod hunchentoot:process-connection ((acceptor parallel-acceptor) socket)
  "Serves one request when our taskmaster calls it, or all requests where a method of the program
expects that.  When another taskmaster calls it, does what Hunchentoot's method does."
  (in-place-of-hunchentoots ((call-next-method)
                             ;; The methods of this acceptor, which may have got the connection from
                             ;; the acceptor that the engine knows.
                             (and (eq :foreign (user-methods-kind (user-methods-of acceptor)))
                                  (primaries-after-ours #'hunchentoot:process-connection
                                                        (list acceptor socket)))
                             #'hunchentoot:process-connection (acceptor socket))
    (if *exchange*
        (let ((connection (exchange-connection *exchange*)))
          ;; In the connection, since methods of programs need not pass our value on.
          (setf (connection-outcome connection) :close ; if this fails
                (connection-outcome connection) (serve-connection acceptor socket *exchange*)))
        (hunchentoots))))
