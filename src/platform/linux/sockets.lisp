(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Connections as sockets, for SBCL on Linux.  A socket is a descriptor, or a usocket that was
;;;; made for a program.

(defclass descriptor-usocket (watched-usocket)
  ((descriptor :initarg :descriptor :reader usocket-descriptor)
   (octet-stream :initarg :octet-stream :reader usocket-octet-stream)
   (peer :initarg :peer :reader usocket-peer))
  (:documentation "The socket of a connection for programs.  Programs and libraries expect a socket
and a stream of the Lisp in it; these are made when a program asks for them, which is rare."))

(defun descriptor-socket (descriptor stream &optional peer)
  "A usocket for the open DESCRIPTOR, with STREAM, which reads and writes its octets, and PEER, the
known address of its peer."
  (make-instance 'descriptor-usocket :descriptor descriptor :octet-stream stream :peer peer))

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
  "Shuts SOCKET down in DIRECTION, :INPUT, :OUTPUT or :IO, but keeps its descriptor open.  A thread
that waits to read from it gets an end of file.  Never signals; NIL if the peer had already left."
  (zerop (shut-descriptor (socket-descriptor socket) direction)))

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

(defun discard-available-input (descriptor most end)
  "Drops octets that DESCRIPTOR has ready, at most MOST.  Returns their number; NIL at the end of
input.  END is ignored, since this takes no time."
  (declare (ignore end))
  (let ((count (drop-octets descriptor (min most +most-dropped+))))
    (cond ((plusp count) count)
          ((would-block-p count) 0))))

(defun receive-before-stream (usocket octets count)
  "Not called, for USOCKET, OCTETS and COUNT: each connection has a descriptor."
  (receive-octets (socket-descriptor usocket) octets 0 count))

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

(defgeneric octet-stream-descriptor (octet-stream)
  (:documentation "The descriptor, an integer, of OCTET-STREAM; NIL if it is closed."))

(defgeneric accompany (octet-stream stream)
  (:documentation "Records that programs have STREAM, a stream of the Lisp, for the socket of
OCTET-STREAM."))

(defgeneric hand-octets-over (octet-stream)
  (:documentation "Moves the unread octets of OCTET-STREAM to the stream of the Lisp beside it,
which then reads them first.  Sends the octets that were written to OCTET-STREAM."))

(defun lisp-socket (descriptor)
  "A socket of the Lisp for DESCRIPTOR.  The owner of DESCRIPTOR still has to close it."
  (let ((socket (make-instance (case (socket-option descriptor 39) ; SO_DOMAIN
                                 (#.+af-unix+ 'sb-bsd-sockets:local-socket)
                                 (#.+af-inet6+ 'sb-bsd-sockets:inet6-socket)
                                 (t 'sb-bsd-sockets:inet-socket))
                               :type :stream :descriptor descriptor)))
    ;; Otherwise the garbage collector would close the descriptor later, even if another connection
    ;; had that number by then.
    (sb-ext:cancel-finalization socket)
    socket))

(defmethod slot-unbound (class (instance descriptor-usocket) (slot (eql 'usocket::socket)))
  (declare (ignore class))
  (let* ((octet-stream (usocket-octet-stream instance))
         (descriptor (octet-stream-descriptor octet-stream)))
    ;; A closed descriptor's number may belong to another connection by now.
    (unless descriptor
      (error 'usocket:bad-file-descriptor-error :socket instance))
    ;; The duplicate is closed when the stream is closed or has become garbage.
    (let* ((socket (lisp-socket (duplicate-descriptor descriptor)))
           (stream (sb-bsd-sockets:socket-make-stream socket :input t :output t
                                                             :element-type :default
                                                             :buffering :full :auto-close t)))
      (accompany octet-stream stream)
      (setf (slot-value instance 'usocket::stream) stream
            (slot-value instance slot) socket))))

(defmethod usocket:socket-stream ((socket descriptor-usocket))
  (usocket:socket socket)               ; makes the stream if necessary
  (hand-octets-over (usocket-octet-stream socket))
  (slot-value socket 'usocket::stream))

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

;;; The octets that a stream has read ahead.  Its buffer is a structure of SBCL with the octets from
;;; HEAD to TAIL in foreign memory.

(defun take-read-ahead (stream)
  "Takes the octets that STREAM has read ahead, and the characters that were unread to it, out of
it; returns them, a vector."
  (let* ((buffer (sb-impl::fd-stream-ibuf stream))
         (unread (sb-impl::fd-stream-instead stream))
         (characters (reverse (coerce unread 'string)))
         (octets (loop for position from (shiftf (sb-impl::buffer-head buffer) 0)
                         below (shiftf (sb-impl::buffer-tail buffer) 0)
                       collect (sb-sys:sap-ref-8 (sb-impl::buffer-sap buffer) position))))
    (setf (fill-pointer unread) 0)
    (concatenate 'octets
                 (sb-ext:string-to-octets characters
                                          :external-format (stream-external-format stream))
                 octets)))

(defun put-read-ahead (stream octets start end)
  "Makes STREAM return OCTETS from START to END next, before the octets that it has read ahead."
  (let* ((all (concatenate 'octets (subseq octets start end) (take-read-ahead stream)))
         (size (length all)))
    (when (> size (sb-impl::buffer-length (sb-impl::fd-stream-ibuf stream)))
      (sb-impl::release-buffer
       (shiftf (sb-impl::fd-stream-ibuf stream) (sb-impl::alloc-buffer size))))
    (let ((buffer (sb-impl::fd-stream-ibuf stream)))
      (dotimes (position size)
        (setf (sb-sys:sap-ref-8 (sb-impl::buffer-sap buffer) position) (aref all position)))
      (setf (sb-impl::buffer-head buffer) 0
            (sb-impl::buffer-tail buffer) size)))
  stream)
