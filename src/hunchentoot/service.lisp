(in-package #:hunchentoot-recycling-taskmaster)

;;;; The taskmaster is the application of the server, and the service of the engine.

;;; Questions of the server

(defmethod reading-kind ((taskmaster recycling-taskmaster))
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (if (typep acceptor 'parallel-acceptor)
        (slot-value acceptor 'connection-kind)
        :foreign)))

(defmethod application-limits ((taskmaster recycling-taskmaster))
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (if (typep acceptor 'parallel-acceptor)
        (slot-value acceptor 'limits)
        *default-limits*)))

(defmethod read-seconds ((taskmaster recycling-taskmaster))
  (hunchentoot:acceptor-read-timeout (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod write-seconds ((taskmaster recycling-taskmaster))
  (hunchentoot:acceptor-write-timeout (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod encrypted-p ((taskmaster recycling-taskmaster))
  (hunchentoot:acceptor-ssl-p (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod program-stream ((taskmaster recycling-taskmaster) socket-stream)
  (let ((hunchentoot:*acceptor* (hunchentoot:taskmaster-acceptor taskmaster)))
    (hunchentoot:initialize-connection-stream hunchentoot:*acceptor* socket-stream)))

(defmethod name-of-our-end ((taskmaster recycling-taskmaster) socket)
  (our-end (hunchentoot:taskmaster-acceptor taskmaster) socket))

(defmethod check-head ((taskmaster recycling-taskmaster) head)
  "Refuses a method that this version of Hunchentoot does not serve."
  (unless (or (null *methods-served*)
              (find (head-method head) *methods-served* :test #'string=))
    (error 'protocol-error :refusal :malformed-method :status 400
                           :section "RFC 9110, section 9"
                           :reason "The method is not known here.")))

(defgeneric content-received-early-p (acceptor method uri)
  (:documentation "True, the default, when the content of a request to ACCEPTOR is to be received
before the request is served.  METHOD is a keyword or a string, and URI an undecoded string.  Define
a method that returns NIL for handlers that answer before they have read all content: then the
request is served at once, and its handler, in its own thread, reads content as it comes.  A worker
calls it before there is a request object.")
  (:method (acceptor method uri)
    (declare (ignore acceptor method uri))
    t))

(defmethod content-as-it-comes-p ((taskmaster recycling-taskmaster) head)
  (not (content-received-early-p (hunchentoot:taskmaster-acceptor taskmaster)
                                 (head-method head) (head-uri head))))

(defmethod note-rejected ((taskmaster recycling-taskmaster) http refusal
                          &optional method uri protocol headers)
  (note-rejection (hunchentoot:taskmaster-acceptor taskmaster)
                  http refusal method uri protocol headers))

;;; Questions of the engine

;; Programs wait for the server to end by joining the first thread whose name has "hunchentoot" in
;; it: so the sentinel, which lives until STOP, has the name of Hunchentoot's listener, and no other
;; thread has such a name.
(defmethod make-engine-thread ((taskmaster recycling-taskmaster) role thunk)
  (let ((place (place-of (hunchentoot:taskmaster-acceptor taskmaster))))
    (flet ((make (thunk control place)
             (hunchentoot:start-thread taskmaster thunk :name (format nil control place))))
      (case role
        (:sentinel
         (make (lambda ()
                 (setf (taskmaster-process taskmaster) (bt:current-thread))
                 (funcall thunk))
               "hunchentoot-listener-~A" place))
        (:timers
         (make thunk "http-timers-~A" place))
        (t
         (make thunk (taskmaster-worker-thread-name-format taskmaster)
               (format nil "~A-~D" place role)))))))

(defmethod call-as-worker ((taskmaster recycling-taskmaster) thunk)
  ;; Through ACCEPT-CONNECTIONS, so that a program's methods around it wrap each worker.
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
        (*work* thunk))
    (call-with-worker-buffers
     (if (typep acceptor 'parallel-acceptor)
         (lambda () (hunchentoot:accept-connections acceptor))
         thunk))))

(defmethod note ((taskmaster recycling-taskmaster) level control &rest arguments
                 &aux (*ours-to-tell-p* t))
  (apply #'hunchentoot:acceptor-log-message (hunchentoot:taskmaster-acceptor taskmaster)
         level control arguments))

;;; Refusing

(defmethod turn-away ((taskmaster recycling-taskmaster) connection reason)
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
        (socket (connection-usocket connection)))
    (if (eq :address reason)
        (tell-of-crowded-address taskmaster connection)
        (hunchentoot:too-many-taskmaster-requests taskmaster socket))
    (log-rejection acceptor (client-address connection) hunchentoot:+http-service-unavailable+)
    ;; Under TLS, an answer needs a handshake first, and this thread cannot wait for one.
    (unless (hunchentoot:acceptor-ssl-p acceptor)
      (send-busy socket))))
