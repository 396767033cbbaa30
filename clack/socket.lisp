(in-package #:clack.handler.recycling)

;;;; Connections that an application takes over, most often for WebSockets: :CLACK.IO, with the
;;;; protocol of the package CLACK.SOCKET, asynchronous as with Woo.  :CLACK.IO is the request's
;;;; EXCHANGE, so that other applications pay nothing for it.  A connection that was taken over goes
;;;; on as a PROGRAM-SOCKET, the exchange's upgrade.
;;;;
;;;;   until its function has returned,         then
;;;;   the application
;;;;   has written to :CLACK.IO                 the connection is the application's.  A response
;;;;                                           that it returns, or gives to a responder, is not sent
;;;;   has set a callback, and returned a       likewise
;;;;   function
;;;;   has set a callback, and returned a list  the response is sent, and the callback forgotten
;;;;   or failed
;;;;   has done neither                         it cannot take the connection over any more
;;;;
;;;; Only the thread that calls the application can take the connection over.  After that, any
;;;; thread may write.

(defun websocket-request-p (head)
  "True when HEAD asks for a WebSocket."
  (let ((upgrade (head-header head :upgrade)))
    (and upgrade (string-equal "websocket" upgrade))))

(defun make-socket-for (exchange)
  "A PROGRAM-SOCKET for the connection of EXCHANGE."
  (if (websocket-request-p (exchange-head exchange))
      (apply #'make-program-socket exchange t
             (server-websocket-limits (exchange-application exchange)))
      (make-program-socket exchange nil
                           :idle-seconds (seconds-for (exchange-application exchange) :idle))))

(defun untouched-p (exchange)
  "True when the current thread may take the connection of EXCHANGE over: the response has not
begun, and the whole request has come."
  (let ((protocol (exchange-protocol exchange)))
    (and (eq exchange *answered*)
         (eq :idle (our-side protocol))
         (eq :done (client-side protocol)))))

(defun check-handshake (exchange)
  "Refuses the request of EXCHANGE if it asks for a WebSocket and has content, since content could
be taken for frames."
  (let ((head (exchange-head exchange)))
    (when (and (eq exchange *answered*)
               (websocket-request-p head)
               (not (eq :none (head-framing head))))
      (error (make-refusal :content-of-handshake)))))

(defun socket-of (exchange)
  "The PROGRAM-SOCKET for the connection of EXCHANGE, made by the first call.  Signals CANNOT-DEFER
where the connection cannot be taken over any more, and a PROTOCOL-ERROR where the request is an
opening handshake with content."
  (or (exchange-upgrade exchange)
      (progn (check-handshake exchange)
             (if (untouched-p exchange)
                 (setf (exchange-upgrade exchange) (make-socket-for exchange))
                 (error 'cannot-defer
                        :reason (format nil "only the thread that calls the application can take ~
                                             its connection over, before the response begins, and ~
                                             when all content has come"))))))

(defun taken-over-p (exchange)
  "True when the application has taken the connection of EXCHANGE over."
  (let ((socket (exchange-upgrade exchange)))
    (and socket
         (eq socket (http-suspended-exchange (exchange-http exchange))))))

(defun take-over (exchange)
  "Makes the connection of EXCHANGE the application's."
  (begin-limited-reply exchange)
  (lift-handler-limit exchange)
  (note-event exchange :switch)
  (begin-to-speak (exchange-upgrade exchange) (exchange-http exchange)))

(defun open-socket-of (exchange)
  "Makes the connection of EXCHANGE the application's, and returns its PROGRAM-SOCKET; see
SOCKET-OF."
  (let ((socket (socket-of exchange)))
    (when (untouched-p exchange)
      (take-over exchange))
    socket))

(defun take-over-if-listened-to (exchange)
  "Makes the connection of EXCHANGE the application's if that has set a callback."
  (let ((socket (exchange-upgrade exchange)))
    (when (and socket (websocket-on-message socket) (untouched-p exchange))
      (take-over exchange))))

(defun settle-takeover (exchange)
  "Called when the application's function was left.  If the application has taken the connection of
EXCHANGE over, lets it go on without the worker, and returns true."
  (let ((socket (exchange-upgrade exchange)))
    (cond ((null socket) nil)
          ((taken-over-p exchange)
           t)
          (t
           (end-websocket socket)
           nil))))

;;; The protocol of CLACK.SOCKET

(defun fresh-octets (octets)
  "A copy of OCTETS, a vector that the application may change later.  Signals an error where an
element is not an octet."
  (unless (or (typep octets '(vector octet))
              ;; Not every Lisp checks the elements when it copies them.
              (every (lambda (element) (typep element 'octet)) octets))
    (error "Only octets can be written to a connection."))
  (replace (make-octets (length octets)) octets))

(defun clack-socket-callback (exchange)
  (let ((socket (exchange-upgrade exchange)))
    (and socket (websocket-on-message socket))))

(defun set-clack-socket-callback (callback exchange)
  (listen-to-program-socket (socket-of exchange) callback)
  callback)

;;; Arguments are checked before the connection is taken over.

(defun write-to-clack-socket (exchange octets callback)
  (let ((octets (fresh-octets octets)))
    (write-to-program-socket (open-socket-of exchange) octets callback)))

(defun buffer-for-clack-socket (exchange octets)
  (let ((octets (fresh-octets octets)))
    (buffer-for-program-socket (open-socket-of exchange) octets)))

(defun flush-clack-socket (exchange callback)
  (flush-program-socket (open-socket-of exchange) callback))

(defun close-clack-socket (exchange)
  (finish-program-socket (open-socket-of exchange)))

(defparameter *socket-methods*
  '(("READ-CALLBACK" (socket) (clack-socket-callback socket))
    (("READ-CALLBACK") (callback socket) (set-clack-socket-callback callback socket))
    ("WRITE-SEQUENCE-TO-SOCKET" (socket octets &key callback)
     (write-to-clack-socket socket octets callback))
    ("WRITE-BYTE-TO-SOCKET" (socket octet &key callback)
     (write-to-clack-socket socket (vector octet) callback))
    ("WRITE-SEQUENCE-TO-SOCKET-BUFFER" (socket octets) (buffer-for-clack-socket socket octets))
    ("WRITE-BYTE-TO-SOCKET-BUFFER" (socket octet) (buffer-for-clack-socket socket (vector octet)))
    ("FLUSH-SOCKET-BUFFER" (socket &key callback) (flush-clack-socket socket callback))
    ("CLOSE-SOCKET" (socket) (close-clack-socket socket))
    ("SOCKET-ASYNC-P" (socket) t))
  "The methods of :CLACK.IO: lists of a name in CLACK.SOCKET, a lambda list and a form.  A name in a
list stands for a SETF function.")

(defun method-definition (package name lambda-list form)
  "The DEFMETHOD form of an entry of *SOCKET-METHODS*, with NAME in PACKAGE; NIL where PACKAGE has
no symbol with that name."
  (let* ((symbol (find-symbol (if (consp name) (first name) name) package))
         (specialized (substitute '(socket exchange) 'socket lambda-list)))
    (and symbol
         `(defmethod ,(if (consp name) (list 'setf symbol) symbol) ,specialized
            (declare (ignorable socket))
            ,form))))

(defvar *socket-package* nil
  "The package CLACK.SOCKET to whose functions our methods were added, or NIL.")

(defun join-clack-socket ()
  "Adds our methods to the functions of the package CLACK.SOCKET, if that is loaded and has not got
them.  Clack's system with this package may be loaded after ours was compiled, or not at all."
  (let ((package (find-package '#:clack.socket)))
    (unless (or (null package) (eq package *socket-package*))
      (loop for entry in *socket-methods*
            for definition = (apply #'method-definition package entry)
            when definition
              do (eval definition))
      (setf *socket-package* package))))

(join-clack-socket)
