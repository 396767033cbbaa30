(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Listeners that usocket cannot make, for SBCL on Linux: on a path, inherited from another
;;;; process, or on a port that several processes share.

(defun special-listeners-supported-p ()
  "True if this platform has listeners on paths, inherited listeners, and shared ports."
  t)

(defclass descriptor-listener (usocket:stream-server-usocket)
  ()
  (:documentation "A listener for a descriptor."))

(defmethod local-name ((socket usocket:usocket))
  (descriptor-local-name (listener-descriptor socket)))

(defmethod peer-name ((socket usocket:stream-usocket))
  (descriptor-peer-name (listener-descriptor socket)))

(defmethod usocket:get-local-port ((usocket descriptor-listener))
  (nth-value 1 (local-name usocket)))

(defun make-listener (class descriptor &rest initargs)
  "A listener of CLASS, with INITARGS, that owns DESCRIPTOR, which already listens."
  (apply #'make-instance class :socket (lisp-socket descriptor) :element-type 'octet initargs))

(defun fail-to-listen (place result)
  "Signals LISTEN-FAILED for PLACE, a string, because of RESULT: a sentence without its full stop,
or minus an error number."
  (error 'listen-failed :place place
                        :reason (if (stringp result) result (sb-int:strerror (- result)))))

(defmacro closing-unless-complete ((descriptor) &body body)
  "Evaluates BODY and returns its values.  Closes DESCRIPTOR after a non-local exit from BODY."
  (let ((complete (gensym "COMPLETE")))
    `(let ((,complete nil))
       (unwind-protect (multiple-value-prog1 (progn ,@body)
                         (setf ,complete t))
         (unless ,complete
           (close-descriptor ,descriptor))))))

;;; On a path
;;;
;;; The file of a socket outlives its server.  A new server replaces the file if no server answers
;;; on it.  The check and the replacement are two steps, so if two servers start on the same file at
;;; the same time, one of them may lose it.

(defclass path-listener (descriptor-listener)
  ((path :initarg :path :reader listener-path)
   (file :initarg :file :reader listener-file
         :documentation "The FILE-IDENTITY of PATH right after this listener made it."))
  (:documentation "A listener on a Unix-domain socket."))

(defconstant +path-size+ 108
  "The maximum number of octets of a path, with its final zero; see unix(7).")

(defconstant +eaddrinuse+ 98)
(defconstant +econnrefused+ 111)

(sb-alien:define-alien-type utf-8-path (sb-alien:c-string :external-format :utf-8))

(defun path-address (path)
  "The struct sockaddr_un of PATH, octets."
  (let ((octets (sb-ext:string-to-octets path :external-format :utf-8 :null-terminate t)))
    ;; The system would invent a name for an empty path, and end any other path at its first NUL.
    (when (or (string= "" path) (find (code-char 0) path))
      (fail-to-listen path "the path is empty, or has a NUL"))
    (when (> (length octets) +path-size+)
      (fail-to-listen path (format nil "the path is longer than ~D octets" (1- +path-size+))))
    (concatenate 'octets (vector +af-unix+ 0) octets)))

(defmacro call-with-address (name descriptor address)
  "Calls the C function NAME, bind or connect, for DESCRIPTOR and ADDRESS, a struct sockaddr_un.
Returns 0 or minus an error number."
  `(let ((address ,address))
     (sb-sys:with-pinned-objects (address)
       (system-call ,name sb-alien:int (sb-alien:int ,descriptor)
                    (sb-sys:system-area-pointer (sb-sys:vector-sap address))
                    (sb-alien:unsigned-int (length address))))))

(defconstant +sock-stream+ 1)
(defconstant +sock-dgram+ 2)

(defun try-path-socket (type)
  "The descriptor of a new Unix-domain socket of TYPE, which may have flags; or minus an error
number."
  (system-call "socket" sb-alien:int (sb-alien:int +af-unix+)
               (sb-alien:int (logior type +sock-cloexec+)) (sb-alien:int 0)))

(defun path-socket (&optional (type +sock-stream+))
  "The descriptor of a new Unix-domain socket of TYPE, which may have flags."
  (check-call (try-path-socket type) "socket"))

(defun file-identity (path)
  "A list that identifies the file PATH among all existing files, and its mode; NIL if there is no
such file."
  (multiple-value-bind (found device inode mode) (sb-unix:unix-lstat path)
    (when found
      (values (list device inode) mode))))

(defun abandoned-p (path)
  "True if PATH is a socket on which no server answers."
  (let ((mode (nth-value 1 (file-identity path))))
    (when (and mode (= (logand mode #o170000) #o140000)) ; S_IFMT, S_IFSOCK
      (let ((descriptor (path-socket (logior +sock-stream+ +sock-nonblock+))))
        (unwind-protect (= (- +econnrefused+)
                           (call-with-address "connect" descriptor (path-address path)))
          (close-descriptor descriptor))))))

(defun unlink (path)
  (system-call "unlink" sb-alien:int (utf-8-path path)))

(defun bind-path (descriptor path)
  "Binds DESCRIPTOR to PATH.  Replaces a socket on which no server answers."
  (flet ((bind ()
           (call-with-address "bind" descriptor (path-address path))))
    (let ((result (bind)))
      (when (and (= result (- +eaddrinuse+)) (abandoned-p path))
        (unlink path)
        (setf result (bind)))
      (unless (zerop result)
        (fail-to-listen path (if (= result (- +eaddrinuse+))
                                 "another server answers there, or the file is not a socket"
                                 result))))))

(defun listen-with-mode (descriptor path mode backlog)
  ;; In this order, no client can connect before MODE allows it.
  (let ((result (if mode
                    (system-call "chmod" sb-alien:int (utf-8-path path)
                                 (sb-alien:unsigned-int mode))
                    0)))
    (when (zerop result)
      (setf result (system-call "listen" sb-alien:int (sb-alien:int descriptor)
                                (sb-alien:int backlog))))
    (unless (zerop result)
      (unlink path)
      (fail-to-listen path result))))

(defun open-path-listener (path mode backlog)
  "A listener on a Unix-domain socket with the file PATH, a string or a pathname.  MODE, an integer,
is the mode of the file; NIL is for that of the process's umask.  BACKLOG connections, an integer,
may wait.  Replaces a socket on which no server answers.  Signals LISTEN-FAILED."
  (let ((path (if (pathnamep path) (sb-ext:native-namestring path) path))
        (descriptor (path-socket)))
    (closing-unless-complete (descriptor)
      (bind-path descriptor path)
      (listen-with-mode descriptor path mode backlog)
      (make-listener 'path-listener descriptor :path path :file (file-identity path)))))

(defun remove-path (listener)
  "Removes the file of LISTENER, unless another server has replaced it."
  ;; While the socket is open, no other file can have the same identity.
  (let ((path (listener-path listener)))
    (when (equal (listener-file listener) (file-identity path))
      (unlink path))))

(defmethod close-listener ((listener path-listener))
  (remove-path listener)
  (call-next-method))

;;; Inherited
;;;
;;; Other processes may accept on an inherited socket, too, and it has to outlive this process.  So
;;; this process never shuts the socket down, and uses and closes a duplicate of its descriptor.
;;; ACCEPT-CONNECTION waits on a poller, since WAKE-LISTENER can wake threads there.

(defclass inherited-listener (descriptor-listener)
  ((poller :initarg :poller :reader listener-poller))
  (:documentation "A listener that another process opened."))

(defconstant +f-dupfd-cloexec+ 1030)
(defconstant +so-type+ 3)
(defconstant +so-acceptconn+ 30)

(defun check-listening (descriptor)
  (unless (and (eql 1 (socket-option descriptor +so-acceptconn+))
               (eql 1 (socket-option descriptor +so-type+))) ; SOCK_STREAM
    (fail-to-listen (format nil "descriptor ~D" descriptor)
                    "it is not a stream socket that listens")))

(defun open-inherited-listener (descriptor)
  "A listener on a duplicate of DESCRIPTOR, an integer, a socket that already listens and becomes
non-blocking.  CLOSE-LISTENER leaves DESCRIPTOR open, and WAKE-LISTENER does not shut the socket
down.  Signals LISTEN-FAILED if DESCRIPTOR does not listen."
  (check-listening descriptor)
  (let ((own (check-call (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                                      (sb-alien:int +f-dupfd-cloexec+) (sb-alien:int 0))
                         "fcntl")))
    (closing-unless-complete (own)
      (set-non-blocking own)
      (let ((poller (make-poller)))
        (watch poller own own)
        (make-listener 'inherited-listener own :poller poller)))))

(defmethod prepare-listener ((listener inherited-listener))
  nil)                                  ; the poller has the waits

(defmethod accept-connection ((listener inherited-listener))
  (let ((poller (listener-poller listener))
        (descriptor (listener-descriptor listener)))
    (unwind-protect
         (case (interruptibly (await-ready poller -1))
           (:broadcast (error 'listener-closed :cause "it was woken"))
           ((nil) nil)
           (t (call-next-method)))
      ;; The event woke one thread only.  If more connections wait, this wakes another.
      (rearm poller descriptor descriptor))))

(defmethod wake-listener ((listener inherited-listener) waiting-count)
  (declare (ignore waiting-count))
  (wake-all (listener-poller listener)))

(defmethod close-listener :before ((listener inherited-listener))
  (close-poller (listener-poller listener)))

;;; On a port that several processes share

(defconstant +so-reuseport+ 15)

(defun open-shared-port-listener (address port backlog)
  "A listener on ADDRESS, a string or NIL for all IPv4 addresses, and PORT, an integer.  Other
processes of the same user may open such a listener on the same port, and the system distributes the
connections.  BACKLOG connections, an integer, may wait.  Signals usocket's conditions."
  (let* ((octets (if address
                     (first (usocket:get-hosts-by-name address))
                     (make-octets 4)))
         (socket (make-instance (if (= (length octets) 16)
                                    'sb-bsd-sockets:inet6-socket
                                    'sb-bsd-sockets:inet-socket)
                                :type :stream :protocol :tcp))
         (descriptor (sb-bsd-sockets:socket-file-descriptor socket)))
    (closing-unless-complete (descriptor)
      (sb-ext:cancel-finalization socket)
      (usocket:with-mapped-conditions (nil address)
        (setf (sb-bsd-sockets:sockopt-reuse-address socket) t)
        (check-call (set-socket-option descriptor +so-reuseport+ 1) "setsockopt")
        (sb-bsd-sockets:socket-bind socket octets port)
        (sb-bsd-sockets:socket-listen socket backlog))
      (make-instance 'usocket:stream-server-usocket :socket socket :element-type 'octet))))

;;; Before a listener is closed
;;;
;;; The system then resets its connections that were not accepted yet and those whose handshake is
;;; under way; their clients may have sent requests already.  So no more may begin before that: the
;;; listener listens at a network interface that does not exist.  The system refuses later clients;
;;; where other processes listen on the same port, it drops what it would have given this one, and
;;; the client sends it again after a second.  Connections that have begun are not touched.
;;;
;;; Before that, connections that the system holds until their first octets arrive are to be let
;;; in.  When it holds none any more, it sends its part of the handshake once more, a second after
;;; the first time, and the client's answer ends it.

(defconstant +so-bindtoifindex+ 62)

(defun accepts-deferred-p (listener)
  "True if the system holds new connections of LISTENER until their first octets arrive."
  (plusp (socket-option (listener-descriptor listener) +tcp-defer-accept+ +ipproto-tcp+)))

(defmethod admit-held ((listener usocket:stream-server-usocket))
  (when (accepts-deferred-p listener)
    (defer-accepts listener 0)
    t))

(defmethod admit-held ((listener path-listener))
  nil)

(defmethod admit-held ((listener inherited-listener))
  nil)

(defmethod stop-arrivals ((listener usocket:stream-server-usocket))
  ;; No privilege is needed from Linux 5.7 on.  Before that, the last connections may be reset.
  (set-socket-option (listener-descriptor listener) +so-bindtoifindex+ #x7FFFFFFF)
  t)

(defmethod stop-arrivals ((listener path-listener))
  (remove-path listener)
  t)

(defmethod stop-arrivals ((listener inherited-listener))
  nil)
