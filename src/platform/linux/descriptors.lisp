(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; hot: system calls for non-blocking descriptors, for SBCL on Linux.
;;;;
;;;; The calls that the ready engine makes for each request.  The callers have checked types and
;;;; bounds: descriptors are open, and ranges lie within their octets.

(defmacro system-call (name result &rest arguments)
  "Calls the C function NAME, which returns a RESULT, a type, with ARGUMENTS, lists of type and
value.  Returns its result, or minus the error number if its result is negative."
  `(let ((result (sb-alien:alien-funcall
                  (sb-alien:extern-alien ,name (function ,result ,@(mapcar #'first arguments)))
                  ,@(mapcar #'second arguments))))
     (declare (type fixnum result))
     (if (minusp result) (- (sb-alien:get-errno)) result)))

(deftype descriptor ()
  "An open file descriptor."
  '(unsigned-byte 31))


(defconstant +would-block+ -11          ; EAGAIN
  "The value, an integer, of RECEIVE-OCTETS and SEND-OCTETS if no octet can be read or written
now.")

(declaim (inline would-block-p))
(defun would-block-p (result)
  "True if RESULT, an integer that a function of this layer returned, means that no octet can be
read or written now."
  (= result +would-block+))

(defun error-text (number)
  "A text, a string, for the error NUMBER of a system call, an integer."
  (format nil "~A (error number ~D)" (sb-int:strerror number) number))

(defun check-call (result name)
  "Returns RESULT, of the C function NAME; signals an error if it is minus an error number."
  (if (minusp result)
      (error "~A failed: error number ~D." name (- result))
      result))

;;; Octets in and out

(defmacro transfer-octets (name flags)
  "Calls the C function NAME, recv or send, with FLAGS, for the variables DESCRIPTOR, OCTETS, START
and END in scope.  The flags have it not wait, so no signal interrupts it."
  `(sb-sys:with-pinned-objects (octets)
     (system-call ,name sb-alien:long
                  (sb-alien:int descriptor)
                  (sb-sys:system-area-pointer (sb-sys:sap+ (sb-sys:vector-sap octets) start))
                  (sb-alien:unsigned-long (- end start))
                  (sb-alien:int ,flags))))

;; The engine's descriptors are non-blocking, but a program may have changed one that it was given.
(defconstant +msg-dontwait+ #x40)
(defconstant +msg-at-once+ (logior #x4000 +msg-dontwait+)) ; MSG_NOSIGNAL

(declaim (ftype (function (descriptor octets index index) fixnum)
                receive-octets)
         (ftype (function (descriptor octets index index &optional t) fixnum) send-octets)
         (ftype (function (descriptor index) fixnum) drop-octets))

(defun receive-octets (descriptor octets start end)
  "Reads the octets that DESCRIPTOR has, at most END - START, into OCTETS from START.  Returns their
number, 0 at the end of input, or minus an error number; see WOULD-BLOCK-P."
  (declare (type descriptor descriptor) (type octets octets) (type index start end)
           #.*hot-policy*)
  (transfer-octets "recv" +msg-dontwait+))

(defun first-octet (descriptor)
  "The next octet of DESCRIPTOR, which is not consumed; NIL if there is none."
  (let ((octets (make-octets 1)) (start 0) (end 1))
    (declare (dynamic-extent octets))
    (and (= 1 (transfer-octets "recv" (logior +msg-dontwait+ 2))) ; MSG_PEEK
         (aref octets 0))))

(defconstant +most-dropped+ (* 64 1024)
  "The maximum number of octets that DROP-OCTETS drops at once, an integer.")

(declaim (type octets *dregs*))
(sb-ext:defglobal *dregs* (make-octets +most-dropped+)
  "The buffer for octets that are dropped.")

(defun drop-octets (descriptor count)
  "Drops the octets that DESCRIPTOR has, at most COUNT, an integer up to +MOST-DROPPED+.  Returns
the value of RECEIVE-OCTETS."
  (declare (type descriptor descriptor) (type index count) #.*hot-policy*)
  ;; With MSG_TRUNC, TCP does not even copy them; see tcp(7).
  (let ((octets *dregs*) (start 0) (end count))
    (transfer-octets "recv" (logior +msg-dontwait+ #x20))))

(defun send-octets (descriptor octets start end &optional more-p)
  "Writes OCTETS from START to END to DESCRIPTOR, as many as it accepts now.  Returns their number,
or minus an error number; see WOULD-BLOCK-P.  If MORE-P, further octets will follow at once: the
system holds back a segment that is not full yet."
  (declare (type descriptor descriptor) (type octets octets) (type index start end)
           #.*hot-policy*)
  (transfer-octets "send" (if more-p (logior +msg-at-once+ #x8000) +msg-at-once+))) ; MSG_MORE

;;; Waiting for one descriptor

(defun await-descriptor (descriptor direction &key until)
  "Waits until DESCRIPTOR can be read (DIRECTION is :INPUT) or written (:OUTPUT), or its peer has
ended its output (:END), or it has failed; returns true then.  Returns NIL after UNTIL, a moment of
MILLISECONDS, or NIL for no limit.  If UNTIL has passed, only checks.  Signals do not prolong the
wait."
  ;; A signal ends poll(2), and each garbage collection sends one to every thread.
  (loop for left = (milliseconds-left until)
        for count = (sb-alien:with-alien ((poll (array sb-alien:int 2))) ; struct pollfd
                      (setf (sb-alien:deref poll 0) descriptor
                            (sb-alien:deref poll 1) (ecase direction
                                                      (:input #x1) (:output #x4) (:end #x2000)))
                      (system-call "poll" sb-alien:int
                                   ((* (array sb-alien:int 2)) (sb-alien:addr poll))
                                   (sb-alien:unsigned-long 1)
                                   (sb-alien:int (if left (min left (1- (ash 1 31))) -1))))
        do (cond ((plusp count) (return t))
                 ((eql left 0) (return nil))
                 ((/= count -4) (check-call count "poll"))))) ; EINTR

;;; Changing descriptors

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
(defconstant +ipproto-tcp+ 6)
(defconstant +tcp-defer-accept+ 9)

(defun set-socket-option (descriptor option value &optional (level +sol-socket+))
  "Sets OPTION of DESCRIPTOR at LEVEL, see socket(7) and tcp(7), to VALUE, an integer.  Returns 0 or
minus an error number."
  (declare (type descriptor descriptor))
  (sb-alien:with-alien ((given sb-alien:int value))
    (system-call "setsockopt" sb-alien:int (sb-alien:int descriptor)
                 (sb-alien:int level) (sb-alien:int option)
                 ((* sb-alien:int) (sb-alien:addr given)) (sb-alien:int 4))))

(defun socket-option (descriptor option &optional (level +sol-socket+))
  "The value, an integer, of the OPTION of the socket DESCRIPTOR at LEVEL; or minus an error
number."
  (declare (type descriptor descriptor))
  (sb-alien:with-alien ((value sb-alien:int 0) (size sb-alien:int 4))
    (let ((result (system-call "getsockopt" sb-alien:int (sb-alien:int descriptor)
                               (sb-alien:int level) (sb-alien:int option)
                               ((* sb-alien:int) (sb-alien:addr value))
                               ((* sb-alien:int) (sb-alien:addr size)))))
      (if (minusp result) result value))))

(defun unsent-octets (descriptor)
  "The number of octets written to the socket DESCRIPTOR that its peer has not acknowledged; or
minus an error number."
  (declare (type descriptor descriptor))
  (sb-alien:with-alien ((count sb-alien:int 0))
    (let ((result (system-call "ioctl" sb-alien:int (sb-alien:int descriptor)
                               (sb-alien:unsigned-long #x5411) ; SIOCOUTQ
                               ((* sb-alien:int) (sb-alien:addr count)))))
      (if (minusp result) result count))))

(defun fcntl (descriptor command value)
  (system-call "fcntl" sb-alien:int (sb-alien:int descriptor) (sb-alien:int command)
               (sb-alien:int value)))

(defconstant +sock-nonblock+ #o4000)
(defconstant +sock-cloexec+ #o2000000)

(defun set-blocking (descriptor blocking-p)
  "Makes DESCRIPTOR blocking if BLOCKING-P, except for RECEIVE-OCTETS and SEND-OCTETS; else
non-blocking.  Returns 0 or minus an error number."
  (let ((flags (fcntl descriptor 3 0))) ; F_GETFL
    (if (minusp flags)
        flags
        (fcntl descriptor 4             ; F_SETFL
               (if blocking-p
                   (logandc2 flags +sock-nonblock+)
                   (logior flags +sock-nonblock+))))))

(defun duplicate-descriptor (descriptor)
  "A duplicate of DESCRIPTOR, closed on exec.  Signals an error if no descriptor is left."
  (check-call (fcntl descriptor 1030 0) "fcntl")) ; F_DUPFD_CLOEXEC

;;; Accepting

(deftype peer ()
  "The known address of a peer: NIL for none, or an integer with the port in the lower 16 bits and
the IPv4 address above them."
  '(or null (unsigned-byte 48)))

(defun peer-in (octets)
  "The PEER of the socket address in OCTETS, if it has an IPv4 address; its port is right anyway."
  (declare (type octets octets))
  (loop with peer of-type (unsigned-byte 48) = 0
        for place in '(4 5 6 7 2 3)     ; the highest first
        do (setf peer (logior (ash (ldb (byte 40 0) peer) 8) (aref octets place)))
        finally (return peer)))

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
                     (= 2 (aref octets 0)) ; the family is IPv4
                     (peer-in octets)))))))

;;; Names

(defparameter *octet-texts*
  (coerce (loop for octet below 256 collect (princ-to-string octet)) 'simple-vector)
  "The decimal digits of each octet.")

(defun name-of-peer (peer)
  "The address, a string, and the port of PEER."
  (declare (type (unsigned-byte 48) peer))
  (flet ((octet (place)
           (the simple-string (svref *octet-texts* (ldb (byte 8 place) peer)))))
    (values (concatenate 'text (octet 40) "." (octet 32) "." (octet 24) "." (octet 16))
            (ldb (byte 16 0) peer))))

(defun name-in (octets size)
  "The address, a string, and the port of the socket address in the first SIZE of OCTETS; see
<sys/socket.h>."
  (declare (type octets octets) (type (mod 129) size))
  (case (aref octets 0)                 ; the family
    (2 (name-of-peer (peer-in octets)))
    (10 (values (address-string (subseq octets 8 24)) (ldb (byte 16 0) (peer-in octets))))
    (t                                  ; a path, in the format of nginx, ss and others
     (let ((path (subseq octets 2 (max 2 size))))
       (values (format nil "unix:~A" (sb-ext:octets-to-string
                                      path :end (position 0 path)
                                           :external-format '(:utf-8 :replacement #\?)))
               0)))))

(defmacro socket-name (function descriptor)
  "The address and the port that the C function FUNCTION returns for DESCRIPTOR.  Signals PEER-GONE
if it is not connected, and an error if the call fails otherwise."
  `(let ((octets (make-octets 128)))
     (declare (dynamic-extent octets))
     (sb-alien:with-alien ((size sb-alien:int 128))
       (let ((result (sb-sys:with-pinned-objects (octets)
                       (system-call ,function sb-alien:int
                                    (sb-alien:int ,descriptor)
                                    (sb-sys:system-area-pointer (sb-sys:vector-sap octets))
                                    ((* sb-alien:int) (sb-alien:addr size))))))
         (when (= result -107)          ; ENOTCONN
           (error 'peer-gone))
         (check-call result ,function)
         (name-in octets size)))))

(defun descriptor-peer-name (descriptor &optional peer)
  "The address, a string, and the port, an integer, of the peer of DESCRIPTOR; see PEER-NAME.  PEER
is its known address, or NIL.  Signals PEER-GONE if the peer has left."
  (declare (type descriptor descriptor) (type peer peer))
  (if peer
      (name-of-peer peer)
      (socket-name "getpeername" descriptor)))
