(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Listeners, for SBCL on Linux: those of usocket, and those that usocket cannot make: on a path,
;;;; inherited from another process, or on a port that several processes share.

(defclass path-listener (usocket:stream-server-usocket)
  ((path :initarg :path :reader listener-path)
   (inode :initarg :inode :reader listener-inode
          :documentation "The INODE of PATH right after this listener made it."))
  (:documentation "A listener on a Unix-domain socket."))

(defclass inherited-listener (usocket:stream-server-usocket)
  ()
  (:documentation "A listener that another process opened.  Other processes may accept on it, too,
and it has to outlive this process.  So this process never shuts the socket down, and uses and
closes a duplicate of its descriptor."))

(defmethod usocket:get-local-port ((listener path-listener))
  0)

(defmethod usocket:get-local-port ((listener inherited-listener))
  (nth-value 1 (local-name listener)))

;;; What a worker that waits in ACCEPT needs

(defun prepare-listener (listener)
  "Makes LISTENER non-blocking, and has the system send small packets of its connections at once."
  (let ((descriptor (socket-descriptor listener)))
    (set-socket-option descriptor 1 1 +ipproto-tcp+) ; TCP_NODELAY, which they inherit
    (set-blocking descriptor nil)))

(defun accept-connection (listener)
  "Waits for the next connection on LISTENER, and returns its non-blocking descriptor; or NIL if
another thread got it, if the client has already left (ECONNABORTED), or after a moment: no thread
can wake one that waits on an inherited listener.  The caller uses UNINTERRUPTIBLY, so that no
connection is lost on its way to the caller.  Signals ACCEPT-FAILED."
  (let ((descriptor (socket-descriptor listener)))
    (when (interruptibly
            (await-descriptor descriptor :input :until (+ (milliseconds) 250)))
      (let ((result (accept-descriptor descriptor)))
        (cond ((>= result 0) result)
              ((not (eq :none (accept-error-kind (- result))))
               (error 'accept-failed :cause (error-text (- result)))))))))

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
  (unless (typep listener 'inherited-listener)
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

(defun fail-to-listen (place reason)
  "Signals LISTEN-FAILED for PLACE, a string, because of REASON, a sentence without its full stop."
  (error 'listen-failed :place place :reason reason))

;;; On a path
;;;
;;; The file of a socket outlives its server.  A new server replaces the file if no server answers
;;; on it.  The check and the replacement are two steps, so if two servers start on the same file at
;;; the same time, one of them may lose it.

(defun inode (path)
  "The number of the file PATH in its file system, an integer; NIL if there is no such file."
  (nth-value 2 (sb-unix:unix-lstat path)))

(defun remove-path (listener)
  "Removes the file of LISTENER, unless another server has replaced it."
  ;; While the socket is open, no other file can have the same number.
  (let ((path (listener-path listener)))
    (when (eql (listener-inode listener) (inode path))
      (sb-unix:unix-unlink path))))

(defun abandoned-p (path)
  "True if PATH is a socket on which no server answers."
  (let ((mode (nth-value 3 (sb-unix:unix-lstat path))))
    (when (and mode (= (logand mode #o170000) #o140000)) ; S_IFMT, S_IFSOCK
      (let ((socket (make-instance 'sb-bsd-sockets:local-socket :type :stream)))
        (setf (sb-bsd-sockets:non-blocking-mode socket) t)
        (unwind-protect (handler-case (progn (sb-bsd-sockets:socket-connect socket path) nil)
                          (sb-bsd-sockets:connection-refused-error () t)
                          (sb-bsd-sockets:socket-error () nil))
          (sb-bsd-sockets:socket-close socket))))))

(defun open-path-listener (path mode backlog)
  "A listener on a Unix-domain socket with the file PATH, a string or a pathname.  MODE, an integer,
is the mode of the file; NIL is for that of the process's umask.  BACKLOG connections, an integer,
may wait.  Replaces a socket on which no server answers.  Signals LISTEN-FAILED."
  (let* ((path (if (pathnamep path) (sb-ext:native-namestring path) path))
         (octets (sb-ext:string-to-octets path :external-format :utf-8))
         (socket (make-instance 'sb-bsd-sockets:local-socket :type :stream)))
    (unless-returned
        (handler-case
            (progn
              ;; The Lisp would use the beginning of any other.
              (unless (and (< 0 (length octets) 108) (not (find 0 octets)))
                (fail-to-listen path "a path has 1 to 107 octets, and no NUL"))
              (when (abandoned-p path)
                (sb-unix:unix-unlink path))
              (sb-bsd-sockets:socket-bind socket path)
              ;; In this order, no client can connect before MODE allows it.
              (when mode
                (check-call (system-call "chmod" sb-alien:int (sb-alien:c-string path)
                                         (sb-alien:unsigned-int mode))
                            "chmod"))
              (sb-bsd-sockets:socket-listen socket backlog)
              (make-instance 'path-listener :socket socket :element-type 'octet
                                            :path path :inode (inode path)))
          (sb-bsd-sockets:address-in-use-error ()
            (fail-to-listen path "another server answers there, or the file is not a socket"))
          (sb-bsd-sockets:socket-error (condition)
            (fail-to-listen path (sb-int:strerror (error-number condition)))))
      (sb-bsd-sockets:socket-close socket))))

;;; Inherited

(defun open-inherited-listener (descriptor)
  "A listener on a duplicate of DESCRIPTOR, an integer, a socket that already listens.
CLOSE-LISTENER leaves DESCRIPTOR open, and WAKE-LISTENER does not shut the socket down.  Signals
LISTEN-FAILED if DESCRIPTOR does not listen."
  (unless (eql 1 (socket-option descriptor 30)) ; SO_ACCEPTCONN
    (fail-to-listen (format nil "descriptor ~D" descriptor) "it is not a socket that listens"))
  (make-instance 'inherited-listener :socket (lisp-socket (duplicate-descriptor descriptor))
                                     :element-type 'octet))

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
          (make-instance 'usocket:stream-server-usocket :socket socket :element-type 'octet))
      (sb-bsd-sockets:socket-close socket))))
