(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; hot: pollers by epoll(7), for SBCL on Linux.

(deftype token ()
  "The number that a poller returns for a ready descriptor.  The caller of WATCH chooses it, except
for bit 31: the poller sets that bit if the peer will send no more."
  '(unsigned-byte 62))

(defconstant +hangup-bit+ 31)

(declaim (inline token-hangup-p plain-token))
(defun token-hangup-p (token)
  "True if TOKEN also says that the peer will send no more."
  (declare (type token token))
  (logbitp +hangup-bit+ token))

(defun plain-token (token)
  "TOKEN as the caller of WATCH chose it."
  (declare (type token token))
  (logandc2 token (ash 1 +hangup-bit+)))

(defstruct (poller (:include opaque) (:constructor %make-poller ()))
  "A poller: an epoll instance, and an eventfd, always readable, which gives one event whenever it
is armed.  Below 0 before they are made."
  (descriptor -1 :type (signed-byte 32))
  (wakeup -1 :type (signed-byte 32)))

(defconstant +wakeup-token+ (logandc2 (1- (ash 1 62)) (ash 1 +hangup-bit+))
  "It is larger than any token of a descriptor.")

(defconstant +epollin+ #x1)
(defconstant +epollout+ #x4)
(defconstant +epollrdhup+ #x2000)
(defconstant +epoll-over+ (logior +epollrdhup+ #x8 #x10)) ; EPOLLERR, EPOLLHUP
(defconstant +epollin-edge+ (logior +epollin+ +epollrdhup+ #x80000000)) ; EPOLLET

;;; The struct epoll_event in words of 32 bits: the events, and then our data, the low word first.
;;; The struct is packed on x86-64 only.
(defconstant +event-size+ #+x86-64 3 #-x86-64 4)
(defconstant +data-offset+ #+x86-64 1 #-x86-64 2)

(defun epoll-control (poller operation descriptor events token)
  (declare (type descriptor descriptor) (type token token) (type (unsigned-byte 32) events))
  (sb-alien:with-alien ((event (array (sb-alien:unsigned 32) 4)))
    (setf (sb-alien:deref event 0) events
          (sb-alien:deref event +data-offset+) (ldb (byte 32 0) token)
          (sb-alien:deref event (1+ +data-offset+)) (ldb (byte 32 32) token))
    (system-call "epoll_ctl" sb-alien:int
                 (sb-alien:int (poller-descriptor poller))
                 (sb-alien:int operation)
                 (sb-alien:int descriptor)
                 ((* (array (sb-alien:unsigned 32) 4)) (sb-alien:addr event)))))

(defun watch (poller descriptor token &optional output-p)
  "Makes POLLER watch DESCRIPTOR, edge-triggered.  The poller returns TOKEN once if DESCRIPTOR is
ready now, and once each time that new octets, a connection or the end of input arrive.  If OUTPUT-P
is true, it also does so each time that DESCRIPTOR accepts octets again after it was full.  The
watch ends when DESCRIPTOR is closed.  Returns 0 or minus an error number."
  (epoll-control poller 1 descriptor (logior +epollin-edge+ (if output-p +epollout+ 0)) token))

(defun rearm (poller descriptor token &optional output-p)
  "Makes POLLER, which already watches DESCRIPTOR, return TOKEN again if DESCRIPTOR is ready now;
and from then on watch it like WATCH, with TOKEN and OUTPUT-P.  Returns 0 or minus an error number."
  (epoll-control poller 3 descriptor (logior +epollin-edge+ (if output-p +epollout+ 0)) token))

(defun make-poller ()
  "A new poller.  Signals an error if the system has no descriptor left."
  (let ((poller (%make-poller)))
    (unless-returned
        (progn
          (setf (poller-descriptor poller)
                (check-call (system-call "epoll_create1" sb-alien:int (sb-alien:int +sock-cloexec+))
                            "epoll_create1")
                (poller-wakeup poller)
                (check-call (system-call "eventfd" sb-alien:int (sb-alien:unsigned-int 1)
                                         (sb-alien:int (logior +sock-nonblock+ +sock-cloexec+)))
                            "eventfd"))
          (check-call (watch poller (poller-wakeup poller) +wakeup-token+) "epoll_ctl")
          (await-ready poller 0)        ; takes the first event of WAKEUP
          poller)
      (close-poller poller))))

(defun close-poller (poller)
  "Closes the descriptors of POLLER.  No thread may wait on POLLER then."
  (dolist (descriptor (list (poller-wakeup poller) (poller-descriptor poller)))
    (unless (minusp descriptor)
      (close-descriptor descriptor))))

(defun wake-one (poller)
  "Makes AWAIT-READY return :WAKEUP in one thread that waits on POLLER, now or later, after all
descriptors that are ready now.  Another call before that has no effect."
  (rearm poller (poller-wakeup poller) +wakeup-token+))

(declaim (inline event-token))
(defun event-token (events place)
  "The value for the event whose words begin at PLACE of those at EVENTS, an address: a token
or :WAKEUP."
  (declare (type sb-sys:system-area-pointer events) (type (mod 64) place) #.*hot-policy*)
  (flet ((word (index)
           (sb-sys:sap-ref-32 events (* 4 (+ place (the (mod 4) index))))))
    (declare (inline word))
    (let ((token (logior (word +data-offset+)
                         (ash (ldb (byte 30 0) (word (1+ +data-offset+))) 32))))
      (declare (type token token))
      (cond ((= token +wakeup-token+) :wakeup)
            ((logtest +epoll-over+ (word 0))
             (logior token (ash 1 +hangup-bit+)))
            (t token)))))

(defun await-ready (poller milliseconds &optional (most 1))
  "Waits until a descriptor that POLLER watches is ready, and returns its token; :WAKEUP after
WAKE-ONE; NIL after MILLISECONDS, an integer or -1 for no limit, or after an interrupt.  If more
events are there, takes up to MOST, an integer from 1 to 16, and returns the others in order, a
fresh list, as the second value.  Each event goes to one caller only."
  (declare (type poller poller) (type (signed-byte 31) milliseconds) (type (integer 1 16) most)
           #.*hot-policy*)
  (sb-alien:with-alien ((events (array (sb-alien:unsigned 32) 64)))
    (let ((count (system-call "epoll_wait" sb-alien:int
                              (sb-alien:int (poller-descriptor poller))
                              ((* (array (sb-alien:unsigned 32) 64)) (sb-alien:addr events))
                              (sb-alien:int most)
                              (sb-alien:int milliseconds))))
      (declare (type (integer -4095 16) count))
      (when (plusp count)
        ;; An address needs no memory; to pass EVENTS itself would allocate an object.
        (let ((address (sb-alien:alien-sap events))
              (others '()))
          (loop for index of-type (mod 17) from (1- count) above 0
                do (push (event-token address (* index +event-size+)) others))
          (values (event-token address 0) others))))))

(defun readiness-supported-p ()
  "True if this platform has pollers."
  t)

;;; Descriptors that become ready at a given time: timerfd_create(2)

(defun make-timer-descriptor ()
  "A new descriptor, an integer, that becomes readable at the moment that ARM-TIMER-DESCRIPTOR sets;
or minus an error number."
  (system-call "timerfd_create" sb-alien:int
               (sb-alien:int +clock-monotonic+)
               (sb-alien:int (logior +sock-nonblock+ +sock-cloexec+))))

(defun arm-timer-descriptor (descriptor moment)
  "Makes DESCRIPTOR, of MAKE-TIMER-DESCRIPTOR, readable from MOMENT on, an integer above 0, in
MICROSECONDS; or from now on if MOMENT has passed.  Each time is a new event for a poller, even if
no thread reads DESCRIPTOR.  Returns 0 or minus an error number."
  (declare (type (unsigned-byte 62) moment))
  (multiple-value-bind (seconds microseconds) (floor moment 1000000)
    ;; The struct itimerspec: the period, which is 0, and the moment.
    (sb-alien:with-alien ((times (array sb-alien:long 4)))
      (setf (sb-alien:deref times 0) 0
            (sb-alien:deref times 1) 0
            (sb-alien:deref times 2) seconds
            (sb-alien:deref times 3) (* 1000 microseconds))
      (system-call "timerfd_settime" sb-alien:int
                   (sb-alien:int descriptor)
                   (sb-alien:int 1)     ; TFD_TIMER_ABSTIME
                   ((* (array sb-alien:long 4)) (sb-alien:addr times))
                   (sb-sys:system-area-pointer (sb-sys:int-sap 0))))))
