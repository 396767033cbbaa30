(in-package #:clack.handler.recycling)

;;;; A request from its head to its response: the environment, a fresh plist, the call of the
;;;; application, and the end.
;;;;
;;;;   the condition tells that                   and the client gets, if the response has not begun
;;;;   the content is refused (PROTOCOL-ERROR)    the status of the refusal
;;;;   the client is gone or too slow             nothing
;;;;   the application failed (any other)         500; with :DEBUG, the debugger runs first
;;;;
;;;; A response that has begun is cut, so that the client sees that the rest is missing.  If the
;;;; application has taken the connection over (socket.lisp), the connection ends.  An application
;;;; that has a limit of time, and takes longer, was answered for: its response is dropped.

;;; The environment

(defun server-name-and-port (server head http)
  "The host and the port that the request HEAD over HTTP is for."
  (let ((host (head-host head))
        (known (server-known-host server)))
    (cond ((or (null host) (string= "" host)) ; of HTTP/1.0
           (values-list (http-local http)))
          ((http-client http)           ; whose scheme decides about the default port
           (host-and-port host (default-port (request-encrypted-p server http))))
          ((let ((other (first known)))  ; most clients name the same host
             (declare (type text host other))
             (and (= (length host) (length other))
                  (every #'char= host other)))
           (values (second known) (third known)))
          (t
           (setf known (cons host (multiple-value-list
                                   (host-and-port host (default-port (encrypted-p server))))))
           (set-published (server-known-host server) known)
           (values (second known) (third known))))))

(defun environment (exchange)
  "The environment of the request of EXCHANGE, a plist."
  (let* ((server (exchange-application exchange))
         (http (exchange-http exchange))
         (head (exchange-head exchange))
         (uri (head-uri head))
         (framing (head-framing head))
         (headers (make-hash-table :test 'equal :size (length (head-headers head)))))
    (setf (exchange-request-id exchange) (told-request-id http (head-headers head)))
    (loop for (name . value) in (head-headers head)
          do (setf (gethash (field-spelling name) headers) value))
    (multiple-value-bind (path-start path-end) (uri-path uri)
      (multiple-value-bind (name port) (server-name-and-port server head http)
        (list :request-method (head-method head)
              :script-name ""
              :path-info (if (= path-start path-end)
                             "/"        ; a target in absolute form may have no path
                             (percent-decoded uri path-start path-end))
              :query-string (and (< path-end (length uri))
                                 (text-part uri (1+ path-end) (length uri)))
              :server-name name
              :server-port port
              :server-protocol (head-protocol head)
              :request-uri uri
              :url-scheme (if (request-encrypted-p server http) "https" "http")
              :remote-addr (first (request-remote http))
              :remote-port (second (request-remote http))
              :headers headers
              :content-type (head-header head :content-type)
              :content-length (cond ((integerp framing) framing)
                                    ((and (eq :none framing) (head-header head :content-length))
                                     0))
              :raw-body (content-as-stream (current-content exchange))
              :clack.streaming t
              :clack.io exchange))))) ; see socket.lisp

(defmethod identifier-of ((environment cons))
  (keep-request-id (exchange-request-id (getf environment :clack.io))))

(defmethod watch-of ((environment cons))
  (exchange-watch (getf environment :clack.io)))

;;; Failures

(defun client-gone-p (condition exchange)
  "True when CONDITION tells that the client of EXCHANGE is gone, or takes the response too slowly."
  (typecase condition
    ((or descriptor-broken stream-timeout) t)
    (client-left
     (let ((source (client-left-source condition))) ; may belong to another request
       (and source
            (or (eq source (exchange-upgrade exchange))
                (eq source (exchange-deferred-response exchange))))))))

(defun send-failure (exchange status text)
  "Sends STATUS and TEXT as the response to EXCHANGE; cuts a response that has begun."
  (cond ((eq :idle (our-side (exchange-protocol exchange)))
         (send-text exchange status text))
        (t
         (note-event exchange :reply-cut)
         (let ((io (http-io (exchange-http exchange))))
           (when (io-open-p io)
             (push-output io))))))

(defun report-failure (exchange condition backtrace)
  "Logs CONDITION, which the application has signalled for EXCHANGE, with BACKTRACE, and sends 500."
  (let ((*answered* exchange))
    (tell (exchange-application exchange) :error *error-control* condition backtrace))
  (send-failure exchange 500 "Internal Server Error"))

(defun answer-failure (exchange condition backtrace)
  "Ends the response to EXCHANGE after CONDITION, which has BACKTRACE, a string or NIL.  NIL where
the client is gone."
  (let ((gone-p (client-gone-p condition exchange)))
    (handler-case
        (cond ((taken-over-p exchange)
               (unless gone-p
                 (fail-program-socket (exchange-upgrade exchange) condition backtrace)))
              ((typep condition 'protocol-error)
               (note-event exchange :request-fault)
               (send-failure exchange
                             (protocol-error-status condition) (protocol-error-reason condition)))
              (gone-p
               (note-event exchange :reply-cut))
              (t
               (report-failure exchange condition backtrace)))
      ((or descriptor-broken stream-timeout) () (setf gone-p t)))
    (not gone-p)))

;;; The request

(defun answer (exchange)
  "Has the application answer the request of EXCHANGE, now or later."
  (let* ((*answered* exchange)
         (response (funcall (server-app (exchange-application exchange))
                            (environment exchange))))
    (cond ((functionp response)
           (respond-later exchange response))
          ((or (and (exchange-upgrade exchange) (taken-over-p exchange))
               (not (lift-handler-limit exchange))))
          (t
           (check-response response)
           (send-response exchange
                          ;; Load balancers ask so whether the server is alive.
                          (if (and (eql 404 (first response))
                                   (options-of-server-p (exchange-head exchange)))
                              '(204 () ())
                              response))))))

(define-condition debugger-left (recycling-error)
  ()
  (:report "The debugger was left.")
  (:documentation "Signalled when the restart ABORT is chosen for an error of an application."))

(defun answer-debugging (exchange blameless-p)
  "Calls ANSWER with EXCHANGE.  Errors of the application, of which BLAMELESS-P is not true, enter
the debugger in this thread, with a restart ABORT that answers 500."
  (restart-case
      (handler-bind ((error (lambda (condition)
                              (unless (funcall blameless-p condition)
                                (invoke-debugger condition)))))
        (answer exchange))
    (abort ()
      :report "Answer 500 (Internal Server Error)."
      (error 'debugger-left))))

(defun conclude-request (exchange)
  "Ends the request of EXCHANGE, whose response is over, and releases its content.  Returns the
connection's outcome, :PARK or :CLOSE."
  (when (eq :done (our-side (exchange-protocol exchange)))
    (end-content exchange))
  (note-served exchange)
  (abandon-content (exchange-http exchange))
  (if (reusable-p (exchange-protocol exchange)) :park :close))

(defmethod respond ((server clack-server) exchange)
  (labels ((blameless-p (condition)
             (or (typep condition 'protocol-error)
                 (client-gone-p condition exchange)))
           (call-application ()
             (if (server-debug-p server)
                 (answer-debugging exchange #'blameless-p)
                 (answer exchange)))
           (call-in-time ()
             (call-with-handler-limit exchange #'call-application)))
    (declare (dynamic-extent #'blameless-p #'call-application #'call-in-time))
    (take-content exchange)
    (multiple-value-bind (failure backtrace) (call-catching #'call-in-time #'blameless-p)
      (let ((answered-p (or (null failure) (answer-failure exchange failure backtrace)))
            (late-p (handler-timed-out-p exchange))
            (taken-over-p (and (exchange-upgrade exchange) (settle-takeover exchange))))
        (when late-p
          (note-event exchange :reply-cut))
        (if (deferred-p exchange)
            (leave-or-keep exchange)
            (let ((outcome (conclude-request exchange)))
              (cond (late-p outcome)
                    ((not answered-p) :broken)
                    (taken-over-p (leave-or-keep exchange))
                    (t outcome))))))))
