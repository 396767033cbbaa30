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
