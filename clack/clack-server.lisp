(in-package #:clack.handler.recycling)

;;;; A server of one Clack application, as the application of the layer below and as the engine's
;;;; service.

(defclass clack-server (http-service)
  ((app :initarg :app :reader server-app)
   (debug-p :initarg :debug-p :reader server-debug-p)
   (limits :initarg :limits :reader application-limits)
   (read-timeout :initarg :read-timeout :reader idle-seconds)
   (write-timeout :initarg :write-timeout :reader write-seconds)
   (response-timeout :initarg :response-timeout :reader server-response-timeout)
   (persistent-p :initarg :persistent-p :reader server-persistent-p)
   (batch-scheduling-p :initarg :batch-scheduling-p :reader server-batch-scheduling-p)
   (tls-context :initarg :tls-context :initform nil :reader handshake-context)
   (place :initarg :place :reader server-place
          :documentation "Where to listen: a plist of arguments.")
   (threads :initarg :threads :reader server-threads
            :documentation "How many threads there are to be: a plist of arguments.")
   (address :initform nil :accessor %server-address)
   (port :initform nil :accessor %server-port)
   (sole-name :initform nil :accessor server-sole-name
              :documentation "Address and port, in a list, of our end of every connection, where
there is but one; else NIL.")
   (listener :initform nil :accessor server-listener)
   (stopped-p :initform nil :accessor server-stopped-p)
   (lock :initform (bt:make-lock "clack server") :reader server-lock)
   (stopped :initform (bt:make-condition-variable) :reader server-stopped
            :documentation "Notified when STOPPED-P has become true.")
   (output :initform *standard-output* :reader server-output)
   (error-output :initform *error-output* :reader server-error-output)
   (journal :accessor server-journal
            :documentation "Writes what is told to ERROR-OUTPUT, by a thread of its own while the
server runs: a stream that takes nothing costs lines, which are counted, and never a response or a
worker.")
   (throttle :initform (make-throttle) :reader server-throttle
             :documentation "How often was told what clients can cause.")
   (known-host :initform (list (coerce "" 'text) "" nil) :accessor server-known-host
               :documentation "The text of a header Host, and the name and the port in it, a list
that is replaced whole."))
  (:documentation "A server of one Clack application; see RUN."))

(defmethod initialize-instance :after ((server clack-server) &key)
  (setf (server-journal server)
        (make-journal (server-error-output server) "clack log"
                      (lambda (&rest complaint)
                        (apply #'tell server complaint)))))

(defgeneric server-address (server)
  (:documentation "The address on which SERVER listens, a string; of a Unix-domain socket \"unix:\"
and its path.")
  (:method ((server clack-server))
    (%server-address server)))

(defgeneric server-port (server)
  (:documentation "The port on which SERVER listens, an integer; 0 of a Unix-domain socket.")
  (:method ((server clack-server))
    (%server-port server)))

(defgeneric server-statistics (server)
  (:documentation "A plist of what SERVER did and does, as HUNCHENTOOT-RECYCLING-TASKMASTER:STATS
explains it for acceptors, but for what is counted of rejected requests and handshakes.")
  (:method ((server clack-server))
    (append (if (application-engine server)
                (engine-statistics (application-engine server))
                (no-statistics))
            (list :log-dropped (journal-unwritten (server-journal server))))))

;;; What the layer below asks

(defmethod reading-kind ((server clack-server))
  :own)

(defmethod encrypted-p ((server clack-server))
  (and (handshake-context server) t))

(defmethod program-stream ((server clack-server) socket-stream)
  (if (encrypted-p server)
      (encrypt server socket-stream)
      socket-stream))

(defgeneric encrypt (server socket-stream)
  (:documentation "The stream that TLS carries on SOCKET-STREAM, of a connection of SERVER, after
the handshake."))

(defmethod name-of-our-end ((server clack-server) socket)
  (or (server-sole-name server)
      (multiple-value-list (local-name socket))))

(defmethod check-head ((server clack-server) head)
  "The protocol of Clack has keywords for methods."
  (unless (keywordp (head-method head))
    (error 'protocol-error :refusal :malformed-method :status 501
                           :section "RFC 9110, section 9.1"
                           :reason "The method is not known here.")))

(defmethod content-refused ((server clack-server) refusal)
  ;; The application is told by the error, and may answer by itself.
  (declare (ignore refusal))
  nil)

;;; What is told

(defmethod note ((server clack-server) level control &rest arguments)
  "Whatever is told, a client may have caused."
  (let ((text (if (equal control *rare-control*)
                  (message-text control arguments)
                  (counted-text (server-throttle server) control arguments #'report-text))))
    (when text
      (append-line (server-journal server)
                   (encoded-message (format nil "[~A] " level) text)
                   t))))

(defmethod note-failed-handshake ((server clack-server) condition)
  (case (handshake-failure-kind condition)
    ((nil) (tell server :error "~A" condition))
    (:expired)                          ; by the sentinel, which has counted it
    (t (tell-of-failed-handshake server condition))))

;;; What the engine asks

(defun place-of (server)
  "Where SERVER listens, a string for people."
  (format nil "~A:~A" (server-address server) (server-port server)))

(defmethod make-engine-thread ((server clack-server) role thunk)
  (bt:make-thread thunk :name (case role
                                (:sentinel (format nil "clack-listener-~A" (place-of server)))
                                (:timers (format nil "clack-timers-~A" (place-of server)))
                                (t (format nil "clack-worker-~A-~D" (place-of server) role)))))

(defmethod call-as-worker ((server clack-server) thunk)
  ;; Clack lets applications write where its caller does, in whichever thread they are called.
  (let ((*standard-output* (server-output server))
        (*error-output* (server-error-output server)))
    (call-with-worker-buffers thunk)))

(defmethod refuse ((server clack-server) connection)
  (tell-of-refusal server (getf (server-threads server) :most))
  ;; Under TLS nothing can be said before a handshake, for which we cannot wait here.
  (unless (encrypted-p server)
    (send-busy (connection-usocket connection))))
