(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Listeners, for SBCL on Linux: those of usocket, and those that usocket cannot make: on a path,
;;;; inherited from another process, or on a port that several processes share.

(defclass descriptor-listener (usocket:stream-server-usocket)
  ()
  (:documentation "A listener for a descriptor."))

(defclass path-listener (descriptor-listener)
  ((path :initarg :path :reader listener-path)
   (file :initarg :file :reader listener-file
         :documentation "The FILE-IDENTITY of PATH right after this listener made it."))
  (:documentation "A listener on a Unix-domain socket."))

(defclass inherited-listener (descriptor-listener)
  ()
  (:documentation "A listener that another process opened.  Other processes may accept on it, too,
and it has to outlive this process.  So this process never shuts the socket down, and uses and
closes a duplicate of its descriptor, which is non-blocking."))

(defmethod usocket:get-local-port ((usocket descriptor-listener))
  (nth-value 1 (local-name usocket)))

;;; What a worker that waits in ACCEPT needs

(defun prepare-listener (listener)
  "Limits each wait of ACCEPT-CONNECTION on LISTENER to two seconds.  Without that, an interrupt
just before the wait begins would have no effect until the next connection.  Called once."
  (unless (typep listener 'inherited-listener)
    (sb-alien:with-alien ((limit (array sb-alien:long 2))) ; struct timeval
      (setf (sb-alien:deref limit 0) 2
            (sb-alien:deref limit 1) 0)
      (system-call "setsockopt" sb-alien:int (sb-alien:int (socket-descriptor listener))
                   (sb-alien:int +sol-socket+)
                   (sb-alien:int #+ppc64 18 #-ppc64 20) ; SO_RCVTIMEO
                   ((* (array sb-alien:long 2)) (sb-alien:addr limit))
                   (sb-alien:int 16)))))

(defun accept-connection (listener)
  "Waits for the next connection on LISTENER, and returns its non-blocking descriptor; or NIL if the
client has already left (ECONNABORTED) or the wait was cut short.  The caller uses UNINTERRUPTIBLY,
so that no connection is lost on its way to the caller.  The wait then ends after a few seconds, or
when another thread wants to interrupt or destroy the current one.  Signals ACCEPT-FAILED."
  (let ((descriptor (socket-descriptor listener)))
    (flet ((accept ()
             (let ((result (accept-descriptor descriptor)))
               (cond ((minusp result)
                      (unless (member (accept-error-kind (- result)) '(:none :gone))
                        (error 'accept-failed :cause (error-text (- result)))))
                     (t
                      (set-no-delay result)
                      result)))))
      (if (typep listener 'inherited-listener)
          (and (interruptibly
                 (await-descriptor descriptor :input
                                   ;; No other thread can wake this one.
                                   :until (+ (milliseconds) 250)))
               (accept))
          (accept)))))

(defun pending-connection-p (listener)
  "True if a connection waits on LISTENER to be accepted, or if the platform cannot tell.  Does not
block."
  (await-descriptor (socket-descriptor listener) :input :until (milliseconds)))

(defun wake-listener (listener waiting-count)
  "Ends every ACCEPT-CONNECTION on LISTENER, in WAITING-COUNT threads, with ACCEPT-FAILED or NIL."
  (declare (ignore waiting-count))
  (unless (typep listener 'inherited-listener)
    (shut-descriptor (socket-descriptor listener) :io)))

(defun close-listener (listener)
  "Closes LISTENER, and so frees its port.  No thread may wait on it then."
  (when (typep listener 'path-listener)
    (remove-path listener))
  (usocket:socket-close listener))

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

(defun defer-accepts (listener seconds)
  "Makes the system hold each new connection of LISTENER, a usocket, until its first octets arrive,
or for about SECONDS, an integer; 0 for not at all.  Returns 0 or minus an error number; on a
Unix-domain socket it fails."
  (set-socket-option (socket-descriptor listener) +tcp-defer-accept+ seconds +ipproto-tcp+))

(defun admit-held (listener)
  "Makes the system hold no connection to LISTENER until its first octets arrive.  True if it may
hold some, which then can be accepted about a second later, at the latest."
  (unless (typep listener '(or path-listener inherited-listener))
    (when (plusp (socket-option (socket-descriptor listener) +tcp-defer-accept+ +ipproto-tcp+))
      (defer-accepts listener 0)
      t)))

(defun stop-arrivals (listener)
  "Makes the system begin no further connection to LISTENER, if it can.  Connections that the system
has begun still arrive, and the caller accepts them.  NIL if other processes share LISTENER, so that
connections still begin."
  (typecase listener
    (inherited-listener nil)
    (path-listener
     (remove-path listener)
     t)
    (t
     ;; SO_BINDTOIFINDEX: no privilege is needed from Linux 5.7 on.  Before that, the last
     ;; connections may be reset.
     (set-socket-option (socket-descriptor listener) 62 #x7FFFFFFF)
     t)))

;;; Making them

(defun make-listener (class descriptor &rest initargs)
  "A listener of CLASS, with INITARGS, that owns DESCRIPTOR, which already listens."
  (apply #'make-instance class :socket (lisp-socket descriptor) :element-type 'octet initargs))

(defun fail-to-listen (place result)
  "Signals LISTEN-FAILED for PLACE, a string, because of RESULT: a sentence without its full stop,
or minus an error number."
  (error 'listen-failed :place place
                        :reason (if (stringp result) result (sb-int:strerror (- result)))))

;;; On a path
;;;
;;; The file of a socket outlives its server.  A new server replaces the file if no server answers
;;; on it.  The check and the replacement are two steps, so if two servers start on the same file at
;;; the same time, one of them may lose it.

(defconstant +sock-stream+ 1)
(defconstant +eaddrinuse+ 98)

(sb-alien:define-alien-type utf-8-path (sb-alien:c-string :external-format :utf-8))

(defun path-address (path)
  "The struct sockaddr_un of PATH, a string."
  (let ((octets (sb-ext:string-to-octets path :external-format :utf-8 :null-terminate t)))
    ;; The system would invent a name for an empty path, and end any other path at its first NUL.
    (when (or (string= "" path) (find (code-char 0) path))
      (fail-to-listen path "the path is empty, or has a NUL"))
    (when (> (length octets) 108)       ; with its final zero; see unix(7)
      (fail-to-listen path "the path is longer than 107 octets"))
    (concatenate 'octets (vector +af-unix+ 0) octets)))

(defmacro call-with-address (name descriptor address)
  "Calls the C function NAME, bind or connect, for DESCRIPTOR and ADDRESS, a struct sockaddr_un.
Returns 0 or minus an error number."
  `(let ((address ,address))
     (sb-sys:with-pinned-objects (address)
       (system-call ,name sb-alien:int (sb-alien:int ,descriptor)
                    (sb-sys:system-area-pointer (sb-sys:vector-sap address))
                    (sb-alien:unsigned-int (length address))))))

(defun path-socket (type)
  "The descriptor of a new Unix-domain socket of TYPE, which may have flags; or minus an error
number."
  (system-call "socket" sb-alien:int (sb-alien:int +af-unix+)
               (sb-alien:int (logior type +sock-cloexec+)) (sb-alien:int 0)))

(defun file-identity (path)
  "A list that identifies the file PATH among all existing files, and its mode; NIL if there is no
such file."
  (multiple-value-bind (found device inode mode) (sb-unix:unix-lstat path)
    (when found
      (values (list device inode) mode))))

(defun unlink (path)
  (system-call "unlink" sb-alien:int (utf-8-path path)))

(defun remove-path (listener)
  "Removes the file of LISTENER, unless another server has replaced it."
  ;; While the socket is open, no other file can have the same identity.
  (let ((path (listener-path listener)))
    (when (equal (listener-file listener) (file-identity path))
      (unlink path))))

(defun abandoned-p (path)
  "True if PATH is a socket on which no server answers."
  (let ((mode (nth-value 1 (file-identity path))))
    (when (and mode (= (logand mode #o170000) #o140000)) ; S_IFMT, S_IFSOCK
      (let ((descriptor (check-call (path-socket (logior +sock-stream+ +sock-nonblock+))
                                    "socket")))
        (unwind-protect (= -111            ; ECONNREFUSED
                           (call-with-address "connect" descriptor (path-address path)))
          (close-descriptor descriptor))))))

(defun open-path-listener (path mode backlog)
  "A listener on a Unix-domain socket with the file PATH, a string or a pathname.  MODE, an integer,
is the mode of the file; NIL is for that of the process's umask.  BACKLOG connections, an integer,
may wait.  Replaces a socket on which no server answers.  Signals LISTEN-FAILED."
  (let* ((path (if (pathnamep path) (sb-ext:native-namestring path) path))
         (address (path-address path))
         (descriptor (check-call (path-socket +sock-stream+) "socket")))
    (flet ((bind ()
             (call-with-address "bind" descriptor address)))
      (unless-returned
          (let ((result (bind)))
            (when (and (= result (- +eaddrinuse+)) (abandoned-p path))
              (unlink path)
              (setf result (bind)))
            (unless (zerop result)
              (fail-to-listen path
                              (if (= result (- +eaddrinuse+))
                                  "another server answers there, or the file is not a socket"
                                  result)))
            ;; In this order, no client can connect before MODE allows it.
            (when mode
              (setf result (system-call "chmod" sb-alien:int (utf-8-path path)
                                        (sb-alien:unsigned-int mode))))
            (when (zerop result)
              (setf result (system-call "listen" sb-alien:int (sb-alien:int descriptor)
                                        (sb-alien:int backlog))))
            (unless (zerop result)
              (unlink path)
              (fail-to-listen path result))
            (make-listener 'path-listener descriptor :path path :file (file-identity path)))
        (close-descriptor descriptor)))))

;;; Inherited

(defun open-inherited-listener (descriptor)
  "A listener on a duplicate of DESCRIPTOR, an integer, a socket that already listens and becomes
non-blocking.  CLOSE-LISTENER leaves DESCRIPTOR open, and WAKE-LISTENER does not shut the socket
down.  Signals LISTEN-FAILED if DESCRIPTOR does not listen."
  (unless (and (eql 1 (socket-option descriptor 30)) ; SO_ACCEPTCONN
               (eql +sock-stream+ (socket-option descriptor 3))) ; SO_TYPE
    (fail-to-listen (format nil "descriptor ~D" descriptor)
                    "it is not a stream socket that listens"))
  (let ((own (duplicate-descriptor descriptor)))
    (set-blocking own nil)
    (make-listener 'inherited-listener own)))

;;; On a port that several processes share

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
    (unless-returned
        (usocket:with-mapped-conditions (nil address)
          (setf (sb-bsd-sockets:sockopt-reuse-address socket) t)
          (check-call (set-socket-option descriptor 15 1) "setsockopt") ; SO_REUSEPORT
          (sb-bsd-sockets:socket-bind socket octets port)
          (sb-bsd-sockets:socket-listen socket backlog)
          (sb-ext:cancel-finalization socket)
          (make-instance 'usocket:stream-server-usocket :socket socket :element-type 'octet))
      (sb-bsd-sockets:socket-close socket))))
