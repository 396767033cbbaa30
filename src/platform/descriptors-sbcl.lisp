(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; hot: non-blocking descriptors and epoll(7), for SBCL on Linux.
;;;;
;;;; The C calls that the ready engine makes for each request.  Who calls has checked
;;;; types and bounds: descriptors are open, octets are as long as the given range.

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defmacro system-call (name result &rest arguments)
    "Calls the C function NAME, which returns RESULT, with ARGUMENTS, lists of type and value.
Returns its result, or minus the error number when that is negative."
    `(let ((result (sb-alien:alien-funcall
                    (sb-alien:extern-alien ,name (function ,result ,@(mapcar #'first arguments)))
                    ,@(mapcar #'second arguments))))
       (declare (type fixnum result))
       (if (minusp result) (- (sb-alien:get-errno)) result))))

(deftype descriptor ()
  "An open file descriptor."
  '(unsigned-byte 31))

(defconstant +eintr+ 4)
(defconstant +eagain+ 11)

(declaim (inline would-block-p))
(defun would-block-p (result)
  "True when RESULT, of a call below, says that nothing can be read or written now."
  (= result (- +eagain+)))

;;; Octets

(declaim (ftype (function (descriptor octets index index) fixnum)
                receive-octets send-octets))

(defun receive-octets (descriptor octets start end)
  "Reads what DESCRIPTOR has, at most END - START octets, to OCTETS from START.  Returns their
number, 0 at the end of input, or minus an error number; see WOULD-BLOCK-P."
  (declare (type descriptor descriptor) (type octets octets) (type index start end)
           #.*hot-policy*)
  (sb-sys:with-pinned-objects (octets)
    (loop
      (let ((result (system-call "recv" sb-alien:long
                                 (sb-alien:int descriptor)
                                 (sb-sys:system-area-pointer
                                  (sb-sys:sap+ (sb-sys:vector-sap octets) start))
                                 (sb-alien:unsigned-long (- end start))
                                 (sb-alien:int 0))))
        (unless (= result (- +eintr+))
          (return result))))))

(defconstant +msg-nosignal+ #x4000)

(defun send-octets (descriptor octets start end)
  "Writes OCTETS from START to END to DESCRIPTOR, as many as it takes now.  Returns their
number or minus an error number; see WOULD-BLOCK-P."
  (declare (type descriptor descriptor) (type octets octets) (type index start end)
           #.*hot-policy*)
  (sb-sys:with-pinned-objects (octets)
    (loop
      (let ((result (system-call "send" sb-alien:long
                                 (sb-alien:int descriptor)
                                 (sb-sys:system-area-pointer
                                  (sb-sys:sap+ (sb-sys:vector-sap octets) start))
                                 (sb-alien:unsigned-long (- end start))
                                 (sb-alien:int +msg-nosignal+))))
        (unless (= result (- +eintr+))
          (return result))))))

;;; Connections

(defconstant +sock-nonblock+ #o4000)
(defconstant +sock-cloexec+ #o2000000)

(defun accept-descriptor (listener)
  "The descriptor of the next connection on LISTENER, a descriptor, non-blocking and closed on
exec; or minus an error number."
  (declare (type descriptor listener))
  (system-call "accept4" sb-alien:int
               (sb-alien:int listener)
               (sb-sys:system-area-pointer (sb-sys:int-sap 0))
               (sb-sys:system-area-pointer (sb-sys:int-sap 0))
               (sb-alien:int (logior +sock-nonblock+ +sock-cloexec+))))

(defun close-descriptor (descriptor)
  "Closes DESCRIPTOR.  Returns 0 or minus an error number."
  (declare (type descriptor descriptor))
  (system-call "close" sb-alien:int (sb-alien:int descriptor)))

(defun shut-descriptor (descriptor direction)
  "Ends DESCRIPTOR in DIRECTION, :INPUT, :OUTPUT or :IO.  Returns 0 or minus an error number."
  (declare (type descriptor descriptor))
  (system-call "shutdown" sb-alien:int (sb-alien:int descriptor)
               (sb-alien:int (ecase direction (:input 0) (:output 1) (:io 2)))))

(defconstant +ipproto-tcp+ 6)
(defconstant +tcp-nodelay+ 1)

(defun set-no-delay (descriptor)
  "Lets small packets of DESCRIPTOR leave at once.  Returns 0 or minus an error number."
  (declare (type descriptor descriptor))
  (sb-alien:with-alien ((on sb-alien:int 1))
    (system-call "setsockopt" sb-alien:int (sb-alien:int descriptor)
                 (sb-alien:int +ipproto-tcp+) (sb-alien:int +tcp-nodelay+)
                 ((* sb-alien:int) (sb-alien:addr on)) (sb-alien:int 4))))

(defun set-non-blocking (descriptor)
  "Makes no call on DESCRIPTOR block any more.  Returns 0 or minus an error number."
  (let ((flags (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                            (sb-alien:int 3) (sb-alien:int 0))))
    (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                 (sb-alien:int 4) (sb-alien:int (logior flags +sock-nonblock+)))))

(defun listener-descriptor (listener)
  "The descriptor of LISTENER, a usocket."
  (sb-bsd-sockets:socket-file-descriptor (usocket:socket listener)))

;;; The poller

(defconstant +epollin+ #x1)
(defconstant +epollrdhup+ #x2000)
(defconstant +epoll-over+ (logior +epollrdhup+ #x8 #x10)
  "EPOLLRDHUP, EPOLLERR or EPOLLHUP.")
(defconstant +epollet+ #x80000000)
(defconstant +epollin-edge+ (logior +epollin+ +epollrdhup+ +epollet+))

(deftype token ()
  "What a poller tells when a descriptor is ready: chosen by who had it watched, save bit 31,
in which the poller tells that the peer has sent all it will."
  '(unsigned-byte 62))

(defconstant +hangup-bit+ 31)

(declaim (inline token-hangup-p plain-token))
(defun token-hangup-p (token)
  "True when TOKEN tells besides that the peer will send no more."
  (declare (type token token))
  (logbitp +hangup-bit+ token))

(defun plain-token (token)
  "TOKEN as it was chosen."
  (declare (type token token))
  (logandc2 token (ash 1 +hangup-bit+)))

(defstruct (poller (:constructor %make-poller (descriptor bell)))
  "A ready set: an epoll instance, and an eventfd that is readable while it is being rung."
  (descriptor 0 :type descriptor :read-only t)
  (bell 0 :type descriptor :read-only t))

(defconstant +bell-token+ (logandc2 (1- (ash 1 62)) (ash 1 +hangup-bit+)))

(defun epoll-control (poller operation descriptor events token)
  (declare (type descriptor descriptor) (type token token) (type (unsigned-byte 32) events))
  ;; struct epoll_event is packed on x86-64 only.
  (sb-alien:with-alien ((event (array (sb-alien:unsigned 32) 4)))
    (setf (sb-alien:deref event 0) events)
    (let ((offset #+x86-64 1 #-x86-64 2))
      (setf (sb-alien:deref event offset) (ldb (byte 32 0) token)
            (sb-alien:deref event (1+ offset)) (ldb (byte 32 32) token)))
    (system-call "epoll_ctl" sb-alien:int
                 (sb-alien:int (poller-descriptor poller))
                 (sb-alien:int operation)
                 (sb-alien:int descriptor)
                 ((* (array (sb-alien:unsigned 32) 4)) (sb-alien:addr event)))))

(defun check-call (result name)
  (if (minusp result)
      (error "~A failed: error number ~D." name (- result))
      result))

(defun make-poller ()
  "A new poller.  Signals an error when the system has no descriptor left."
  (let* ((epoll (check-call (system-call "epoll_create1" sb-alien:int
                                         (sb-alien:int +sock-cloexec+))
                            "epoll_create1"))
         (bell (system-call "eventfd" sb-alien:int (sb-alien:unsigned-int 0)
                            (sb-alien:int (logior +sock-nonblock+ +sock-cloexec+)))))
    (when (minusp bell)
      (close-descriptor epoll)
      (check-call bell "eventfd"))
    (let ((poller (%make-poller epoll bell)))
      ;; Level-triggered: everybody who waits sees it, until it is silenced.
      (epoll-control poller 1 bell +epollin+ +bell-token+)
      poller)))

(defun close-poller (poller)
  "Gives the descriptors of POLLER back.  Nobody may be waiting on it."
  (close-descriptor (poller-bell poller))
  (close-descriptor (poller-descriptor poller)))

(defun watch (poller descriptor token)
  "Lets POLLER tell TOKEN once each time new octets, a connection or the end of input come to
DESCRIPTOR, beginning with those that are there: edge-triggered.  Ends when DESCRIPTOR is
closed.  Returns 0 or minus an error number."
  (epoll-control poller 1 descriptor +epollin-edge+ token))

(defun watch-again (poller descriptor token)
  "Lets POLLER tell TOKEN again if DESCRIPTOR, which is watched, is ready now."
  (epoll-control poller 3 descriptor +epollin-edge+ token))

(defun unwatch (poller descriptor)
  "Makes POLLER forget DESCRIPTOR."
  (epoll-control poller 2 descriptor 0 0))

(defun ring (poller)
  "Makes everybody who waits on POLLER, now or later, return :BELL until SILENCE."
  (sb-alien:with-alien ((one (sb-alien:unsigned 64) 1))
    (system-call "write" sb-alien:long (sb-alien:int (poller-bell poller))
                 ((* (sb-alien:unsigned 64)) (sb-alien:addr one))
                 (sb-alien:unsigned-long 8))))

(defun silence (poller)
  "Ends the effect of RING on POLLER."
  (sb-alien:with-alien ((count (sb-alien:unsigned 64) 0))
    (system-call "read" sb-alien:long (sb-alien:int (poller-bell poller))
                 ((* (sb-alien:unsigned 64)) (sb-alien:addr count))
                 (sb-alien:unsigned-long 8))))

(defun await-ready (poller milliseconds)
  "Waits until something that POLLER watches is ready, and returns its token; :BELL while the
bell is rung; NIL after MILLISECONDS, an integer or -1 for no limit, or when interrupted.
One event a call, to one caller: what else is ready is for others."
  (declare (type poller poller) (type (signed-byte 31) milliseconds) #.*hot-policy*)
  (sb-alien:with-alien ((event (array (sb-alien:unsigned 32) 4)))
    (let ((count (system-call "epoll_wait" sb-alien:int
                              (sb-alien:int (poller-descriptor poller))
                              ((* (array (sb-alien:unsigned 32) 4)) (sb-alien:addr event))
                              (sb-alien:int 1)
                              (sb-alien:int milliseconds))))
      (when (= count 1)
        (let* ((offset #+x86-64 1 #-x86-64 2)
               (token (logior (sb-alien:deref event offset)
                              (ash (ldb (byte 30 0) (sb-alien:deref event (1+ offset))) 32))))
          (declare (type token token))
          (cond ((= token +bell-token+) :bell)
                ((logtest +epoll-over+ (sb-alien:deref event 0))
                 (logior token (ash 1 +hangup-bit+)))
                (t token)))))))

(defun await-descriptor (descriptor direction milliseconds)
  "Waits until DESCRIPTOR can be read or written, as DIRECTION, :INPUT or :OUTPUT, says, or is
broken.  NIL after MILLISECONDS, an integer or -1 for no limit."
  (declare (type descriptor descriptor) (type (signed-byte 31) milliseconds))
  (sb-alien:with-alien ((poll (array (sb-alien:unsigned 32) 2)))
    (loop
      (setf (sb-alien:deref poll 0) descriptor
            (sb-alien:deref poll 1) (ecase direction (:input 1) (:output 4)))
      (let ((count (system-call "poll" sb-alien:int
                                ((* (array (sb-alien:unsigned 32) 2)) (sb-alien:addr poll))
                                (sb-alien:unsigned-long 1)
                                (sb-alien:int milliseconds))))
        (unless (= count (- +eintr+))
          (return (plusp count)))))))

(defun readiness-supported-p ()
  "True where this platform has pollers."
  t)

;;; Threads

(defun thread-identity ()
  "The system's number of the current thread."
  (sb-alien:alien-funcall
   (sb-alien:extern-alien "syscall" (function sb-alien:long sb-alien:long))
   #+x86-64 186 #-x86-64 178))

(defun open-thread-status (identity)
  "A descriptor for THREAD-BLOCKED-P of the thread IDENTITY of this process; NIL when there is
none to be had."
  (let ((result (system-call "open" sb-alien:int
                             (sb-alien:c-string
                              (format nil "/proc/self/task/~D/stat" identity))
                             (sb-alien:int +sock-cloexec+))))
    (unless (minusp result)
      result)))

(defun thread-blocked-p (status)
  "True when the thread of STATUS, of OPEN-THREAD-STATUS, waits for something other than a
processor: its state, after the closing parenthesis of its name, is not R (proc(5))."
  (let ((buffer (make-octets 64)))
    (declare (dynamic-extent buffer))
    (sb-sys:with-pinned-objects (buffer)
      (let* ((count (system-call "pread" sb-alien:long
                                 (sb-alien:int status)
                                 (sb-sys:system-area-pointer (sb-sys:vector-sap buffer))
                                 (sb-alien:unsigned-long 64)
                                 (sb-alien:long 0)))
             (name-end (and (plusp count)
                            (position (char-code #\)) buffer :from-end t :end count))))
        (and name-end
             (< (+ name-end 2) count)
             (/= (char-code #\R) (aref buffer (+ name-end 2))))))))

(defun nap (microseconds)
  "Sleeps for MICROSECONDS.  For the sentinel's tick alone."
  (system-call "usleep" sb-alien:int (sb-alien:unsigned-int microseconds)))

;;; Atomics

(defmacro compare-and-set (place old new)
  "Sets PLACE, a slot of a structure, to NEW if it is EQ to OLD, at once; true when it was."
  (let ((expected (gensym "OLD")))
    `(let ((,expected ,old))
       (eq ,expected (sb-ext:compare-and-swap ,place ,expected ,new)))))

