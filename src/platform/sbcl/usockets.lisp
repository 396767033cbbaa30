(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Usockets for descriptors, for programs that ask for one, for SBCL on Linux.

(defclass descriptor-usocket (watched-usocket)
  ((descriptor :initarg :descriptor :reader usocket-descriptor)
   (octet-stream :initarg :octet-stream :reader socket-octet-stream)
   (peer :initarg :peer :reader usocket-peer))
  (:documentation "The socket of a connection for programs.  Programs and libraries expect a socket
and a stream of the Lisp in it; these are made when a program asks for them, which is rare."))

(defun descriptor-socket (descriptor stream &optional peer)
  "A usocket for the open DESCRIPTOR, with STREAM, which reads and writes its octets, and PEER, the
known address of its peer."
  (make-instance 'descriptor-usocket :descriptor descriptor :octet-stream stream :peer peer))

(defun socket-option (descriptor option &optional (level +sol-socket+))
  "The value, an integer, of the OPTION of the socket DESCRIPTOR at LEVEL; or minus an error
number."
  (sb-alien:with-alien ((value sb-alien:int 0) (size sb-alien:int 4))
    (let ((result (system-call "getsockopt" sb-alien:int (sb-alien:int descriptor)
                               (sb-alien:int level) (sb-alien:int option)
                               ((* sb-alien:int) (sb-alien:addr value))
                               ((* sb-alien:int) (sb-alien:addr size)))))
      (if (minusp result) result value))))

(defun lisp-socket (descriptor)
  "A socket of the Lisp for DESCRIPTOR.  The owner of DESCRIPTOR still has to close it."
  (let ((socket (make-instance (case (socket-option descriptor +so-domain+)
                                 (#.+af-unix+ 'sb-bsd-sockets:local-socket)
                                 (#.+af-inet6+ 'sb-bsd-sockets:inet6-socket)
                                 (t 'sb-bsd-sockets:inet-socket))
                               :type :stream :descriptor descriptor)))
    ;; Otherwise the garbage collector would close the descriptor later, even if another connection
    ;; had that number by then.
    (sb-ext:cancel-finalization socket)
    socket))

(defun accepted-socket (socket)
  "The value of ACCEPT-CONNECTION for SOCKET, a socket of the Lisp: its non-blocking descriptor,
which the caller has to close."
  (let ((descriptor (sb-bsd-sockets:socket-file-descriptor socket)))
    (sb-ext:cancel-finalization socket)
    (set-non-blocking descriptor)
    descriptor))

;;; A descriptor can be used as a socket for these operations.

(defmethod await-input ((descriptor integer) &key until)
  (await-descriptor descriptor :input :until until))

(defmethod shut-down ((descriptor integer) direction)
  (zerop (shut-descriptor descriptor direction)))

(defmethod socket-open-p ((descriptor integer))
  t)

(defmethod close-socket ((descriptor integer))
  (zerop (close-descriptor descriptor)))

(defmethod send-without-delay ((descriptor integer))
  (zerop (set-no-delay descriptor)))

(defmethod peer-name ((descriptor integer))
  (descriptor-peer-name descriptor))

(defmethod discard-available-input ((descriptor integer) most end)
  (let ((count (drop-octets descriptor (min most +most-dropped+))))
    (cond ((plusp count) count)
          ((would-block-p count) 0)
          (t nil))))

(defmethod slot-unbound (class (instance descriptor-usocket) (slot (eql 'usocket::socket)))
  (declare (ignore class))
  (let* ((octet-stream (socket-octet-stream instance))
         (descriptor (octet-stream-descriptor octet-stream)))
    ;; A closed descriptor's number may belong to another connection by now.
    (unless descriptor
      (error 'usocket:bad-file-descriptor-error :socket instance))
    (multiple-value-bind (socket stream) (open-lisp-stream descriptor)
      (accompany octet-stream stream)
      (setf (slot-value instance 'usocket::stream) stream
            (slot-value instance slot) socket))))

(defmethod usocket:socket-stream ((socket descriptor-usocket))
  (usocket:socket socket)               ; makes the stream if necessary
  (hand-octets-over (socket-octet-stream socket))
  (slot-value socket 'usocket::stream))

(defmethod await-input ((socket descriptor-usocket) &key until)
  (let ((descriptor (octet-stream-descriptor (socket-octet-stream socket))))
    (or (null descriptor)
        (await-descriptor descriptor :input :until until))))

(defmethod peer-name ((socket descriptor-usocket))
  (descriptor-peer-name (usocket-descriptor socket) (usocket-peer socket)))

(defmethod local-name ((socket descriptor-usocket))
  (descriptor-local-name (usocket-descriptor socket)))

(defmethod limit-waits ((socket descriptor-usocket) seconds)
  (limit-waits (socket-octet-stream socket) seconds))

(defmethod usocket:socket-close ((socket descriptor-usocket))
  (close (socket-octet-stream socket)))
