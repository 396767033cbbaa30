(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A client's end of a connection, over usocket, in octets.  Reading never blocks
;;; longer than *PATIENCE*.

(defstruct (connection (:constructor %make-connection (socket)))
  "A connection of the test client to a server."
  socket)

(defvar *server* nil
  "The acceptor, or the server of another kind, that clients connect to unless told another port.")

(defvar *make-connection* '%make-connection
  "The function that makes a connection of a connected usocket.")

(pushnew '*server* *inherited-variables*)
(pushnew '*make-connection* *inherited-variables*)

(defgeneric port-of (server)
  (:documentation "The port on which SERVER, which is started, listens.")
  (:method ((server hunchentoot:acceptor))
    (hunchentoot:acceptor-port server)))

(defun connect (&optional (port (port-of *server*)) (host "127.0.0.1"))
  "Opens a connection to PORT of HOST, which is this machine."
  (funcall *make-connection*
           (usocket:socket-connect host port :element-type '(unsigned-byte 8))))

(defun connect-to-path (path)
  "Opens a connection to the Unix-domain socket PATH, a pathname."
  (%make-connection (path-socket path)))

(defun connection-stream (connection)
  "The stream of octets of CONNECTION."
  (usocket:socket-stream (connection-socket connection)))

(defgeneric disconnect (connection)
  (:documentation "Closes CONNECTION; harmless when it is closed or broken already."))

(defmethod disconnect ((connection connection))
  (ignore-errors (close (connection-stream connection) :abort t))
  (ignore-errors (usocket:socket-close (connection-socket connection))))

(defun reset (connection)
  "Closes CONNECTION with RST, so that the server sees an error instead of an end.
Returns NIL when this platform can only close it."
  (prog1 (reset-when-closed (connection-socket connection))
    (disconnect connection)))

(defmacro with-connection ((connection &optional (port nil port-p)) &body body)
  "Evaluates BODY with CONNECTION bound to a new connection to PORT, by default
that of *SERVER*, and closes it afterwards."
  `(with-open-connection (,connection (connect ,@(and port-p (list port)))) ,@body))

(defmacro with-open-connection ((connection form) &body body)
  "Evaluates BODY with CONNECTION bound to the value of FORM, a new connection, and closes it
afterwards."
  `(let ((,connection ,form))
     (unwind-protect (progn ,@body)
       (disconnect ,connection))))

(defmacro with-connections ((connections count &optional (port nil port-p)) &body body)
  "Evaluates BODY with CONNECTIONS bound to a list of COUNT new connections to PORT, by default
that of *SERVER*, and closes them afterwards."
  `(let ((,connections (loop repeat ,count collect (connect ,@(and port-p (list port))))))
     (unwind-protect (progn ,@body)
       (mapc #'disconnect ,connections))))

(defun client-port (connection)
  "The port number of the client's end of CONNECTION."
  (usocket:get-local-port (connection-socket connection)))

;;; Sending

(defgeneric transmit (connection octets)
  (:documentation "Sends OCTETS to CONNECTION at once.  Fails when the server has closed it."))

(defmethod transmit ((connection connection) octets)
  (let ((stream (connection-stream connection)))
    (write-sequence octets stream)
    (finish-output stream)))

(defun send (connection &rest parts)
  "Sends the octets of PARTS (see OCTETS) to CONNECTION at once."
  (transmit connection (octets parts)))

(defun send-in-pieces (connection size &rest parts)
  "Sends the octets of PARTS, flushed after every SIZE octets."
  (loop with octets = (octets parts)
        for start from 0 below (length octets) by size
        do (send connection (subseq octets start (min (+ start size) (length octets))))))

(defgeneric end-sending (connection)
  (:documentation "Closes the sending half of CONNECTION; its answer can still be read."))

(defmethod end-sending ((connection connection))
  (usocket:socket-shutdown (connection-socket connection) :output))

(defun try-to-send (connection &rest parts)
  "Sends the octets of PARTS to CONNECTION unless the server has closed it."
  (handler-case (send connection parts)
    (error () nil)))

;;; Receiving

(defgeneric readable-p (connection &optional seconds)
  (:documentation "Whether within SECONDS there is something to read from CONNECTION, its end
included, which a reset is too."))

(defmethod readable-p ((connection connection) &optional (seconds 0))
  (handler-case
      (or (listen (connection-stream connection))
          ;; A signal may cut the wait short, hence the loop.
          (loop with deadline = (deadline-after seconds)
                thereis (await-octets (connection-socket connection) (seconds-until deadline))
                until (zerop (seconds-until deadline))))
    (error () t)))                      ; both ways of waiting signal a reset

(defgeneric next-octet (connection)
  (:documentation "The next octet from CONNECTION; NIL at its end, which a reset is too.  Signals
PATIENCE-LOST when nothing comes."))

(defmethod next-octet ((connection connection))
  (unless (readable-p connection *patience*)
    (lose-patience "the server to send or to hang up"))
  (handler-case (read-byte (connection-stream connection) nil nil)
    (error () nil)))

(defun closed-by-server-p (connection)
  "Waits until the server hangs up, and returns true; NIL when it sends something."
  (null (next-octet connection)))

(defgeneric receive-many (connection count)
  (:documentation "The next COUNT octets from CONNECTION, read in large pieces; fewer at its end."))

(defmethod receive-many ((connection connection) count)
  (let* ((octets (make-array count :element-type '(unsigned-byte 8)))
         ;; A read of many has no limit of time; who waits for its end has one.
         (position (task-result (in-background ("receiving")
                                  (handler-case
                                      (read-sequence octets (connection-stream connection))
                                    (error () 0)))
                                (* 3 *patience*))))
    (if (= position count) octets (subseq octets 0 position))))

(defun receive-rest (connection)
  "All octets from CONNECTION until its end."
  (as-octets (loop for octet = (next-octet connection)
                   while octet collect octet)))

;;; Connections that the platform accepts

(defmacro with-listener ((listener) &body body)
  `(let ((,listener (usocket:socket-listen "127.0.0.1" 0 :reuse-address t :backlog 16
                                                         :element-type '(unsigned-byte 8))))
     (unwind-protect (progn ,@body)
       (platform:close-listener ,listener))))
