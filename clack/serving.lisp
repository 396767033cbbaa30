(in-package #:clack.handler.recycling)

;;;; A request from its head to its response: the environment, a fresh plist, the call of the
;;;; application, and the end.
;;;;
;;;;   the condition tells that                   and the client gets, if the response has not begun
;;;;   the client is gone or too slow             nothing
;;;;   the application failed (any other)         500; with :DEBUG, the debugger runs first
;;;;
;;;; A response that has begun is cut, so that the client sees that the rest is missing.  If the
;;;; application has taken the connection over (socket.lisp), the connection ends.  An application
;;;; that has a limit of time, and takes longer, was answered for: its response is dropped.

;;; The environment

(defun environment (exchange content)
  "The environment of the request of EXCHANGE, a plist.  CONTENT is that of the request."
  (let* ((server (exchange-application exchange))
         (http (exchange-http exchange))
         (head (exchange-head exchange))
         (uri (head-uri head))
         (framing (head-framing head))
         (scheme (and (http-origin http) (origin-scheme (http-origin http))))
         (encrypted-p (if scheme        ; a trusted proxy tells it
                          (eq :https scheme)
                          (and (encrypted-p server) t)))
         (place (if (member (head-host head) '(nil "") :test #'equal) ; of HTTP/1.0
                    (http-local http)
                    (multiple-value-list
                     (host-and-port (head-host head) (default-port encrypted-p)))))
         (headers (make-hash-table :test 'equal :size (length (head-headers head)))))
    (loop for (name . value) in (headers-for-program exchange)
          do (setf (gethash (field-spelling name) headers) value))
    (multiple-value-bind (path-start path-end) (uri-path uri)
      (list :request-method (head-method head)
            :script-name ""
            :path-info (if (= path-start path-end)
                           "/"          ; a target in absolute form may have no path
                           (percent-decoded uri path-start path-end))
            :query-string (and (< path-end (length uri))
                               (text-part uri (1+ path-end) (length uri)))
            :server-name (first place)
            :server-port (second place)
            :server-protocol (head-protocol head)
            :request-uri uri
            :url-scheme (if encrypted-p "https" "http")
            :remote-addr (first (request-remote http))
            :remote-port (second (request-remote http))
            :headers headers
            :content-type (head-header head :content-type)
            :content-length (cond ((integerp framing) framing)
                                  ((and (eq :none framing) (head-header head :content-length))
                                   0))
            :raw-body (content-as-stream content)
            :clack.streaming t
            :clack.io exchange))))      ; see socket.lisp

(defmethod identifier-of ((environment cons))
  (keep-request-id (exchange-request-id (getf environment :clack.io))))

(defmethod traceparent-of ((environment cons))
  (head-header (exchange-head (getf environment :clack.io)) :traceparent))

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

(defun send-failure (exchange condition backtrace)
  "Logs the failure of the application, CONDITION with BACKTRACE, and answers the request of
EXCHANGE with 500.  Cuts a response that has begun."
  (let ((io (http-io (exchange-http exchange)))
        (*exchange* exchange))
    (tell (exchange-application exchange) :error *error-control* condition backtrace)
    (cond ((exchange-output exchange)
           (note-event exchange :reply-cut)
           (when (io-open-p io)
             (push-output io)))
          (t
           (begin-limited-reply exchange)
           (send-text exchange 500 "Internal Server Error")))))

;;; The request

(defmethod respond ((server clack-server) exchange)
  (let ((*exchange* exchange)
        (content (take-content exchange)))
    (labels ((blameless-p (condition)
               (client-gone-p condition exchange))
             (debug (condition)
               (unless (or (not (slot-value server 'debug)) (blameless-p condition))
                 (with-simple-restart (abort "Answer 500 (Internal Server Error).")
                   (invoke-debugger condition))))
             (call-application ()
               (if (keywordp (head-method (exchange-head exchange))) ; as environments have it
                   (let ((response (funcall (slot-value server 'app)
                                            (environment exchange content))))
                     (if (functionp response)
                         (respond-later exchange response)
                         response))
                   '(501 (:connection "close") ())))
             (answer ()
               (handler-bind ((error #'debug))
                 (let ((response (call-with-handler-limit exchange #'call-application)))
                   (unless (or (exchange-deferred-response exchange)
                               (taken-over-p exchange)
                               (eq :late (exchange-claim exchange)))
                     (check-response response)
                     (send-response exchange
                                    ;; Load balancers ask so whether the server is alive.
                                    (if (and (eql 404 (first response))
                                             (options-of-server-p (exchange-head exchange)))
                                        '(204 () ())
                                        response)))))))
      (declare (dynamic-extent #'blameless-p #'debug #'call-application #'answer))
      (multiple-value-bind (failure backtrace) (call-catching #'answer #'blameless-p)
        (let ((gone-p (and failure (client-gone-p failure exchange)))
              (late-p (eq :late (exchange-claim exchange)))
              (taken-over-p (taken-over-p exchange)))
          (handler-case
              (cond ((null failure))
                    (taken-over-p
                     (unless gone-p
                       (fail-websocket (exchange-upgrade exchange) failure backtrace)))
                    (gone-p
                     (note-event exchange :reply-cut))
                    (t
                     (send-failure exchange failure backtrace)))
            ((or descriptor-broken stream-timeout) () (setf gone-p t)))
          (when late-p
            (note-event exchange :reply-cut))
          (when (and (exchange-upgrade exchange) (not taken-over-p)) ; from now on it cannot be
            (end-websocket (exchange-upgrade exchange)))
          (if (deferred-p exchange)
              (leave-or-keep exchange)
              (let ((outcome (end-exchange exchange)))
                (cond (late-p outcome)
                      (gone-p :broken)
                      (taken-over-p (leave-or-keep exchange))
                      (t outcome)))))))))
