(in-package #:hunchentoot-recycling-taskmaster)

;;;; PROCESS-CONNECTION of our acceptors, between the server, which reads and writes, and REQUEST-
;;;; PROCESSING, which makes requests of Hunchentoot's.

(defun serve-request (acceptor exchange)
  "Serves the request of EXCHANGE; returns what is to become of its connection."
  (let* ((connection (exchange-connection exchange))
         (http (connection-data connection)))
    (labels ((process-it ()
               (let ((result (process-head acceptor exchange http)))
                 (unless (eq :deferred result)
                   (count-request connection))
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

;;; Whose turn it is to read
;;;
;;;   the exchange ...              and PROCESS-CONNECTION's caller   in one call
;;;   has its head                  calls it for each request         that request is served
;;;   has none, was not asked for   calls it for each request         the next request is read and served;
;;;                                                                   if none has come and the engine can
;;;                                                                   park, it does
;;;   the program has read, or has  expects one call for a            all requests are read and served
;;;   a method in our place         connection

(defun serve-connection (acceptor socket exchange)
  "Serves what the current call of PROCESS-CONNECTION is for, EXCHANGE, after what the program has
done before; returns what is to become of its connection."
  (cond ((ecase (exchange-kind exchange)
           (:own nil)
           (:wrapped (socket-asked-p socket))
           (:foreign t))
         (serve-to-the-end acceptor socket exchange))
        ((exchange-head exchange)
         (when (eq :wrapped (exchange-kind exchange))
           (drop-head (http-io (exchange-http exchange))))
         (serve-request acceptor exchange))
        (t
         (serve-next acceptor socket exchange
                     (not (connection-parkable-p (exchange-connection exchange)))))))

(defun serve-next (acceptor socket exchange wait-p)
  "Serves the next request of the connection of EXCHANGE, in the current call; waits for it if
WAIT-P.  Returns what is to become of the connection."
  (or (next-request-missing (application-of acceptor exchange) socket exchange wait-p)
      (serve-request acceptor exchange)))

(defun serve-to-the-end (acceptor socket exchange)
  "Serves all requests of the connection of EXCHANGE in the current call, one after the other;
returns what is to become of it then."
  (flet ((serve-it ()
           (serve-next acceptor socket exchange t)))
    (loop for outcome = (call-timed acceptor exchange #'serve-it)
          while (and (eq outcome :park) (not (winding-down-p (exchange-engine exchange))))
          finally (return (if (eq outcome :park) :close outcome)))))

(defmethod hunchentoot:process-connection ((acceptor parallel-acceptor) socket)
  "Serves one request when called by our taskmaster, who calls again for the next one, or all of
them where a method of the program expects that; otherwise all of them, as Hunchentoot does."
  (in-place-of-hunchentoots ((call-next-method)
                             ;; Of this acceptor: one that the engine knows may pass its connections
                             ;; on.
                             (and (eq :foreign (user-methods-kind (user-methods-of acceptor)))
                                  (primaries-after-ours #'hunchentoot:process-connection
                                                        (list acceptor socket)))
                             #'hunchentoot:process-connection (acceptor socket))
    (if *exchange*
        (let ((connection (exchange-connection *exchange*)))
          ;; It is noted there, since methods of programs need not pass values on.
          (setf (connection-outcome connection) :close ; if this fails
                (connection-outcome connection) (serve-connection acceptor socket *exchange*)))
        (hunchentoots))))
