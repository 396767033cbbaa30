(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; hot: the ready set, epoll(7), for SBCL on Linux.

(defconstant +epollin+ #x1)
(defconstant +epollrdhup+ #x2000)
(defconstant +epoll-over+ (logior +epollrdhup+ #x8 #x10)
  "EPOLLRDHUP, EPOLLERR or EPOLLHUP.")
(defconstant +epollet+ #x80000000)
(defconstant +epollout+ #x4)
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

(defstruct (poller (:constructor %make-poller (descriptor bell probe)))
  "A ready set: an epoll instance; an eventfd that is readable while it is being rung; and one
that is always readable, and told of when it is sent."
  (descriptor 0 :type descriptor :read-only t)
  (bell 0 :type descriptor :read-only t)
  (probe 0 :type descriptor :read-only t))

;;; Above all tokens of descriptors, of which none is so large.
(defconstant +bell-token+ (logandc2 (1- (ash 1 62)) (ash 1 +hangup-bit+)))
(defconstant +probe-token+ (1- +bell-token+))

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

(defun make-eventfd (count)
  "The descriptor of a new eventfd, which is readable when COUNT is above 0; or minus an error
number."
  (system-call "eventfd" sb-alien:int (sb-alien:unsigned-int count)
               (sb-alien:int (logior +sock-nonblock+ +sock-cloexec+))))

(defun make-poller ()
  "A new poller.  Signals an error when the system has no descriptor left."
  (let* ((epoll (system-call "epoll_create1" sb-alien:int (sb-alien:int +sock-cloexec+)))
         (bell (make-eventfd 0))
         (probe (make-eventfd 1))
         (made (remove-if #'minusp (list epoll bell probe))))
    (unless (= 3 (length made))
      (mapc #'close-descriptor made)
      (check-call (min epoll bell probe) "epoll_create1 or eventfd"))
    (let ((poller (%make-poller epoll bell probe)))
      ;; Level-triggered: everybody who waits sees it, until it is silenced.
      (epoll-control poller 1 bell +epollin+ +bell-token+)
      (epoll-control poller 1 probe +epollin-edge+ +probe-token+)
      (await-ready poller 0)            ; it was readable from the beginning
      poller)))

(defun close-poller (poller)
  "Gives the descriptors of POLLER back.  Nobody may be waiting on it."
  (close-descriptor (poller-probe poller))
  (close-descriptor (poller-bell poller))
  (close-descriptor (poller-descriptor poller)))

(defun edges (output-p)
  (if output-p (logior +epollin-edge+ +epollout+) +epollin-edge+))

(defun watch (poller descriptor token &optional output-p)
  "Lets POLLER tell TOKEN once each time new octets, a connection or the end of input come to
DESCRIPTOR, and if OUTPUT-P each time it takes octets again after it took no more, beginning
with what is so now: edge-triggered.  Ends when DESCRIPTOR is closed.  Returns 0 or minus an
error number."
  (epoll-control poller 1 descriptor (edges output-p) token))

(defun watch-again (poller descriptor token &optional output-p)
  "Lets POLLER tell TOKEN again if DESCRIPTOR, which is watched, is ready now, and from now on as
WATCH with OUTPUT-P does."
  (epoll-control poller 3 descriptor (edges output-p) token))

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

(defun send-probe (poller)
  "Makes one of those who wait on POLLER, now or later, return :PROBE, in its turn: after all
that is ready now.  Has no effect before that has happened."
  (epoll-control poller 3 (poller-probe poller) +epollin-edge+ +probe-token+))

(defun await-ready (poller milliseconds)
  "Waits until something that POLLER watches is ready, and returns its token; :BELL while the
bell is rung; :PROBE after SEND-PROBE; NIL after MILLISECONDS, an integer or -1 for no limit, or when
interrupted.  One event a call, to one caller: what else is ready is for others."
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
          (cond ((>= token +probe-token+)
                 (if (= token +bell-token+) :bell :probe))
                ((logtest +epoll-over+ (sb-alien:deref event 0))
                 (logior token (ash 1 +hangup-bit+)))
                (t token)))))))

(defun readiness-supported-p ()
  "True where this platform has pollers."
  t)
