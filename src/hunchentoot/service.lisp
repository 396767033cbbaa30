(in-package #:hunchentoot-recycling-taskmaster)

;;;; The taskmaster as the engine's service.

(defmethod serve ((taskmaster recycling-taskmaster) connection)
  (let* ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
         (kind (connection-kind acceptor))
         (input (waiting-input connection acceptor kind)))
    (let ((outcome (case input
                     (:none :park)
                     (:end :close)
                     (t
                      (serve-exchange taskmaster acceptor
                                      (make-exchange connection
                                                     :kind kind
                                                     :head (if (eq input :some) nil input)))))))
      (if (output-settled-p connection) outcome :broken))))

(defun serve-exchange (taskmaster acceptor exchange)
  "Serves EXCHANGE, whose head was read or, when NIL, is to be read by whoever comes first; returns what
is to become of its connection."
  (let ((*exchange* exchange))
    (flet ((serve-it ()
             (process-exchange taskmaster acceptor exchange)))
      (declare (dynamic-extent #'serve-it))
      (call-timed acceptor exchange #'serve-it))))

(defun process-exchange (taskmaster acceptor exchange)
  (let* ((connection (exchange-connection exchange))
         (socket (connection-usocket connection)))
    (when (eq :wrapped (exchange-kind exchange))
      (watch-socket socket))
    (cond ((plusp (connection-served connection))
           (hunchentoot:process-connection acceptor socket))
          (t
           (unless (eq :own (exchange-kind exchange))
             ;; What Hunchentoot does when it accepts: a method of the program may read before ours.
             (limit-waits socket (hunchentoot:acceptor-read-timeout acceptor)))
           (hunchentoot:handle-incoming-connection taskmaster socket)))
    (if (eq :unknown (exchange-outcome exchange))
        (outcome-without-us acceptor connection (exchange-kind exchange) socket)
        (exchange-outcome exchange))))

(defun outcome-without-us (acceptor connection kind socket)
  "What is to become of CONNECTION, of KIND and with SOCKET, where our own method of
PROCESS-CONNECTION was not called: some other closes the socket, or leaves it to somebody else."
  (let ((wire (socket-wire socket)))
    (cond (wire
           (if (and (socket-asked-p socket) (lent-open-p wire))
               (leave-to-program connection wire)
               :close))
          ((or (not (typep acceptor 'parallel-acceptor))
               (and (or (eq :foreign kind)
                        (and (eq :wrapped kind) (socket-asked-p socket)))
                    (socket-open-p socket)))
           (setf (connection-outcome connection) :detached)) ; also if what follows fails
          (t :close))))

(defmethod more-may-come-p ((taskmaster recycling-taskmaster) connection)
  (let ((link (connection-data connection)))
    (not (and link (link-over-p link)))))

(defmethod idle-seconds ((taskmaster recycling-taskmaster))
  (hunchentoot:acceptor-read-timeout (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod write-seconds ((taskmaster recycling-taskmaster))
  (hunchentoot:acceptor-write-timeout (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod make-worker-thread ((taskmaster recycling-taskmaster) thunk number)
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (hunchentoot:start-thread
     taskmaster thunk
     :name (format nil (taskmaster-worker-thread-name-format taskmaster)
                   (format nil "~A-~D" (place-of acceptor) number)))))

;; Programs wait for the server to end by joining the first thread whose name has "hunchentoot" in
;; it: so this one, which lives until STOP, has the name of Hunchentoot's listener, and no worker has
;; such a name.
(defmethod make-sentinel-thread ((taskmaster recycling-taskmaster) thunk)
  (hunchentoot:start-thread
   taskmaster thunk
   :name (format nil "hunchentoot-listener-~A"
                 (place-of (hunchentoot:taskmaster-acceptor taskmaster)))))

(defmethod call-as-worker ((taskmaster recycling-taskmaster) thunk)
  ;; Through ACCEPT-CONNECTIONS, so that a program's methods around it wrap each worker.
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
        (*work* thunk))
    (call-with-kit
     (if (typep acceptor 'parallel-acceptor)
         (lambda () (hunchentoot:accept-connections acceptor))
         thunk))))

(defmethod note ((taskmaster recycling-taskmaster) level control &rest arguments)
  (apply #'hunchentoot:acceptor-log-message (hunchentoot:taskmaster-acceptor taskmaster)
         level control arguments))

;;; Refusing

(defun refusal ()
  "The octets of the answer to a connection for which there is no room (RFC 9110, sections
15.6.4 and 10.2.3)."
  (let ((body "The server is busy.  Please try again in a moment."))
    (flexi-streams:string-to-octets
     (format nil "HTTP/1.1 503 Service Unavailable~C~C~:{~A: ~A~C~C~}~C~C~A"
             #\Return #\Newline
             (loop for (name value) in `(("Connection" "close")
                                         ("Retry-After" ,*retry-seconds*)
                                         ("Content-Type" "text/plain; charset=us-ascii")
                                         ("Content-Length" ,(length body)))
                   collect (list name value #\Return #\Newline))
             #\Return #\Newline body)
     :external-format :latin-1)))

(defun peer-address (socket)
  "The address of the peer of SOCKET, or NIL when it is gone."
  (handler-case (values (peer-name socket))
    (error () nil)))

(defmethod refuse ((taskmaster recycling-taskmaster) connection)
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
        (socket (connection-usocket connection)))
    (hunchentoot:too-many-taskmaster-requests taskmaster socket)
    (log-rejection acceptor (peer-address socket) hunchentoot:+http-service-unavailable+)
    ;; Under TLS nothing can be said before a handshake, for which we cannot wait here.
    (unless (hunchentoot:acceptor-ssl-p acceptor)
      (let ((stream (socket-octet-stream socket)))
        (limit-waits socket 1)
        (write-sequence (refusal) stream)
        (finish-output stream)))))
