(in-package #:clack.handler.recycling)

;;;; A server of one Clack application.  The layer below sees it as an application, and the engine
;;;; sees it as its service.

(defgeneric server-address (server)
  (:documentation "The address on which SERVER, a CLACK-SERVER, listens: a string, or NIL before it
listens.  For a Unix-domain socket, it is \"unix:\" followed by the path."))

(defgeneric server-port (server)
  (:documentation "The port on which SERVER, a CLACK-SERVER, listens: an integer, or NIL before it
listens.  For a Unix-domain socket, it is 0."))

(defclass clack-server (http-service)
  ((app :initarg :app :reader server-app)
   (debug-p :initarg :debug-p :reader server-debug-p)
   (limits :initarg :limits :reader application-limits)
   (read-timeout :initarg :read-timeout :reader read-seconds)
   (write-timeout :initarg :write-timeout :reader write-seconds)
   (persistent-p :initarg :persistent-p :reader server-persistent-p)
   (websocket-limits :initarg :websocket-limits :reader server-websocket-limits
                     :documentation "The limits on WebSockets, keyword arguments of
MAKE-PROGRAM-SOCKET.")
   (trusted-proxies :initarg :trusted-proxies :reader trusted-proxies)
   (proxy-protocol-p :initarg :proxy-protocol-p :reader proxy-protocol-p)
   (precompressed-files-p :initarg :precompressed-files-p :reader server-precompressed-files-p)
   (file-cache-control :initarg :file-cache-control :reader server-file-cache-control)
   (message-log-format :initarg :message-log-format :reader server-message-log-format)
   (tls-context :initarg :tls-context :initform nil :reader handshake-context)
   (place :initarg :place :reader server-place
          :documentation "The arguments of RUN that say where to listen, a plist.")
   (threads :initarg :threads :reader server-threads
            :documentation "The limits on the number of threads, a plist; see THREAD-COUNTS.")
   (address :initform nil :reader server-address)
   (port :initform nil :reader server-port)
   (sole-name :initform nil :accessor server-sole-name
              :documentation "A list of the address and port of our end of every connection, where
all connections have the same; else NIL.")
   (listener :initform nil :accessor server-listener)
   (stopped-p :initform nil :accessor server-stopped-p)
   (lock :initform (bt:make-lock "clack server") :reader server-lock)
   (stopped :initform (bt:make-condition-variable) :reader server-stopped
            :documentation "Notified when STOPPED-P has become true.")
   (output :initform *standard-output* :reader server-output)
   (error-output :initform *error-output* :reader server-error-output)
   (journal :accessor server-journal
            :documentation "Writes messages to ERROR-OUTPUT, in a thread of its own while the server
runs.  When that stream blocks, lines are lost and counted, but no response and no worker waits.")
   (throttle :initform (make-throttle) :reader server-throttle
             :documentation "Limits how often messages appear that clients can cause.")
   (known-host :initform (list (coerce "" 'text) "" nil) :accessor server-known-host
               :documentation "The last Host header: a list of its text, and the name and the port
in it.  Replaced as a whole."))
  (:documentation "A server of one Clack application; see RUN."))

(defmethod initialize-instance :after ((server clack-server) &key)
  (setf (server-journal server)
        (make-journal (server-error-output server) "clack log"
                      (lambda (&rest complaint)
                        (apply #'tell server complaint)))))

(defun server-reply-timeout (server)
  "How many seconds a delayed response of SERVER may take, a real, or NIL for no limit."
  (limits-reply-seconds (application-limits server)))

(defmethod server-engine ((server clack-server))
  (application-engine server))

(defmethod stats ((server clack-server))
  (append (engine-stats (application-engine server))
          (list :log-dropped (journal-unwritten (server-journal server)))))

(defmethod list-connections ((server clack-server))
  (let ((engine (and (not (server-stopped-p server)) (application-engine server))))
    (and engine (list-engine-connections engine))))

(defmethod ready-p ((server clack-server))
  (engine-ready-p (application-engine server)))

;;; Questions of the layer below

(defmethod reading-kind ((server clack-server))
  :own)

(defmethod encrypted-p ((server clack-server))
  (and (handshake-context server) t))

(defmethod program-stream ((server clack-server) socket-stream)
  (if (encrypted-p server)
      (encrypt server socket-stream)
      socket-stream))

(defgeneric encrypt (server socket-stream)
  (:documentation "Completes a TLS handshake over SOCKET-STREAM, of a connection of SERVER.  Returns
a stream that reads and writes the decrypted octets."))

(defmethod name-of-our-end ((server clack-server) socket)
  (or (server-sole-name server)
      (multiple-value-list (local-name socket))))

(defmethod check-head ((server clack-server) head)
  "Refuses a method without a keyword, since Clack's environment names methods by keywords."
  (unless (keywordp (head-method head))
    (error 'protocol-error :refusal :malformed-method :status 501
                           :section "RFC 9110, section 9.1"
                           :reason "The method is not known here.")))

(defmethod content-refused ((server clack-server) refusal)
  ;; The application sees the error when it reads the content, and may answer by itself.
  (declare (ignore refusal))
  nil)

;;; Messages

(defvar *answered* nil
  "The exchange of the request for which the current thread calls the application, or reports its
failure; else NIL.")

(defmethod note ((server clack-server) level control &rest arguments)
  "Limits the rate of all messages, since clients may cause any of them."
  (multiple-value-bind (arguments backtrace) (message-parts control arguments)
    (let ((text (if (equal control *rare-control*)
                    (message-text control arguments)
                    (counted-text (server-throttle server) control arguments #'report-text))))
      (when text
        (append-line (server-journal server)
                     (apply #'encoded-message (server-message-log-format server) level text
                            :backtrace backtrace
                            (and *answered* (facts-of-request *answered*)))
                     t)))))

(defun facts-of-request (exchange)
  "The request of EXCHANGE, for ENCODED-MESSAGE."
  (list :request (exchange-words exchange)
        :request-id (keep-request-id (exchange-request-id exchange))
        :remote-address (and (exchange-http exchange) ; unless that is closed
                             (http-address (exchange-http exchange)))))

(defmethod note-failed-handshake ((server clack-server) condition)
  (case (handshake-failure-kind condition)
    ((nil) (tell server :error "~A" condition))
    (:expired)                          ; the sentinel ended it, and has counted it
    (t (tell-of-failed-handshake server condition))))

;;; Questions of the engine

(defmethod place-of ((server clack-server))
  (place-text (server-address server) (server-port server)))

(defmethod make-engine-thread ((server clack-server) role thunk)
  (bt:make-thread thunk :name (case role
                                (:sentinel (format nil "clack-listener-~A" (place-of server)))
                                (:timers (format nil "clack-timers-~A" (place-of server)))
                                (t (format nil "clack-worker-~A-~D" (place-of server) role)))))

(defmethod call-as-worker ((server clack-server) thunk)
  ;; As with Clack's other handlers, applications write to the streams of CLACKUP's caller.
  (let ((*standard-output* (server-output server))
        (*error-output* (server-error-output server)))
    (call-with-worker-buffers thunk)))

(defmethod turn-away ((server clack-server) connection reason)
  (if (eq :address reason)
      (tell-of-crowded-address server connection)
      (tell-of-refusal server (getf (server-threads server) :most)))
  ;; Under TLS, an answer needs a handshake first, and this thread cannot wait for one.
  (unless (encrypted-p server)
    (send-busy (connection-usocket connection))))