(defstruct (counter (:constructor make-counter ()))
  "A number that many threads add to."
  (value 0 :type sb-ext:word))

(declaim (inline counter-add counter-count))
(defun counter-add (counter delta)
  "Adds DELTA, 1 or -1, to COUNTER, at once."
  (declare (type (signed-byte 62) delta))
  (sb-ext:atomic-incf (counter-value counter) delta)
  (values))

(defun counter-count (counter)
  "The value of COUNTER."
  (the (unsigned-byte 61) (counter-value counter)))

;;; Names

(defun octets-from (buffer start count)
  (let ((octets (make-octets count)))
    (dotimes (index count octets)
      (setf (aref octets index) (sb-alien:deref buffer (+ start index))))))

(defmacro with-socket-name ((buffer function descriptor) &body body)
  "Evaluates BODY with BUFFER bound to the address, as octets, that the C function FUNCTION
tells of DESCRIPTOR."
  `(sb-alien:with-alien ((,buffer (array (sb-alien:unsigned 8) 128))
                         (size sb-alien:int 128))
     (check-call (system-call ,function sb-alien:int
                              (sb-alien:int ,descriptor)
                              ((* (array (sb-alien:unsigned 8) 128)) (sb-alien:addr ,buffer))
                              ((* sb-alien:int) (sb-alien:addr size)))
                 ,function)
     ,@body))

(defun name-of (buffer)
  "Address, a string, and port of the socket address in BUFFER; see <sys/socket.h>."
  (let ((family (+ (sb-alien:deref buffer 0) (ash (sb-alien:deref buffer 1) 8)))
        (port (+ (ash (sb-alien:deref buffer 2) 8) (sb-alien:deref buffer 3))))
    (case family
      (2 (values (usocket:host-to-hostname (octets-from buffer 4 4)) port))
      (10 (values (usocket:host-to-hostname (octets-from buffer 8 16)) port))
      (t (values "unix" 0)))))

(defun descriptor-peer-name (descriptor)
  "Address, a string, and port of the peer of DESCRIPTOR.  Signals an error when it is gone."
  (with-socket-name (buffer "getpeername" descriptor)
    (name-of buffer)))

(defun descriptor-local-name (descriptor)
  "Address, a string, and port of our own end of DESCRIPTOR.  Signals an error when it is no
socket."
  (with-socket-name (buffer "getsockname" descriptor)
    (name-of buffer)))

;;; A usocket for programs that want one

(defclass descriptor-usocket (usocket:stream-usocket)
  ((descriptor :initarg :descriptor :reader usocket-descriptor))
  (:documentation "A connection's socket as programs see it.  What usocket needs of the Lisp's
own sockets is made when it is asked for, which is seldom."))

(defun descriptor-socket (descriptor stream)
  "A usocket for the open DESCRIPTOR, whose stream is STREAM."
  (make-instance 'descriptor-usocket :descriptor descriptor :stream stream))

(defmethod slot-unbound (class (instance descriptor-usocket) (slot (eql 'usocket::socket)))
  (declare (ignore class))
  (let ((socket (make-instance 'sb-bsd-sockets:inet-socket
                               :type :stream :protocol :tcp
                               :descriptor (usocket-descriptor instance))))
    ;; Or the garbage collector would close the descriptor one day, whosever it is then.
    (sb-ext:cancel-finalization socket)
    (setf (slot-value instance slot) socket)))

(defmethod peer-name ((socket descriptor-usocket))
  (descriptor-peer-name (usocket-descriptor socket)))

(defmethod local-name ((socket descriptor-usocket))
  (descriptor-local-name (usocket-descriptor socket)))

(defmethod limit-waits ((socket descriptor-usocket) seconds)
  (limit-waits (usocket:socket-stream socket) seconds))

(defmethod usocket:socket-close ((socket descriptor-usocket))
  (close (usocket:socket-stream socket)))
