(in-package #:clack.handler.recycling)

;;;; The arguments of RUN, with the meanings that Clack's handlers for Hunchentoot and Woo give
;;;; them.

(deftype count-of-threads ()
  "A number of threads."
  '(integer 1 #.most-positive-fixnum))

(defparameter *option-types*
  `((:address address "a string with an address or the name of a host, or NIL for all addresses")
    (:port port-number "an integer from 0, for any free port, to 65535")
    (:listen (or null string pathname) "a string or a pathname, or NIL")
    (:listen-mode (or null (integer 0 #o777)) "an integer from 0 to #o777, or NIL")
    (:fd (or null inherited-designator)
     "the number of a descriptor, :SYSTEMD, a list of :SYSTEMD and a name, or NIL")
    (:backlog (unsigned-byte 31) "an integer, not negative")
    (:worker-num (or null count-of-threads) "an integer above 0, or NIL")
    (:max-thread-count (or null count-of-threads) "an integer above 0, or NIL for no limit")
    (:max-accept-count (or (member nil :unlimited) count-of-threads)
     "an integer greater than MAX-THREAD-COUNT, :UNLIMITED, or NIL, to answer 503 at once")
    (:max-waiting-count (or (member nil :half) count-of-threads)
     "an integer above 0, :HALF of MAX-THREAD-COUNT, or NIL for no limit")
    (:read-timeout seconds "a number of seconds, or NIL for no limit")
    (:write-timeout seconds "a number of seconds, or NIL for no limit")
    (:websocket-message-octets (and index (integer 1)) "an integer above 0, and within reason")
    (:websocket-ping-seconds seconds "a number of seconds, or NIL for never")
    (:websocket-idle-seconds seconds "a number of seconds, or NIL for never")
    (:defer-accept (or null (integer 1 255)) "an integer of seconds from 1 to 255, or NIL")
    (:trusted-proxies proxies ,*proxies-in-words*)
    (:file-cache-control cache-control ,*cache-control-in-words*)
    (:message-log-format (member :text :json) ":TEXT or :JSON")
    (:on-start (or null function symbol) "a function of one argument, or NIL"))
  "The types of the arguments of RUN, for CHECK-ARGUMENT-TYPES.")

(defparameter *other-options*
  '(:debug :reuse-port :persistent-connections-p :parking :proxy-protocol
    :precompressed-files :ssl :ssl-cert-file :ssl-key-file :ssl-key-password :ssl-certificates
    :ssl-minimum-protocol :ssl-ciphers :ssl-client-ca-file :ssl-verify-client
    :ssl-ticket-key-file :drain-timeout :drain-delay
    ;; Clack's own, which it passes on
    :server :use-thread :use-default-middlewares :silent :swank-interface :swank-port
    :allow-other-keys)
  "The arguments of RUN without a type here, and those that have a meaning elsewhere.")

(defun unknown-options (arguments)
  "The names in ARGUMENTS, a plist for RUN, that nobody knows, a list."
  (loop for (name) on arguments by #'cddr
        unless (or (assoc name *option-types*)
                   (assoc name *limit-initargs*)
                   (member name *other-options*))
          collect name))

(defparameter *least-threads* 8
  "The default of :WORKER-NUM: how many threads a server makes at start and keeps.")

(defparameter *clack-limits* (make-limits :header-octets (* 128 1024))
  "The limits of a server by default.  Clack's own tests send a head of 96,000 octets.")

(defun thread-counts (arguments)
  "The limits on threads in ARGUMENTS, a plist for RUN.  Returns a plist: the numbers of threads,
:LEAST and :MOST; the number of connections to accept, :ACCEPT; and the number of threads that may
wait for clients, :WAITING."
  (let* ((least (or (getf arguments :worker-num) *least-threads*))
         (most (getf arguments :max-thread-count 100))
         (accept (getf arguments :max-accept-count :unlimited)))
    (when (and most (getf arguments :worker-num) (> least most))
      (setf most least))                ; with Woo, :WORKER-NUM may be any number
    (when (integerp accept)
      (unless (and most (> accept most))
        (unfit :max-accept-count ", ~D, must be greater than MAX-THREAD-COUNT, ~A" accept most)))
    (list :least (if most (min least most) least) :most most :accept accept
          :waiting (getf arguments :max-waiting-count :half))))

(defun websocket-limits (arguments)
  "The limits on WebSockets in ARGUMENTS, a plist for RUN, as keyword arguments of
MAKE-PROGRAM-SOCKET."
  (list :most-octets (getf arguments :websocket-message-octets (* 1024 1024))
        :ping-seconds (getf arguments :websocket-ping-seconds 30)
        :idle-seconds (getf arguments :websocket-idle-seconds 75)))

(defun check-place (arguments)
  "Signals UNFIT-ARGUMENT unless the server can listen where ARGUMENTS, a plist for RUN, say."
  (let ((special (remove nil '(:listen :fd :reuse-port)
                         :key (lambda (name) (getf arguments name)))))
    (when (and special (not (special-listeners-supported-p)))
      (unfit (first special) " needs SBCL under Linux"))
    (when (and (getf arguments :listen) (getf arguments :fd))
      (unfit :listen " and FD exclude each other"))))

(defun tls-wanted-p (arguments)
  "True when ARGUMENTS, a plist for RUN, ask for TLS: by :SSL, or without it, as with Woo, by a
certificate or key file."
  (getf arguments :ssl (or (getf arguments :ssl-cert-file)
                           (getf arguments :ssl-key-file))))

(defun tls-context-for (arguments)
  "The TLS-CONTEXT for ARGUMENTS, a plist for RUN; NIL where they do not ask for TLS."
  (cond ((not (tls-wanted-p arguments)) nil)
        ((fboundp 'clack-tls-context) (funcall 'clack-tls-context arguments))
        (t (unfit :ssl " cannot be had: this was built with the feature HUNCHENTOOT-NO-SSL"))))

(defun make-clack-server (app arguments)
  "A CLACK-SERVER of APP with ARGUMENTS, a plist for RUN.  Signals UNFIT-ARGUMENT."
  (check-argument-types arguments *option-types*)
  (check-place arguments)
  (check-proxy-protocol (getf arguments :proxy-protocol) (getf arguments :trusted-proxies))
  (make-instance 'clack-server
                 :app app
                 :debug-p (getf arguments :debug)
                 :limits (changed-limits *clack-limits* arguments)
                 :read-timeout (getf arguments :read-timeout 20)
                 :write-timeout (getf arguments :write-timeout 20)
                 :persistent-p (getf arguments :persistent-connections-p t)
                 :websocket-limits (websocket-limits arguments)
                 :trusted-proxies (networks-named (getf arguments :trusted-proxies))
                 :proxy-protocol-p (getf arguments :proxy-protocol)
                 :precompressed-files-p (getf arguments :precompressed-files)
                 :file-cache-control (getf arguments :file-cache-control)
                 :message-log-format (getf arguments :message-log-format :text)
                 :tls-context (tls-context-for arguments)
                 :place arguments
                 :threads (thread-counts arguments)))
