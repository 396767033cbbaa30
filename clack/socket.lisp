(in-package #:clack.handler.recycling)

;;;; A connection that an application takes over, for WebSockets above all: :CLACK.IO, by the
;;;; protocol of the package CLACK.SOCKET, asynchronous as with Woo.  It is the request's EXCHANGE,
;;;; so that it costs nothing to who does not want it; the connection goes on as a PROGRAM-SOCKET,
;;;; the exchange's successor.
;;;;
;;;;   when the application's function has returned, it had     then
;;;;   written                                                  the connection is its own; what it returns, or gives to a
;;;;                                                            responder, is not sent
;;;;   set a callback, and returned a function                  likewise
;;;;   set a callback, and returned a list, or failed           the response is sent, and the callback forgotten
;;;;   done neither                                             it cannot any more
;;;;
;;;; Only the thread in which the application is called can begin; then any may write.

(defvar *answered* nil
  "The exchange of the request that an application is called with in the current thread, or NIL.")

(defparameter *websocket-octets* (* 1024 1024)
  "How many octets a message of a WebSocket may have that an application reads by :CLACK.IO, an
integer.  A client that sends more is told 1009, and its connection is closed.")

(defparameter *websocket-ping-seconds* 30
  "After how many seconds, a real, without anything from the client of a WebSocket it is sent a
ping; NIL for never.")

(defparameter *websocket-idle-seconds* 75
  "After how many seconds, a real, without anything from the client of a WebSocket it counts as
gone; NIL for never.")

(defun websocket-request-p (head)
  "True when HEAD asks for a WebSocket."
  (let ((upgrade (head-header head :upgrade)))
    (and upgrade (string-equal "websocket" upgrade))))

(defun make-socket-for (exchange)
  "A PROGRAM-SOCKET for the connection of EXCHANGE."
  (if (websocket-request-p (exchange-head exchange))
      (make-program-socket exchange t :most-octets *websocket-octets*
                                      :ping-seconds *websocket-ping-seconds*
                                      :idle-seconds *websocket-idle-seconds*)
      (make-program-socket exchange nil :idle-seconds (idle-seconds (exchange-application exchange)))))

(defun untouched-p (exchange)
  "True when the current thread may take the connection of EXCHANGE over: its response has not
begun, and nothing of its content may follow."
  (let ((protocol (exchange-protocol exchange)))
    (and (eq exchange *answered*)
         (eq :idle (our-side protocol))
         (eq :done (client-side protocol)))))

(defun check-handshake (exchange)
  "Refuses the request of EXCHANGE where it asks for a WebSocket and has content, which could be
taken for frames."
  (let ((head (exchange-head exchange)))
    (when (and (eq exchange *answered*)
               (websocket-request-p head)
               (not (eq :none (head-framing head))))
      (error (make-refusal :content-of-handshake)))))

(defun socket-of (exchange)
  "The PROGRAM-SOCKET for the connection of EXCHANGE, made when that is wanted first.  Signals
PROGRAM-SOCKET-OVER, and a PROTOCOL-ERROR where the request is an opening handshake with content."
  (or (exchange-upgrade exchange)
      (progn (check-handshake exchange)
             (if (untouched-p exchange)
                 (setf (exchange-upgrade exchange) (make-socket-for exchange))
                 (error 'program-socket-over)))))

(defun taken-over-p (exchange)
  "True when an application has taken the connection of EXCHANGE over."
  (let ((socket (exchange-upgrade exchange)))
    (and socket
         (eq socket (http-suspended-exchange (exchange-http exchange))))))

(defun take-over (exchange)
  "Makes the connection of EXCHANGE the application's."
  (note-event exchange :switch)
  (begin-to-speak (exchange-upgrade exchange) (exchange-http exchange)))

(defun open-socket-of (exchange)
  "Like SOCKET-OF; the connection is the application's then."
  (let ((socket (socket-of exchange)))
    (when (untouched-p exchange)
      (take-over exchange))
    socket))

(defun take-over-if-listened-to (exchange)
  "Makes the connection of EXCHANGE the application's if that listens to it."
  (let ((socket (exchange-upgrade exchange)))
    (when (and socket (program-socket-reader socket) (untouched-p exchange))
      (take-over exchange))))

(defun settle-takeover (exchange)
  "Lets the connection of EXCHANGE go on without the worker, if the application has taken it over,
whose function was left.  True when it has."
  (let ((socket (exchange-upgrade exchange)))
    (cond ((null socket) nil)
          ((taken-over-p exchange)
           (take-sending-back socket)
           t)
          (t
           (end-websocket socket)
           nil))))

;;; The protocol of CLACK.SOCKET

(defun fresh-octets (octets)
  "A copy of OCTETS, a vector, which the application may change.  Signals an error where something
in it is no octet."
  (unless (or (typep octets '(vector octet))
              ;; Not all Lisps look when they are copied.
              (every (lambda (element) (typep element 'octet)) octets))
    (error "What is written to a connection has to be octets."))
  (replace (make-octets (length octets)) octets))

(defun clack-socket-callback (exchange)
  (let ((socket (exchange-upgrade exchange)))
    (and socket (program-socket-reader socket))))

(defun set-clack-socket-callback (callback exchange)
  (listen-to-program-socket (socket-of exchange) callback)
  callback)

;;; What is no octets is told before the connection is taken over.

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
    ("WRITE-SEQUENCE-TO-SOCKET" (socket octets &key callback) (write-to-clack-socket socket octets callback))
    ("WRITE-BYTE-TO-SOCKET" (socket octet &key callback) (write-to-clack-socket socket (vector octet) callback))
    ("WRITE-SEQUENCE-TO-SOCKET-BUFFER" (socket octets) (buffer-for-clack-socket socket octets))
    ("WRITE-BYTE-TO-SOCKET-BUFFER" (socket octet) (buffer-for-clack-socket socket (vector octet)))
    ("FLUSH-SOCKET-BUFFER" (socket &key callback) (flush-clack-socket socket callback))
    ("CLOSE-SOCKET" (socket) (close-clack-socket socket))
    ("SOCKET-ASYNC-P" (socket) t))
  "The methods that :CLACK.IO has: lists of a name in CLACK.SOCKET, or, in a list, of what SETF
changes, a lambda list and a form.")

(defun method-definition (package name lambda-list form)
  "The DEFMETHOD of NAME, of *SOCKET-METHODS*, in PACKAGE."
  (let* ((symbol (find-symbol (if (consp name) (first name) name) package))
         (specialized (substitute '(socket exchange) 'socket lambda-list)))
    (and symbol
         `(defmethod ,(if (consp name) (list 'setf symbol) symbol) ,specialized
            (declare (ignorable socket))
            ,form))))

(defvar *socket-package* nil
  "The package CLACK.SOCKET whose functions have methods for :CLACK.IO, or NIL.")

(defun join-clack-socket ()
  "Gives :CLACK.IO the methods of CLACK.SOCKET, if that is loaded, and it does not have them.  That
system is Clack's: it may be there or not when this is compiled, and come later."
  (let ((package (find-package '#:clack.socket)))
    (unless (or (null package) (eq package *socket-package*))
      (loop for entry in *socket-methods*
            for definition = (apply #'method-definition package entry)
            when definition
              do (eval definition))
      (setf *socket-package* package))))

(join-clack-socket)
