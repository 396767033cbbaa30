(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The arguments of Hunchentoot's acceptors and taskmasters, and of Clack's RUN, in one table; and
;;;; errors that name them.

(define-condition unfit-argument (recycling-error)
  ((name :initarg :name :reader unfit-argument-name)
   (words :initarg :words :reader unfit-argument-words))
  (:report (lambda (condition stream)
             (format stream "~A~A."
                     (unfit-argument-name condition) (unfit-argument-words condition))))
  (:documentation "Signalled when the value of an argument is not valid, alone or together with
another."))

(defun unfit (name control &rest arguments)
  "Signals UNFIT-ARGUMENT for the argument NAME, a keyword.  CONTROL, a string, and ARGUMENTS make
the text after the name, as for FORMAT."
  (error 'unfit-argument :name name
                         :words (let ((*print-pretty* nil)) ; on one line
                                  (apply #'format nil control arguments))))

;;; HTTP/2, which an optional system serves; see docs/http2.md

(defvar *begin-session* nil
  "A function of an application and a CONNECTION whose client speaks HTTP/2: it returns the
suspended exchange that serves that.  NIL while the system for it is not loaded.")

;;; Types

(defconstant +thousand-years+ (* 1000 366 24 60 60)
  "The longest time until a deadline, in seconds.")

(defun proxies-p (value)
  "True when VALUE is a list of designators of trusted proxies."
  (and (listp value) (every #'network-named value)))

(defun further-certificates-p (value)
  "True when VALUE is a list of lists of a certificate's file, its key's, and perhaps a password."
  (and (listp value)
       (every (lambda (element)
                (typep element '(cons (or string pathname)
                                 (cons (or string pathname)
                                  (or null (cons (or null string) null))))))
              value)))

(defun codings-p (value)
  "True when VALUE is a list of codings in which replies can be compressed."
  (and (listp value) (every (lambda (coding) (member coding '(:zstd :gzip))) value)))

(defun media-types-p (value)
  "True when VALUE is a list of media types, or patterns of such."
  (and (listp value) (every (lambda (type) (typep type '(and string (not (string 0))))) value)))

(defparameter *argument-kinds*
  `((seconds (or null (real 0 ,+thousand-years+)) "a number of seconds, or NIL for no limit")
    (own-seconds (or (eql :read-timeout) null (real 0 ,+thousand-years+))
     "a number of seconds, NIL for no limit, or :READ-TIMEOUT for as long as that says")
    (size (and index (integer 1)) "an integer above 0, and within reason")
    ;; Content may exceed any memory.
    (content (or null content-size) "an integer from 0 below 2^60, or NIL for no limit")
    (most (or null (and index (integer 1))) "an integer above 0, or NIL for no limit")
    (backlog (unsigned-byte 31) "an integer, not negative")
    (inherited (or null inherited-designator)
     "the number of a descriptor, :SYSTEMD, a list of :SYSTEMD and a name, or NIL")
    (test (or function symbol) "a function of one argument, or NIL")
    (pem-file (or string pathname) "a file in PEM format")
    (text (or null string) "a string, or NIL"))
  "Kinds of arguments, with their types, and these in words.")

(defparameter *limit-arguments*
  '((:max-request-line-octets size limits-request-line-octets)
    (:max-header-octets size limits-header-octets)
    (:max-header-count size limits-header-count)
    (:max-body-octets content limits-body-octets)
    (:max-raw-octets content limits-raw-octets)
    (:max-form-octets content limits-form-octets)
    (:max-field-count content limits-field-count)
    (:max-file-count content limits-file-count)
    (:min-content-rate most limits-content-rate)
    (:min-reply-rate most limits-reply-rate)
    (:reply-timeout seconds limits-reply-seconds)
    (:handler-timeout seconds limits-handler-seconds)
    (:handshake-timeout own-seconds limits-handshake-seconds)
    (:head-timeout own-seconds limits-head-seconds)
    (:idle-timeout own-seconds limits-idle-seconds)
    (:max-connection-requests most limits-connection-requests)
    (:max-address-connections most limits-address-connections))
  "For each limit, its name as an argument, its kind, and its reader.")

(defparameter *arguments*
  `(:common
    ((:port (integer 0 65535) "an integer from 0, for any free port, to 65535")
     (:address (or null (and string (not (string 0))) (vector * 4) (vector * 16))
      "an address or a host's name, a string, or NIL for all")
     (:read-timeout seconds)
     (:write-timeout seconds)
     (:defer-accept (or null (integer 1 255)) "an integer of seconds from 1 to 255, or NIL")
     (:trusted-proxies (satisfies proxies-p)
      "a list of addresses, of networks like \"10.0.0.0/8\", no bits beyond the slash, and :UNIX")
     (:listen-mode (or null (integer 0 #o777)) "an integer from 0 to #o777, such as #o660, or NIL")
     (:message-log-format (member :text :json) ":TEXT or :JSON")
     (:compression (or boolean (satisfies codings-p)) "T, or a list of :ZSTD and :GZIP, or NIL")
     (:compression-least-octets size)
     (:compression-types (satisfies media-types-p) "a list of strings such as \"text/*\"")
     (:http2 (member nil t :cleartext) "T, :CLEARTEXT or NIL")
     (:http2-streams size))
    :acceptor
    ((:listen-backlog backlog)
     (:listen-path (or null pathname (and string (not (string 0)))) "a string or a pathname")
     (:listen-fd inherited)
     ;; The function may be defined after the acceptor was made.
     (:access-log-format (or (member :combined :json) function
                             (and symbol (not (or null keyword))))
      ":COMBINED, :JSON or a function of one argument")
     (:session-cookie-attributes text))
    :threads
    ((:max-thread-count most)
     (:max-accept-count (or (member nil :unlimited) (and index (integer 1)))
      "an integer greater than MAX-THREAD-COUNT, :UNLIMITED, or NIL, to answer 503 at once"))
    :run
    ((:listen (or null string pathname) "a string or a pathname, or NIL")
     (:fd inherited)
     (:backlog backlog)
     (:worker-num most)
     (:websocket-message-octets size)
     (:websocket-ping-seconds seconds)
     (:websocket-idle-seconds seconds)
     (:on-start test)
     (:drain-timeout seconds)
     (:drain-delay (real 0 3600) "a number of seconds up to 3600")
     ,@(mapcar #'list
               '(:debug :reuse-port :persistent-connections-p :parking :proxy-protocol
                 :precompressed-files :ssl :ssl-cert-file :ssl-key-file :ssl-key-password
                 ;; Clack's own, which it passes on
                 :server :use-thread :use-default-middlewares :silent :swank-interface
                 :swank-port :allow-other-keys)))
    :tls
    ((:ssl-certificate-file pem-file)
     (:ssl-privatekey-file pem-file)
     (:ssl-privatekey-password text :secret)
     (:ssl-certificates (satisfies further-certificates-p)
      "a list of lists of a certificate's file, its private key's file, and optionally a password"
      :secret)
     (:ssl-minimum-protocol (member :tls-1.2 :tls-1.3) ":TLS-1.2 or :TLS-1.3")
     (:ssl-ciphers text)
     (:ssl-client-ca-file (or null string pathname) "a file in PEM format, or NIL")
     (:ssl-verify-client (member nil :required :optional :request)
      ":REQUIRED, :OPTIONAL, :REQUEST or NIL"))
    :limits
    ,*limit-arguments*)
  "The arguments of all, of acceptors, and so on.  For each there are its name and a kind, or a type
and the type in words; and perhaps :SECRET, where errors must not show the value.")

(defun arguments-of (&rest groups)
  "The rows of *ARGUMENTS* for GROUPS."
  (loop for group in groups append (getf *arguments* group)))

(defun check-arguments (values rows)
  "Checks the arguments in VALUES, a plist, that ROWS, of *ARGUMENTS*, name.  Signals
UNFIT-ARGUMENT."
  (loop with absent = '#:absent
        for (name type . more) in rows
        for (kind-type kind-words) = (rest (assoc type *argument-kinds*))
        for value = (getf values name absent)
        unless (or (eq value absent)
                   (handler-case (typep value (or kind-type type t))
                     (error () nil)))   ; a float is not a number, or a list not proper
          do (unfit name " must be ~A~:[, not ~S~;~]"
                    (or kind-words (first more)) (member :secret more) value)))

(defun check-accept-count (accept most)
  "Signals UNFIT-ARGUMENT unless the :MAX-ACCEPT-COUNT ACCEPT fits the :MAX-THREAD-COUNT MOST."
  (when (and (integerp accept) (not (and most (> accept most))))
    (unfit :max-accept-count ", ~D, must be greater than MAX-THREAD-COUNT, ~A" accept most)))

(defun check-proxy-protocol (proxy-protocol-p trusted)
  "Signals UNFIT-ARGUMENT if PROXY-PROTOCOL-P, and there are no proxies in the list TRUSTED."
  (when (and proxy-protocol-p (null trusted))
    (unfit :proxy-protocol " needs TRUSTED-PROXIES, from which connections must come")))

(defun check-http2 (http2 parking-p)
  "Signals UNFIT-ARGUMENT if HTTP2, an argument, asks for what cannot be had.  PARKING-P is true if
connections are parked."
  (cond ((null http2))
        ((not (and parking-p (readiness-supported-p)))
         (unfit :http2 " needs parked connections, on SBCL under Linux"))
        ((not *begin-session*)
         (unfit :http2 " needs the system hunchentoot-recycling-taskmaster/http2, which is not ~
                        loaded"))))

(defun changed-limits (limits initargs)
  "A copy of LIMITS with the changes in the plist INITARGS.  Signals UNFIT-ARGUMENT."
  (check-arguments initargs *limit-arguments*)
  (apply #'make-limits
         (loop for (name nil reader) in *limit-arguments*
               collect (intern (subseq (string reader) (length "LIMITS-")) '#:keyword)
               collect (getf initargs name (funcall reader limits)))))

;;; Where they listen

(define-condition port-taken (listen-failed usocket:address-in-use-error) ())
(define-condition listening-failed (listen-failed usocket:socket-error) ())

(defun tell-where (address port condition)
  "Signals CONDITION, for which the server cannot listen on ADDRESS, a string or NIL for all, and
PORT, as an error that names the place, unless it does so itself."
  (let ((taken-p (typep condition 'usocket:address-in-use-error))
        (cause (if (typep condition 'usocket:unknown-error)
                   (usocket::usocket-real-error condition)
                   condition)))
    (unless (typep condition 'listen-failed)
      (error (if taken-p 'port-taken 'listening-failed)
             :place (format nil "port ~D of ~:[all addresses~;~:*~A~]" port address)
             :reason (cond (taken-p "something else listens there")
                           ((or (typep condition 'usocket:operation-not-permitted-error)
                                (access-denied-p cause))
                            ;; ABCL does not tell which.
                            "this is not permitted, or something else listens there")
                           (t cause))))))

(defun open-listener (address port backlog &key path mode descriptor reuse-port defer-accept)
  "A listener at PATH, with MODE; or of DESCRIPTOR, an INHERITED-DESIGNATOR; or at ADDRESS and PORT,
which other processes may share if REUSE-PORT.  Signals LISTEN-FAILED."
  (handler-bind ((error (lambda (condition) (tell-where address port condition))))
    (cond (path (open-path-listener path mode backlog))
          (descriptor (open-inherited-listener (inherited-descriptor descriptor)))
          (t
           (let ((listener (if reuse-port
                               (open-shared-port-listener address port backlog)
                               (usocket:socket-listen (or address usocket:*wildcard-host*) port
                                                      :reuse-address t :backlog backlog
                                                      :element-type '(unsigned-byte 8)))))
             (defer-accepts listener (or defer-accept 0))
             listener)))))
