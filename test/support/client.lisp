(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Requests and their responses.  The keyword arguments are those of REQUEST-OCTETS.

(defun send-request (connection target &rest keys)
  "Sends a request for TARGET, made of KEYS, to CONNECTION."
  (send connection (apply #'request-octets target keys)))

(defun exchange (connection target &rest keys &key method &allow-other-keys)
  "Sends a request for TARGET, made of KEYS, to CONNECTION; returns its response."
  (apply #'send-request connection target keys)
  (read-response connection :head (eq method :head)))

(defun exchange-text (connection target &rest keys)
  "The text of the response to an EXCHANGE."
  (response-text (apply #'exchange connection target keys)))

(defun ask (target &rest keys)
  "The response of *SERVER* to a request for TARGET, made of KEYS, on a connection of
its own."
  (with-connection (connection)
    (apply #'exchange connection target keys)))

(defun ask-text (target &rest keys)
  "The text of the response to ASK."
  (response-text (apply #'ask target keys)))

(defparameter *traceparent* "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
  "A field traceparent.")

(defun ask-traced (target &rest values)
  "The response to a request for TARGET with a field traceparent for each of VALUES; with a valid
one without them."
  (ask target :headers (loop for value in (or values (list *traceparent*))
                             collect (cons "Traceparent" value))))

(defun ask-raw (&rest parts)
  "All that *SERVER* sends, until it hangs up, in answer to the octets of PARTS."
  (with-connection (connection)
    (apply #'send connection parts)
    (receive-rest connection)))

(defmacro as-client ((name) &body body)
  "Evaluates BODY in a background task called NAME, with the server and the connections of this
thread."
  (let ((server (gensym "SERVER")) (make-connection (gensym "MAKE-CONNECTION")))
    `(let ((,server *server*) (,make-connection *make-connection*))
       (in-background (,name)
         (let ((*server* ,server) (*make-connection* ,make-connection)) ,@body)))))

;;; Connections that are refused

(defun check-refused (connection)
  "Checks that CONNECTION, over which no request was sent, is answered 503 and closed."
  (let ((response (read-response connection)))
    (is (= 503 (response-status response)))
    (is (equal "1" (response-header response "retry-after"))))
  (is-true (closed-by-server-p connection)))

(defun refused-for-address ()
  (getf (figure :refused-by) :address))

(defun admitted ()
  "A connection over which a request was served; opened as soon as the server lets one in."
  (eventually ("a connection to be let in")
    (let ((connection (handler-case (connect) ; a handshake, perhaps
                        (error () nil))))
      (cond ((null connection) nil)
            ((equal "word" (handler-case (exchange-text connection "/word")
                             (error () nil)))
             connection)
            (t
             (disconnect connection)
             nil)))))

(defmacro with-admitted ((connection) &body body)
  "Evaluates BODY with CONNECTION bound to the value of ADMITTED."
  `(with-open-connection (,connection (admitted)) ,@body))

(defun ask-parts (&rest parts)
  "The text of all that *SERVER* sends in answer to PARTS, after which the client sends no more."
  (with-connection (connection)
    (apply #'send connection parts)
    (end-sending connection)
    (map 'string #'code-char (receive-rest connection))))
