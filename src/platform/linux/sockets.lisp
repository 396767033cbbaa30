(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Connections as sockets, for SBCL on Linux.  A socket is a descriptor, or a usocket that was
;;;; made for a program.

(defclass descriptor-usocket (watched-usocket)
  ((descriptor :initarg :descriptor :reader usocket-descriptor)
   (octet-stream :initarg :octet-stream :reader usocket-octet-stream
                 :documentation "The stream that reads and writes its octets.")
   (peer :initarg :peer :reader usocket-peer :documentation "A PEER."))
  (:documentation "The socket of a connection for programs.  Programs and libraries expect a socket
and a stream of the Lisp in it; these are made when a program asks for them, which is rare."))

(defun socket-descriptor (socket)
  "The descriptor of SOCKET: a descriptor, or a usocket."
  (etypecase socket
    (integer socket)
    (descriptor-usocket (usocket-descriptor socket))
    (usocket:usocket (sb-bsd-sockets:socket-file-descriptor (usocket:socket socket)))))

(defun await-input (socket &key until)
  "Waits until SOCKET has octets to read, or its peer has ended it; returns true then.  Returns NIL
after UNTIL, a moment of MILLISECONDS, or NIL for no limit.  If UNTIL has passed, only checks.
Signals do not prolong the wait."
  (or (not (socket-open-p socket))
      (await-descriptor (socket-descriptor socket) :input :until until)))

(defun shut-down (socket direction)
  "Shuts SOCKET, a descriptor, down in DIRECTION, :INPUT, :OUTPUT or :IO, but keeps it open.  A
thread that waits to read from it gets an end of file.  NIL if the peer had already left."
  (zerop (shut-descriptor socket direction)))

(defun socket-octet-stream (socket)
  "The stream that reads and writes the octets of SOCKET, a usocket; it may support no characters."
  (if (typep socket 'descriptor-usocket)
      (usocket-octet-stream socket)
      (usocket:socket-stream socket)))

(defmethod limit-waits ((socket usocket:stream-usocket) seconds)
  (limit-waits (socket-octet-stream socket) seconds))

(defun socket-open-p (socket)
  "True until SOCKET or its stream is closed.  A descriptor is taken for open."
  (or (integerp socket)
      (open-stream-p (socket-octet-stream socket))))

(defun close-socket (socket)
  "Closes SOCKET, a descriptor.  Never signals; NIL if SOCKET was closed already."
  (zerop (close-descriptor socket)))

(defun discard-available-input (descriptor)
  "Drops octets that DESCRIPTOR has ready.  NIL at the end of input."
  (let ((count (drop-octets descriptor +most-dropped+)))
    (or (plusp count) (would-block-p count))))

(define-none receive-before-stream)     ; each connection has a descriptor

(defun peer-name (socket)
  "The address, a string, and the port, an integer, of the peer of SOCKET; for a Unix-domain socket,
\"unix:\" and 0.  Signals PEER-GONE if the peer has left."
  (descriptor-peer-name (socket-descriptor socket)
                        (and (typep socket 'descriptor-usocket) (usocket-peer socket))))

(defun local-name (socket)
  "The address, a string, and the port, an integer, of our own end of SOCKET; for a Unix-domain
socket, \"unix:\" followed by its path, and 0."
  (socket-name "getsockname" (socket-descriptor socket)))

;;; Streams of the Lisp beside ours, for programs and libraries that ask for one.  Such a stream has
;;; a duplicate of the socket's descriptor.  So a program that closes the stream never closes a
;;; descriptor that the engine still uses.

(defun lisp-socket (descriptor)
  "A socket of the Lisp for DESCRIPTOR.  The owner of DESCRIPTOR still has to close it."
  (let ((socket (make-instance (case (socket-option descriptor 39) ; SO_DOMAIN
                                 (1 'sb-bsd-sockets:local-socket)
                                 (10 'sb-bsd-sockets:inet6-socket)
                                 (t 'sb-bsd-sockets:inet-socket))
                               :type :stream :descriptor descriptor)))
    ;; Otherwise the garbage collector would close the descriptor later, even if another connection
    ;; had that number by then.
    (sb-ext:cancel-finalization socket)
    socket))

(defun lend-stream (usocket descriptor)
  "Makes the Lisp's own stream of USOCKET, a DESCRIPTOR-USOCKET, and its socket, with a duplicate of
DESCRIPTOR, an integer; returns the stream."
  ;; The duplicate is closed when the stream is closed or has become garbage.
  (let ((socket (lisp-socket (duplicate-descriptor descriptor))))
    (setf (slot-value usocket 'usocket::socket) socket
          (slot-value usocket 'usocket::stream)
          (sb-bsd-sockets:socket-make-stream socket :input t :output t :element-type :default
                                                    :buffering :full :auto-close t))))

(defmethod usocket:socket-close ((socket descriptor-usocket))
  (close (usocket-octet-stream socket)))

(defun lisp-stream-descriptor (stream)
  "The descriptor, an integer, of STREAM, which must be open."
  (sb-sys:fd-stream-fd stream))

(defun lisp-stream-milliseconds (stream)
  "The time limit of each wait on STREAM, in milliseconds, an integer; -1 for no limit."
  (or (as-milliseconds (sb-impl::fd-stream-timeout stream)) -1))

(defun (setf lisp-stream-milliseconds) (milliseconds stream)
  (setf (sb-impl::fd-stream-timeout stream)
        (and (>= milliseconds 0) (/ milliseconds 1000.0)))
  milliseconds)

(defun put-read-ahead (stream octets start end)
  "Makes STREAM, which was not read yet, return OCTETS from START to END first."
  (let* ((size (- end start))
         (buffer (sb-impl::alloc-buffer
                  (max size (sb-impl::buffer-length (sb-impl::fd-stream-ibuf stream))))))
    (loop for place below size
          do (setf (sb-sys:sap-ref-8 (sb-impl::buffer-sap buffer) place)
                   (aref octets (+ start place))))
    (setf (sb-impl::buffer-head buffer) 0
          (sb-impl::buffer-tail buffer) size)
    (sb-impl::release-buffer (shiftf (sb-impl::fd-stream-ibuf stream) buffer))))
