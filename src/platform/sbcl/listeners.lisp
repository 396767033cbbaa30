(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Listeners that usocket cannot make, for SBCL on Linux: on a path, inherited, or on a port
;;;; that several processes share.

(defun special-listeners-supported-p ()
  "True where this platform has listeners on paths, inherited ones, and shared ports."
  t)

(defclass descriptor-listener (usocket:stream-server-usocket)
  ()
  (:documentation "A listener that was made of a descriptor."))

(defmethod local-name ((socket usocket:usocket))
  (descriptor-local-name (listener-descriptor socket)))

(defmethod peer-name ((socket usocket:stream-usocket))
  (descriptor-peer-name (listener-descriptor socket)))

(defmethod usocket:get-local-port ((usocket descriptor-listener))
  (nth-value 1 (local-name usocket)))

(defun make-listener (class descriptor &rest initargs)
  "A listener of CLASS, made of INITARGS, that owns DESCRIPTOR, which listens."
  (apply #'make-instance class :socket (lisp-socket descriptor) :element-type 'octet initargs))

(defun fail-to-listen (place result)
  "Signals that nobody can listen on PLACE, a string, because of RESULT: a sentence without its
full stop, or minus an error number."
  (error 'listen-failed :place place
                        :reason (if (stringp result) result (sb-int:strerror (- result)))))

(defmacro closing-unless-complete ((descriptor) &body body)
  "Returns what BODY does; when that is left otherwise, closes DESCRIPTOR."
  (let ((complete (gensym "COMPLETE")))
    `(let ((,complete nil))
       (unwind-protect (multiple-value-prog1 (progn ,@body)
                         (setf ,complete t))
         (unless ,complete
           (close-descriptor ,descriptor))))))

;;; On a path
;;;
;;; The file of a socket outlives its server.  One on which nobody answers is replaced; to look
;;; and to replace are two steps, so of two servers that come to the same file in the same
;;; instant one may lose it.

(defclass path-listener (descriptor-listener)
  ((path :initarg :path :reader listener-path)
   (file :initarg :file :reader listener-file
         :documentation "What FILE-IDENTITY said of PATH when it was ours for certain."))
  (:documentation "A listener on a Unix-domain socket."))

(defconstant +path-size+ 108 "Octets for a path, with its final zero; see unix(7).")

(defconstant +eaddrinuse+ 98)
(defconstant +econnrefused+ 111)

(sb-alien:define-alien-type utf-8-path (sb-alien:c-string :external-format :utf-8))

(defun path-address (path)
  "The struct sockaddr_un of PATH, octets."
  (let ((octets (sb-ext:string-to-octets path :external-format :utf-8 :null-terminate t)))
    ;; The system would make up a name, or end this one there.
    (when (or (string= "" path) (find (code-char 0) path))
      (fail-to-listen path "the path is empty, or has a NUL"))
    (when (> (length octets) +path-size+)
      (fail-to-listen path (format nil "the path is longer than ~D octets" (1- +path-size+))))
    (concatenate 'octets (vector +af-unix+ 0) octets)))

(defmacro call-with-path (name descriptor path)
  "Calls the C function NAME, bind or connect, for DESCRIPTOR and PATH.  Returns 0 or minus an
error number."
  `(let ((address (path-address ,path)))
     (sb-sys:with-pinned-objects (address)
       (system-call ,name sb-alien:int (sb-alien:int ,descriptor)
                    (sb-sys:system-area-pointer (sb-sys:vector-sap address))
                    (sb-alien:unsigned-int (length address))))))

(defun path-socket (&optional (flags 0))
  "The descriptor of a new Unix-domain socket with FLAGS."
  (check-call (system-call "socket" sb-alien:int (sb-alien:int +af-unix+)
                           (sb-alien:int (logior 1 +sock-cloexec+ flags)) (sb-alien:int 0))
              "socket"))

(defun file-identity (path)
  "A list that tells the file PATH from all others that exist now, and its mode; NIL when there
is none."
  (multiple-value-bind (found device inode mode) (sb-unix:unix-lstat path)
    (when found
      (values (list device inode) mode))))

(defun abandoned-p (path)
  "True when PATH is a socket on which nobody answers."
  (let ((mode (nth-value 1 (file-identity path))))
    (when (and mode (= (logand mode #o170000) #o140000)) ; S_IFMT, S_IFSOCK
      (let ((descriptor (path-socket +sock-nonblock+)))
        (unwind-protect (= (- +econnrefused+) (call-with-path "connect" descriptor path))
          (close-descriptor descriptor))))))

(defun unlink (path)
  (system-call "unlink" sb-alien:int (utf-8-path path)))

(defun bind-path (descriptor path)
  "Gives DESCRIPTOR the name PATH, in the place of a socket on which nobody answers."
  (flet ((bind ()
           (call-with-path "bind" descriptor path)))
    (let ((result (bind)))
      (when (and (= result (- +eaddrinuse+)) (abandoned-p path))
        (unlink path)
        (setf result (bind)))
      (unless (zerop result)
        (fail-to-listen path (if (= result (- +eaddrinuse+))
                                 "another server answers there, or the file is no socket"
                                 result))))))

(defun listen-with-mode (descriptor path mode backlog)
  ;; In this order nobody can connect before MODE allows it.
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
  "A listener on a Unix-domain socket with the file PATH, a string or a pathname, of MODE, an
integer, or as the process's umask has it when NIL.  BACKLOG connections may wait.  A socket on
which nobody answers is replaced.  Signals LISTEN-FAILED."
  (let ((path (if (pathnamep path) (sb-ext:native-namestring path) path))
        (descriptor (path-socket)))
    (closing-unless-complete (descriptor)
      (bind-path descriptor path)
      (listen-with-mode descriptor path mode backlog)
      (make-listener 'path-listener descriptor :path path :file (file-identity path)))))

(defun remove-path (listener)
  "Removes the file of LISTENER, unless it is another's by now."
  ;; While the socket is open nobody else's file can have its identity.
  (let ((path (listener-path listener)))
    (when (equal (listener-file listener) (file-identity path))
      (unlink path))))

(defmethod close-listener ((listener path-listener))
  (remove-path listener)
  (call-next-method))

;;; Inherited
;;;
;;; The socket is not ours alone: other processes may accept on it too, and it is to outlive us.
;;; So it is never shut down, and we work on a duplicate of the descriptor, which is closed in
;;; its place.  Who waits in our ACCEPT-CONNECTION waits on a poller, from which it can be woken.

(defclass inherited-listener (descriptor-listener)
  ((poller :initarg :poller :reader listener-poller))
  (:documentation "A listener that somebody else opened."))

(defconstant +f-dupfd-cloexec+ 1030)
(defconstant +so-type+ 3)
(defconstant +so-acceptconn+ 30)

(defun check-listening (descriptor)
  (unless (and (eql 1 (socket-option descriptor +so-acceptconn+))
               (eql 1 (socket-option descriptor +so-type+))) ; SOCK_STREAM
    (fail-to-listen (format nil "descriptor ~D" descriptor)
                    "it is no stream socket that listens")))

(defun open-inherited-listener (descriptor)
  "A listener on a duplicate of DESCRIPTOR, a socket that listens already, which becomes
non-blocking.  Closing the listener leaves DESCRIPTOR as it is, and waking it does not shut the
socket down.  Signals LISTEN-FAILED when DESCRIPTOR does not listen."
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
  nil)                                  ; its waits are the poller's

(defmethod accept-connection ((listener inherited-listener))
  (let ((poller (listener-poller listener))
        (descriptor (listener-descriptor listener)))
    (unwind-protect
         (case (interruptibly (await-ready poller -1))
           (:broadcast (error 'listener-closed :cause "it was woken"))
           ((nil) nil)
           (t (call-next-method)))
      ;; One was woken for all that wait; another may have the next connection.
      (rearm poller descriptor descriptor))))

(defmethod wake-listener ((listener inherited-listener) waiting-count)
  (declare (ignore waiting-count))
  (wake-all (listener-poller listener)))

(defmethod close-listener :before ((listener inherited-listener))
  (close-poller (listener-poller listener)))

(defvar *handed-over* nil
  "A list of the number of the process to which a service manager handed descriptors over, once it
has taken them, and of their count.")

(defun environment-integer (name)
  "The integer that the environment variable NAME is; NIL when it is none."
  (let ((value (sb-ext:posix-getenv name)))
    (and value (parse-integer value :junk-allowed t))))

(defun close-on-exec (descriptor)
  "Lets DESCRIPTOR be closed in programs that this process turns into or starts."
  (check-call (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                           (sb-alien:int 2) (sb-alien:int 1)) ; F_SETFD, FD_CLOEXEC
              "fcntl"))

(defun take-handed-over (process count)
  "Makes COUNT descriptors this PROCESS's alone, as sd_listen_fds(3) does: what it starts inherits
neither them nor the variables that tell of them."
  (loop for descriptor from *first-inherited-descriptor*
        repeat count do (close-on-exec descriptor))
  (dolist (name '("LISTEN_PID" "LISTEN_FDS" "LISTEN_FDNAMES"))
    (system-call "unsetenv" sb-alien:int (sb-alien:c-string name)))
  (setf *handed-over* (list process count)))

(defun systemd-descriptor ()
  "The first descriptor that a service manager handed over to this process, by the protocol of
sd_listen_fds(3).  Signals LISTEN-FAILED when there is none."
  (let ((self (sb-unix:unix-getpid))
        (process (environment-integer "LISTEN_PID"))
        (count (environment-integer "LISTEN_FDS")))
    (flet ((refuse (control value)
             (fail-to-listen "a socket of systemd" (format nil control value self))))
      (cond ((and (null process) (eql self (first *handed-over*)))) ; at an earlier start
            ((not (eql process self))
             (refuse "LISTEN_PID is ~:[not set~;~:*~D~], and this is process ~D" process))
            ((not (and count (plusp count)))
             (refuse "LISTEN_FDS, the number of sockets, is ~:[not set~;~:*~D~]" count))
            (t (take-handed-over self count))))
    *first-inherited-descriptor*))

;;; On a port that several share

(defconstant +so-reuseport+ 15)

(defun allow-sharing (descriptor)
  (sb-alien:with-alien ((on sb-alien:int 1))
    (check-call (system-call "setsockopt" sb-alien:int (sb-alien:int descriptor)
                             (sb-alien:int +sol-socket+) (sb-alien:int +so-reuseport+)
                             ((* sb-alien:int) (sb-alien:addr on)) (sb-alien:int 4))
                "setsockopt")))

(defun open-shared-port-listener (address port backlog)
  "A listener on ADDRESS, a string or NIL for all of IPv4, and PORT, which others that were
opened so, of the same user, may have too: the system spreads the connections over them.  BACKLOG
connections may wait.  Signals usocket's conditions."
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
        (allow-sharing descriptor)
        (sb-bsd-sockets:socket-bind socket octets port)
        (sb-bsd-sockets:socket-listen socket backlog))
      (make-instance 'usocket:stream-server-usocket :socket socket :element-type 'octet))))
