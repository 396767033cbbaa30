(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; hot: non-blocking descriptors, for SBCL on Linux.
;;;;
;;;; The C calls that the ready engine makes for each request.  The callers have checked types and
;;;; bounds: descriptors are open, and ranges lie within their octets.

(deftype descriptor ()
  "An open file descriptor."
  '(unsigned-byte 31))

(defconstant +eagain+ 11)

(defconstant +would-block+ (- +eagain+)
  "The value, an integer, of RECEIVE-OCTETS and SEND-OCTETS if no octet can be read or written
now.")

(declaim (inline would-block-p))
(defun would-block-p (result)
  "True if RESULT, an integer that a function of this layer returned, means that no octet can be
read or written now."
  (= result (- +eagain+)))

(defun error-text (number)
  "A text, a string, for the error NUMBER of a system call, an integer."
  (format nil "~A (error number ~D)" (sb-int:strerror number) number))

;;; Octets

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defmacro transfer-octets (name flags)
    "Calls the C function NAME, recv or send, with FLAGS, for the variables DESCRIPTOR, OCTETS,
START and END in scope.  Repeats the call if a signal has interrupted it."
    `(sb-sys:with-pinned-objects (octets)
       (loop
         (let ((result (system-call ,name sb-alien:long
                                    (sb-alien:int descriptor)
                                    (sb-sys:system-area-pointer
                                     (sb-sys:sap+ (sb-sys:vector-sap octets) start))
                                    (sb-alien:unsigned-long (- end start))
                                    (sb-alien:int ,flags))))
           (unless (= result (- +eintr+))
             (return result)))))))

;; The engine's descriptors are non-blocking, but a program may have changed one that it was given.
(defconstant +msg-dontwait+ #x40)

(declaim (ftype (function (descriptor octets index index) fixnum)
                receive-octets send-octets send-octets-before-more)
         (ftype (function (descriptor index) fixnum) drop-octets))

(defun receive-octets (descriptor octets start end)
  "Reads the octets that DESCRIPTOR has, at most END - START, into OCTETS from START.  Returns their
number, 0 at the end of input, or minus an error number; see WOULD-BLOCK-P."
  (declare (type descriptor descriptor) (type octets octets) (type index start end)
           #.*hot-policy*)
  (transfer-octets "recv" +msg-dontwait+))

(defconstant +msg-peek+ 2)

(defun first-octet (descriptor)
  "The next octet of DESCRIPTOR, which is not consumed; NIL if there is none."
  (let ((octets (make-octets 1)) (start 0) (end 1))
    (declare (dynamic-extent octets))
    (and (= 1 (transfer-octets "recv" (logior +msg-dontwait+ +msg-peek+)))
         (aref octets 0))))

(defconstant +most-dropped+ (* 64 1024)
  "The maximum number of octets that DROP-OCTETS drops at once, an integer.")

(defconstant +msg-trunc+ #x20)

(declaim (type octets *dregs*))
(sb-ext:defglobal *dregs* (make-octets +most-dropped+)
  "The buffer for octets that are dropped.")

(defun drop-octets (descriptor count)
  "Drops the octets that DESCRIPTOR has, at most COUNT, an integer up to +MOST-DROPPED+.  Returns
the value of RECEIVE-OCTETS."
  (declare (type descriptor descriptor) (type index count) #.*hot-policy*)
  ;; With MSG_TRUNC, TCP does not even copy them; see tcp(7).
  (let ((octets *dregs*) (start 0) (end count))
    (transfer-octets "recv" (logior +msg-dontwait+ +msg-trunc+))))

(defconstant +msg-nosignal+ #x4000)
(defconstant +msg-at-once+ (logior +msg-nosignal+ +msg-dontwait+))

(defun send-octets (descriptor octets start end)
  "Writes OCTETS from START to END to DESCRIPTOR, as many as it accepts now.  Returns their number,
or minus an error number; see WOULD-BLOCK-P."
  (declare (type descriptor descriptor) (type octets octets) (type index start end)
           #.*hot-policy*)
  (transfer-octets "send" +msg-at-once+))

(defconstant +msg-more+ #x8000)

(defun send-octets-before-more (descriptor octets start end)
  "Like SEND-OCTETS, for OCTETS from START to END that further octets will follow at once.  The
system holds back a segment to DESCRIPTOR that is not full yet."
  (declare (type descriptor descriptor) (type octets octets) (type index start end)
           #.*hot-policy*)
  (transfer-octets "send" (logior +msg-at-once+ +msg-more+)))

;;; Connections

(defconstant +sock-nonblock+ #o4000)
(defconstant +sock-cloexec+ #o2000000)

(defun close-descriptor (descriptor)
  "Closes DESCRIPTOR.  Returns 0 or minus an error number."
  (declare (type descriptor descriptor))
  (system-call "close" sb-alien:int (sb-alien:int descriptor)))

(defun shut-descriptor (descriptor direction)
  "Shuts DESCRIPTOR down in DIRECTION, :INPUT, :OUTPUT or :IO.  Returns 0 or minus an error number."
  (declare (type descriptor descriptor))
  (system-call "shutdown" sb-alien:int (sb-alien:int descriptor)
               (sb-alien:int (ecase direction (:input 0) (:output 1) (:io 2)))))

(defconstant +sol-socket+ 1)
(defconstant +so-domain+ 39)
(defconstant +ipproto-tcp+ 6)
(defconstant +tcp-nodelay+ 1)
(defconstant +tcp-defer-accept+ 9)

(defun set-socket-option (descriptor option value &optional (level +sol-socket+))
  "Sets OPTION of DESCRIPTOR at LEVEL, see socket(7) and tcp(7), to VALUE, an integer.  Returns 0 or
minus an error number."
  (declare (type descriptor descriptor))
  (sb-alien:with-alien ((given sb-alien:int value))
    (system-call "setsockopt" sb-alien:int (sb-alien:int descriptor)
                 (sb-alien:int level) (sb-alien:int option)
                 ((* sb-alien:int) (sb-alien:addr given)) (sb-alien:int 4))))

(defun set-no-delay (descriptor)
  "Makes the system send small packets of DESCRIPTOR at once.  Returns 0 or minus an error number."
  (set-socket-option descriptor +tcp-nodelay+ 1 +ipproto-tcp+))

(defun defer-accepts (listener seconds)
  "Makes the system hold each new connection of LISTENER, a usocket, until its first octets arrive,
or for about SECONDS, an integer; 0 for not at all.  Returns 0 or minus an error number; on a
Unix-domain socket it fails."
  (set-socket-option (listener-descriptor listener) +tcp-defer-accept+ seconds +ipproto-tcp+))

(defconstant +siocoutq+ #x5411)

(defun unsent-octets (descriptor)
  "The number of octets written to the socket DESCRIPTOR that its peer has not acknowledged; or
minus an error number."
  (declare (type descriptor descriptor))
  (sb-alien:with-alien ((count sb-alien:int 0))
    (let ((result (system-call "ioctl" sb-alien:int (sb-alien:int descriptor)
                               (sb-alien:unsigned-long +siocoutq+)
                               ((* sb-alien:int) (sb-alien:addr count)))))
      (if (minusp result) result count))))

(defconstant +tcp-info+ 11)

(defun quiet-milliseconds (descriptor)
  "For how many milliseconds no octets have come to DESCRIPTOR, as the system knows; NIL where it
does not know that, as for a Unix-domain socket."
  (declare (type descriptor descriptor))
  ;; Of struct tcp_info, in linux/tcp.h: tcpi_last_data_recv is at octet 52.
  (sb-alien:with-alien ((info (array (sb-alien:unsigned 32) 14))
                        (size (sb-alien:unsigned 32) 56))
    (and (zerop (system-call "getsockopt" sb-alien:int (sb-alien:int descriptor)
                             (sb-alien:int +ipproto-tcp+) (sb-alien:int +tcp-info+)
                             ((* t) (sb-alien:addr info))
                             ((* (sb-alien:unsigned 32)) (sb-alien:addr size))))
         (= 56 size)
         (sb-alien:deref info 13))))

(defun change-flags (descriptor function)
  "Sets the flags of DESCRIPTOR, see fcntl(2), to the value of FUNCTION for its current flags.
Returns 0 or minus an error number."
  (let ((flags (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                            (sb-alien:int 3) (sb-alien:int 0))))
    (if (minusp flags)
        flags
        (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                     (sb-alien:int 4) (sb-alien:int (funcall function flags))))))

(defun set-non-blocking (descriptor)
  "Makes DESCRIPTOR non-blocking.  Returns 0 or minus an error number."
  (change-flags descriptor (lambda (flags) (logior flags +sock-nonblock+))))

(defun set-blocking (descriptor)
  "Makes DESCRIPTOR blocking, except for RECEIVE-OCTETS, SEND-OCTETS and their relatives.  Returns 0
or minus an error number."
  (change-flags descriptor (lambda (flags) (logandc2 flags +sock-nonblock+))))

(defun listener-descriptor (listener)
  "The descriptor, an integer, of LISTENER, a usocket."
  (sb-bsd-sockets:socket-file-descriptor (usocket:socket listener)))

;;; Names

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +af-unix+ 1)
  (defconstant +af-inet+ 2)
  (defconstant +af-inet6+ 10))

(defun dotted-text (octets start)
  "The IPv4 address in OCTETS from START, as text."
  (declare (type octets octets) (type index start))
  (let ((text (make-string 15)) (end 0))
    (declare (type (mod 16) end))
    (flet ((put (code)
             (setf (schar text end) (code-char code))
             (incf end)))
      (dotimes (index 4)
        (unless (zerop index) (put 46))
        (multiple-value-bind (hundreds rest) (floor (aref octets (+ start index)) 100)
          (multiple-value-bind (tens ones) (floor rest 10)
            (unless (zerop hundreds) (put (+ 48 hundreds)))
            (unless (= 0 hundreds tens) (put (+ 48 tens)))
            (put (+ 48 ones))))))
    (subseq text 0 end)))

(defun path-name (octets)
  "The name of the Unix-domain socket with the path OCTETS, which follow the family, in the format
of nginx, ss and others."
  (let ((path (subseq octets 0 (position 0 octets :start (min 1 (length octets))))))
    (format nil "unix:~A" (substitute #\@ (code-char 0) ; for abstract names; see unix(7)
                                      (sb-ext:octets-to-string
                                       path :external-format '(:utf-8 :replacement #\?))))))

(defun octets-integer (octets start count)
  "The integer in COUNT of OCTETS from START, the highest first."
  (declare (type octets octets) (type index start) (type (mod 6) count))
  (loop with integer of-type (unsigned-byte 48) = 0
        for position of-type index from start below (+ start count)
        do (setf integer (logior (ash (ldb (byte 40 0) integer) 8) (aref octets position)))
        finally (return integer)))

(defun address-family (octets)
  "The family of the socket address in OCTETS; its octets are in the order of the machine."
  (declare (type octets octets))
  (+ (aref octets 0) (ash (aref octets 1) 8)))

(defun name-of (octets size)
  "The address, a string, and the port of the socket address in the first SIZE of OCTETS; see
<sys/socket.h>."
  (declare (type octets octets) (type (mod 129) size))
  (let ((port (octets-integer octets 2 2)))
    (case (address-family octets)
      (#.+af-inet+ (values (dotted-text octets 4) port))
      (#.+af-inet6+ (values (address-string (subseq octets 8 24)) port))
      (t (values (path-name (subseq octets 2 (max 2 size))) 0)))))

(deftype peer ()
  "The known address of a peer: NIL for none, or an integer with the port in the lower 16 bits and
the IPv4 address above them."
  '(or null (unsigned-byte 48)))

(defun accept-descriptor (listener)
  "The descriptor, non-blocking and closed on exec, of the next connection on LISTENER, a
descriptor, and its PEER; or minus an error number."
  (declare (type descriptor listener))
  (let ((octets (make-octets 16)))      ; the system truncates longer names
    (declare (dynamic-extent octets))
    (sb-alien:with-alien ((size sb-alien:int 16))
      (let ((descriptor (sb-sys:with-pinned-objects (octets)
                          (system-call "accept4" sb-alien:int
                                       (sb-alien:int listener)
                                       (sb-sys:system-area-pointer (sb-sys:vector-sap octets))
                                       ((* sb-alien:int) (sb-alien:addr size))
                                       (sb-alien:int (logior +sock-nonblock+ +sock-cloexec+))))))
        (values descriptor
                (and (>= descriptor 0)
                     (= +af-inet+ (address-family octets))
                     (logior (ash (octets-integer octets 4 4) 16)
                             (octets-integer octets 2 2))))))))

(defun integer-octets (integer count)
  "INTEGER as COUNT octets, the highest first."
  (let ((octets (make-octets count)))
    (dotimes (position count octets)
      (setf (aref octets position) (ldb (byte 8 (* 8 (- count position 1))) integer)))))

(defconstant +enotconn+ 107)

(defun check-name-call (result name)
  "Like CHECK-CALL, for a call that asks for the name of a socket.  Signals PEER-GONE if the socket
is not connected."
  (if (= result (- +enotconn+))
      (error 'peer-gone)
      (check-call result name)))

(defmacro socket-name (function descriptor)
  "The address and the port that the C function FUNCTION returns for DESCRIPTOR.  Signals an error
if the call fails."
  `(let ((octets (make-octets 128)))
     (declare (dynamic-extent octets))
     (sb-alien:with-alien ((size sb-alien:int 128))
       (sb-sys:with-pinned-objects (octets)
         (check-name-call (system-call ,function sb-alien:int
                                       (sb-alien:int ,descriptor)
                                       (sb-sys:system-area-pointer (sb-sys:vector-sap octets))
                                       ((* sb-alien:int) (sb-alien:addr size)))
                          ,function))
       (name-of octets size))))

(defun descriptor-peer-name (descriptor &optional peer)
  "The address, a string, and the port, an integer, of the peer of DESCRIPTOR; see PEER-NAME.  PEER
is its known address, or NIL.  Signals PEER-GONE if the peer has left."
  (declare (type descriptor descriptor) (type peer peer))
  (if peer
      (values (dotted-text (integer-octets (ash peer -16) 4) 0) (ldb (byte 16 0) peer))
      (socket-name "getpeername" descriptor)))

(defun descriptor-local-name (descriptor)
  "The address, a string, and the port, an integer, of our own end of DESCRIPTOR; see LOCAL-NAME.
Signals an error if DESCRIPTOR is not a socket."
  (declare (type descriptor descriptor))
  (socket-name "getsockname" descriptor))
