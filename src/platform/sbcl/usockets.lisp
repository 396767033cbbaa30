(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Usockets made of descriptors, for programs that want one, for SBCL on Linux.

(defclass descriptor-usocket (watched-usocket)
  ((descriptor :initarg :descriptor :reader usocket-descriptor)
   (octet-stream :initarg :octet-stream :reader socket-octet-stream)
   (peer :initarg :peer :reader usocket-peer))
  (:documentation "A connection's socket as programs see it.  The socket and the stream of the
Lisp's own, which programs and libraries take it for, are made when they are asked for, which is
seldom."))

(defun descriptor-socket (descriptor stream &optional peer)
  "A usocket for the open DESCRIPTOR, whose octets STREAM carries, and of which PEER is known."
  (make-instance 'descriptor-usocket :descriptor descriptor :octet-stream stream :peer peer))

(defun socket-option (descriptor option)
  "The value, an integer, of the OPTION of the socket DESCRIPTOR; or minus an error number."
  (sb-alien:with-alien ((value sb-alien:int 0) (size sb-alien:int 4))
    (let ((result (system-call "getsockopt" sb-alien:int (sb-alien:int descriptor)
                               (sb-alien:int +sol-socket+) (sb-alien:int option)
                               ((* sb-alien:int) (sb-alien:addr value))
                               ((* sb-alien:int) (sb-alien:addr size)))))
      (if (minusp result) result value))))

(defun lisp-socket (descriptor)
  "A socket of the Lisp's own for DESCRIPTOR, which stays its owner's to close."
  (let ((socket (make-instance (case (socket-option descriptor +so-domain+)
                                 (#.+af-unix+ 'sb-bsd-sockets:local-socket)
                                 (#.+af-inet6+ 'sb-bsd-sockets:inet6-socket)
                                 (t 'sb-bsd-sockets:inet-socket))
                               :type :stream :descriptor descriptor)))
    ;; Or the garbage collector would close the descriptor one day, whosever it is then.
    (sb-ext:cancel-finalization socket)
    socket))

(defun accepted-socket (socket)
  "What ACCEPT-CONNECTION returns for SOCKET, one of the Lisp's own: its descriptor, non-blocking,
which is the caller's to close."
  (let ((descriptor (sb-bsd-sockets:socket-file-descriptor socket)))
    (sb-ext:cancel-finalization socket)
    (set-non-blocking descriptor)
    descriptor))

;;; A descriptor stands for its socket where nobody wants more than these.

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
    ;; The number may be another connection's by now.
    (unless descriptor
      (error 'usocket:bad-file-descriptor-error :socket instance))
    (multiple-value-bind (socket stream) (open-lisp-stream descriptor)
      (accompany octet-stream stream)
      (setf (slot-value instance 'usocket::stream) stream
            (slot-value instance slot) socket))))

(defmethod usocket:socket-stream ((socket descriptor-usocket))
  (usocket:socket socket)               ; makes the stream
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
