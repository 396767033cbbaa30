(in-package #:clack.handler.recycling)

;;;; Connections that an application takes over for WebSockets: :CLACK.IO, with the protocol of the
;;;; package CLACK.SOCKET, asynchronous as with Woo.  :CLACK.IO is the request's EXCHANGE, so that
;;;; other applications pay nothing for it.  A connection that was taken over goes on as a
;;;; PROGRAM-SOCKET, the exchange's upgrade.
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

(defun untouched-p (exchange)
  "True when the current thread may take the connection of EXCHANGE over: the response has not
begun."
  (and (eq exchange *exchange*)
       (null (exchange-output exchange))))

(defun socket-of (exchange)
  "The PROGRAM-SOCKET for the connection of EXCHANGE, made by the first call.  Signals
CANNOT-DEFER where the connection cannot be taken over, or not any more."
  (cond ((exchange-upgrade exchange))
        ((and (equalp "websocket" (head-header (exchange-head exchange) :upgrade))
              (untouched-p exchange))
         (setf (exchange-upgrade exchange)
               (destructuring-bind (&key (websocket-message-octets (* 1024 1024))
                                      (websocket-ping-seconds 30) (websocket-idle-seconds 75)
                                    &allow-other-keys)
                   (server-arguments (exchange-application exchange))
                 (make-websocket exchange nil nil
                                 :message-octets websocket-message-octets
                                 :ping-seconds websocket-ping-seconds
                                 :idle-seconds websocket-idle-seconds
                                 :constructor #'make-program-socket))))
        (t
         (error 'cannot-defer
                :reason (format nil "only the thread that calls the application for a WebSocket ~
                                     can take its connection over, before the response begins")))))

(defun taken-over-p (exchange)
  "True when the application has taken the connection of EXCHANGE over."
  (let ((socket (exchange-upgrade exchange)))
    (and socket
         (eq socket (http-suspended-exchange (exchange-http exchange))))))

(defun take-over (exchange)
  "Makes the connection of EXCHANGE the application's, while that is possible.  Returns its
PROGRAM-SOCKET."
  (let ((socket (socket-of exchange)))
    (when (untouched-p exchange)
      (begin-limited-reply exchange)
      (lift-handler-limit exchange)
      (note-event exchange :switch)
      (let ((http (exchange-http exchange)))
        (setf (http-suspended-exchange http) socket)
        (begin-shared-queue (websocket-shared-queue socket) (http-io http))))
    socket))

;;; The protocol of CLACK.SOCKET

(defun set-clack-socket-callback (callback exchange)
  (listen-to-program-socket (socket-of exchange) callback)
  callback)

(defun write-to-clack-socket (exchange octets callback)
  "Writes a copy of OCTETS, a vector that the application may change later.  Signals an error where
an element is not an octet, before the connection is taken over."
  (unless (or (typep octets '(vector octet))
              ;; Not every Lisp checks the elements when it copies them.
              (every (lambda (element) (typep element 'octet)) octets))
    (error "Only octets can be written to a connection."))
  (let ((octets (replace (make-octets (length octets)) octets)))
    (write-to-program-socket (take-over exchange) octets callback)))

(defun close-clack-socket (exchange)
  (finish-program-socket (take-over exchange)))

(defparameter *socket-methods*
  '(("READ-CALLBACK" (socket)
     (and (exchange-upgrade socket) (websocket-on-message (exchange-upgrade socket))))
    (("READ-CALLBACK") (callback socket) (set-clack-socket-callback callback socket))
    ("WRITE-SEQUENCE-TO-SOCKET" (socket octets &key callback)
     (write-to-clack-socket socket octets callback))
    ("WRITE-BYTE-TO-SOCKET" (socket octet &key callback)
     (write-to-clack-socket socket (vector octet) callback))
    ;; What is written leaves at once, so nothing waits for a flush.
    ("WRITE-SEQUENCE-TO-SOCKET-BUFFER" (socket octets) (write-to-clack-socket socket octets nil))
    ("WRITE-BYTE-TO-SOCKET-BUFFER" (socket octet) (write-to-clack-socket socket (vector octet) nil))
    ("FLUSH-SOCKET-BUFFER" (socket &key callback) (write-to-clack-socket socket #() callback))
    ("CLOSE-SOCKET" (socket) (close-clack-socket socket))
    ("SOCKET-ASYNC-P" (socket) t))
  "The methods of :CLACK.IO: lists of a name in CLACK.SOCKET, a lambda list and a form.  A name in a
list stands for a SETF function.")

(defvar *socket-package* nil
  "The package CLACK.SOCKET to whose functions our methods were added, or NIL.")

(defun join-clack-socket ()
  "Adds our methods to the functions of the package CLACK.SOCKET, if that is loaded and has not got
them.  Clack's system with this package may be loaded after ours was compiled, or not at all."
  (let ((package (find-package '#:clack.socket)))
    (unless (or (null package) (eq package *socket-package*))
      (loop for (name lambda-list form) in *socket-methods*
            for symbol = (find-symbol (if (consp name) (first name) name) package)
            when symbol
              do (eval `(defmethod ,(if (consp name) `(setf ,symbol) symbol)
                            ,(substitute '(socket exchange) 'socket lambda-list)
                          (declare (ignorable socket))
                          ,form)))
      (setf *socket-package* package))))

(join-clack-socket)
