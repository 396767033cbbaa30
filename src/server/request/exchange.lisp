(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; An exchange: one request of a connection and its reply.

(defstruct (exchange (:include opaque)
                     (:constructor make-exchange
                         (application connection
                          &aux (engine (and *worker* (worker-engine *worker*))))))
  "The state of one request and its reply.  Only the owner of its connection reads and writes it."
  ;; The HTTP-SERVICE that responds to the request of EXCHANGE.
  (application nil :read-only t)
  ;; The CONNECTION of the engine over which the request of EXCHANGE came.
  (connection nil :read-only t)
  ;; The engine of the connection of EXCHANGE.
  (engine nil :read-only t)
  ;; The moment, in MICROSECONDS, at which the head of the request of EXCHANGE was read.
  (began 0 :type (unsigned-byte 62))
  ;; The HEAD of the request of EXCHANGE; NIL until it was read.
  (head nil)
  ;; What becomes of the reply: NIL before its head, then :BEGUN, :DONE, :CUT or :SWITCHED.
  (output nil :type symbol)
  ;; Neither side has said that the connection of EXCHANGE ends with it, and nothing else ends it.
  (kept-p t)
  ;; The status of the reply of EXCHANGE, once that begins; NIL where there is none.
  (status nil :type (or null fixnum))
  ;; The DEFERRED-RESPONSE of the reply of EXCHANGE; NIL unless it is to come later.
  (deferred-response nil)
  ;; The identifier of the request of EXCHANGE, a string; NIL until there is one.
  (request-id nil)
  ;; The use that the application has for the connection of EXCHANGE after a reply with status 101;
  ;; NIL for none.
  (upgrade nil)
  ;; Who has the reply, see replies.lisp; NIL where the handler has no limit of time.
  (claim nil)
  (limit nil :type (or null fixnum))    ; that time, in MILLISECONDS; NIL for never
  (counted-p nil))                      ; NOTE-SERVED was called for its request

(defun note-event (exchange event)
  "Notes EVENT of the reply of EXCHANGE, after which the connection may be used again or not (RFC
9112, sections 9.3 and 9.6)."
  (setf (exchange-output exchange)
        (ecase event
          (:reply (if (eql 101 (exchange-status exchange)) :switched :begun)) ; its head was sent
          (:reply-end (if (eq :begun (exchange-output exchange)) :done (exchange-output exchange)))
          (:reply-cut :cut)             ; the rest is not sent
          (:switch :switched))))        ; another protocol follows

(defun exchange-duration (exchange)
  "How many microseconds, an integer, have passed since the head of the request of EXCHANGE was
read."
  (max 0 (- (microseconds) (exchange-began exchange))))

(defun note-served (exchange)
  "Counts the request of EXCHANGE, whose reply is over, as served; only at the first call, since a
reply that fails, or whose thread is destroyed, may be ended a second time."
  (unless (shiftf (exchange-counted-p exchange) t)
    (count-request (exchange-connection exchange) (exchange-duration exchange)
                   ;; The class of its status (RFC 9110, section 15); 0 without a reply.
                   (min 5 (floor (or (exchange-status exchange) 0) 100)))))

(defun last-of-connection-p (exchange)
  "True when the connection of EXCHANGE is to end with its reply, since it has served as many
requests as it may, or its engine does not keep connections now."
  (let ((most (limits-connection-requests (application-limits (exchange-application exchange)))))
    (or (and most
             (<= most (1+ (connection-served (exchange-connection exchange)))))
        (not (keeps-connections-p (exchange-engine exchange))))))

(defvar *exchange* nil
  "The exchange that the current thread serves, or NIL.  It is a special variable because generic
functions of Hunchentoot, and methods of programs, stand between our functions.")

(declaim (inline exchange-http))
(defun exchange-http (exchange)
  "The HTTP connection over which the request of EXCHANGE came."
  (connection-data (exchange-connection exchange)))

(defun exchange-words (exchange)
  "The REQUEST-WORDS of the request of EXCHANGE, which has its head."
  (let ((head (exchange-head exchange)))
    (request-words (head-method head) (head-uri head) (head-protocol head))))

(defun current-head ()
  "The head of the current request; NIL where the server has not read it."
  (and *exchange* (exchange-head *exchange*)))

;;; The memory that a request needs

(defun request-memory (head)
  "About how many octets of memory a request with HEAD keeps: its strings, and those that
applications make of its target and its cookies, whose parts take some 160 octets each.  0 where
that is little, as mostly."
  (flet ((size (string)
           (declare (type string string))
           (+ 64 (* 4 (length string)) (* 160 (+ (count #\& string) (count #\; string))))))
    (let ((size (+ (* 2 (size (head-uri head)))
                   (loop for (nil . value) in (head-headers head) sum (size value)))))
      (if (> size (* 6 1024)) size 0))))
