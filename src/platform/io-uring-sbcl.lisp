(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; hot: several calls on sockets by one call of the system, io_uring(7), for SBCL on Linux.
;;;;
;;;; Where a processor has to be kept from reading what is the kernel's, each call of the system costs as much
;;;; as all else that a small reply needs.  A ring makes one of many, all of which are done when it returns:
;;;; none waits, since each says MSG_DONTWAIT.  What is not supported, or forbidden, as in many containers, is
;;;; told by MAKE-RING, and by results that say that a call was not made.
;;;;
;;;;   the ring                  is written by
;;;;   submission queue, tail    us: entries from the kernel's head on are to be taken
;;;;   completion queue, tail    the kernel: entries from our head on are results
;;;;
;;;; A ring belongs to the thread that has made it, and nobody else may submit to it.

(defconstant +ring-size+ 16
  "How many calls a ring takes at once, an integer.")

;;; <linux/io_uring.h>; the numbers of the calls are the same on all processors.
(defconstant +io-uring-setup+ 425)
(defconstant +io-uring-enter+ 426)
(defconstant +ring-flags+ (logior (ash 1 7) (ash 1 12) (ash 1 13))
  "IORING_SETUP_SUBMIT_ALL, SINGLE_ISSUER, DEFER_TASKRUN.")
(defconstant +single-mapping+ 1
  "IORING_FEAT_SINGLE_MMAP.")
(defconstant +entries-offset+ #x10000000
  "IORING_OFF_SQES.")
(defconstant +opcode-send+ 26)
(defconstant +opcode-receive+ 27)
(defconstant +opcode-close+ 19)
(defconstant +entry-size+ 64)
(defconstant +result-size+ 16)

(defconstant +not-made+ (1- (- (ash 1 31)))
  "The result of a call that a ring has not made, an integer: no number of octets, and of no error.")

(deftype ring-results ()
  "What the calls of a ring have returned: octets, or minus error numbers, or +NOT-MADE+."
  `(simple-array fixnum (,+ring-size+)))

(deftype ring-positions ()
  "Where the octets of each call of a ring end, and those of the next one begin."
  `(simple-array fixnum (,(1+ +ring-size+))))

(deftype ring-descriptors ()
  "The descriptor of each call of a ring."
  `(simple-array fixnum (,+ring-size+)))

(defstruct (ring (:include opaque) (:constructor %make-ring))
  "A ring, and where its parts are, as addresses."
  (descriptor 0 :type descriptor :read-only t)
  (queues 0 :type sb-ext:word)          ; the mapping of both queues
  (queues-size 0 :type index)
  (entries 0 :type sb-ext:word)         ; that of the submission queue's entries
  (entries-size 0 :type index)
  (submission-head 0 :type sb-ext:word)
  (submission-tail 0 :type sb-ext:word)
  (submission-mask 0 :type (unsigned-byte 32))
  (completion-head 0 :type sb-ext:word)
  (completion-tail 0 :type sb-ext:word)
  (completion-mask 0 :type (unsigned-byte 32))
  (completions 0 :type sb-ext:word))

;;; Making it

(defun map-ring (descriptor size offset)
  "The address at which SIZE octets of the ring DESCRIPTOR from OFFSET on are; NIL where they can't be mapped."
  (let ((address (sb-alien:alien-funcall
                  (sb-alien:extern-alien "mmap" (function sb-alien:unsigned-long sb-alien:unsigned-long
                                                          sb-alien:unsigned-long sb-alien:int sb-alien:int
                                                          sb-alien:int sb-alien:long))
                  0 size 3 #x8001       ; to be read and written; MAP_SHARED, MAP_POPULATE
                  descriptor offset)))
    (and (/= address (1- (ash 1 64))) address)))

(defun unmap (address size)
  (unless (zerop address)
    (system-call "munmap" sb-alien:int (sb-alien:unsigned-long address) (sb-alien:unsigned-long size))))

(defun close-ring (ring)
  "Gives back what RING has of the system."
  (unmap (shiftf (ring-queues ring) 0) (ring-queues-size ring))
  (unmap (shiftf (ring-entries ring) 0) (ring-entries-size ring))
  (close-descriptor (ring-descriptor ring)))

(defun set-up-ring (parameters flags)
  "Calls io_uring_setup with FLAGS and PARAMETERS, 15 words of 64 bits, which tell where all is then.
Returns a descriptor or minus an error number."
  (fill parameters 0)
  (setf (ldb (byte 32 0) (aref parameters 1)) flags)
  (sb-sys:with-pinned-objects (parameters)
    (system-call "syscall" sb-alien:long
                 (sb-alien:long +io-uring-setup+)
                 (sb-alien:unsigned-long +ring-size+)
                 (sb-sys:system-area-pointer (sb-sys:vector-sap parameters)))))

(defun ring-parameter (parameters position)
  "The 32 bits of PARAMETERS at POSITION, in octets."
  (multiple-value-bind (word rest) (floor position 8)
    (ldb (byte 32 (* 8 rest)) (aref parameters word))))

(defun map-queues (ring parameters)
  "Maps the queues of RING, as PARAMETERS of SET-UP-RING tell.  True when that is done."
  (flet ((parameter (position) (ring-parameter parameters position)))
    (let* ((size (max (+ (parameter 64) (* 4 (parameter 0)))                ; sq_off.array, sq_entries
                      (+ (parameter 100) (* +result-size+ (parameter 4))))) ; cq_off.cqes, cq_entries
           (entries-size (* +entry-size+ (parameter 0)))
           (queues (and (logtest +single-mapping+ (parameter 20))
                        (map-ring (ring-descriptor ring) size 0)))
           (entries (and queues
                         (map-ring (ring-descriptor ring) entries-size +entries-offset+))))
      (flet ((at (position) (+ queues (parameter position)))
             (word-at (position) (sb-sys:sap-ref-32 (sb-sys:int-sap queues) (parameter position))))
        (when queues
          (setf (ring-queues ring) queues
                (ring-queues-size ring) size))
        (when entries
          (setf (ring-entries ring) entries
                (ring-entries-size ring) entries-size
                (ring-submission-head ring) (at 40)
                (ring-submission-tail ring) (at 44)
                (ring-submission-mask ring) (word-at 48)
                (ring-completion-head ring) (at 80)
                (ring-completion-tail ring) (at 84)
                (ring-completion-mask ring) (word-at 88)
                (ring-completions ring) (at 100))
          ;; Place N of the submission queue is entry N, always.
          (dotimes (place (parameter 0) t)
            (setf (sb-sys:sap-ref-32 (sb-sys:int-sap (at 64)) (* 4 place)) place)))))))

(defun make-ring ()
  "A ring for the current thread; NIL where the system makes none, or one that does not know what we need."
  (let ((parameters (make-array 15 :element-type '(unsigned-byte 64))))
    (uninterruptibly
      (let ((descriptor (set-up-ring parameters +ring-flags+)))
        (when (minusp descriptor)       ; before Linux 6.1
          (setf descriptor (set-up-ring parameters 0)))
        (unless (minusp descriptor)
          (let ((ring (%make-ring :descriptor descriptor)))
            (cond ((and (map-queues ring parameters) (ring-works-p ring))
                   ring)
                  (t
                   (close-ring ring)
                   nil))))))))

;;; Calls

(declaim (inline put-call))
(defun put-call (ring tail opcode descriptor address length flags place)
  "Writes a call to the entry of RING at TAIL; PLACE comes back with its result."
  (declare (type ring ring) (type (unsigned-byte 32) tail length flags) (type descriptor descriptor)
           (type sb-ext:word address) (type (mod #.+ring-size+) place) #.*hot-policy*)
  (let ((entry (sb-sys:sap+ (sb-sys:int-sap (ring-entries ring))
                            (* +entry-size+ (logand tail (ring-submission-mask ring))))))
    (setf (sb-sys:sap-ref-64 entry 0) (logior opcode (ash descriptor 32))
          (sb-sys:sap-ref-64 entry 8) 0
          (sb-sys:sap-ref-64 entry 16) address
          (sb-sys:sap-ref-64 entry 24) (logior length (ash flags 32))
          (sb-sys:sap-ref-64 entry 32) place
          (sb-sys:sap-ref-64 entry 40) 0
          (sb-sys:sap-ref-64 entry 48) 0
          (sb-sys:sap-ref-64 entry 56) 0)))

(declaim (inline enter-ring))
(defun enter-ring (ring count)
  "Has the kernel take COUNT calls of RING.  Returns how many it has taken, or minus an error number."
  (declare (type ring ring) (type (integer 0 #.+ring-size+) count) #.*hot-policy*)
  (system-call "syscall" sb-alien:long
               (sb-alien:long +io-uring-enter+)
               (sb-alien:long (ring-descriptor ring))
               (sb-alien:long count)
               (sb-alien:long 0)        ; none is waited for: all are done when they were taken
               (sb-alien:long 0)
               (sb-alien:long 0)
               (sb-alien:long 0)))

(defun take-results (ring results)
  "Writes what has come back of the calls of RING to RESULTS."
  (declare (type ring ring) (type ring-results results) #.*hot-policy*)
  (let* ((head-place (sb-sys:int-sap (ring-completion-head ring)))
         (head (sb-sys:sap-ref-32 head-place 0))
         (tail (sb-sys:sap-ref-32 (sb-sys:int-sap (ring-completion-tail ring)) 0))
         (completions (sb-sys:int-sap (ring-completions ring))))
    (declare (type (unsigned-byte 32) head tail))
    (order-reads)
    (loop until (= head tail)
          do (let ((at (* +result-size+ (logand head (ring-completion-mask ring)))))
               (setf (aref results (logand (sb-sys:sap-ref-64 completions at) #.(1- +ring-size+)))
                     (sb-sys:signed-sap-ref-32 completions (+ at 8))
                     head (ldb (byte 32 0) (1+ head)))))
    (order-writes)
    (setf (sb-sys:sap-ref-32 head-place 0) head)))

(defun submit-calls (ring count results)
  "Has the kernel make COUNT calls, at least one, that were written to RING.  RESULTS, all of which are +NOT-MADE+,
become what they return."
  (declare (type ring ring) (type (integer 1 #.+ring-size+) count) (type ring-results results) #.*hot-policy*)
  (let ((tail-place (sb-sys:int-sap (ring-submission-tail ring))))
    (order-writes)
    (setf (sb-sys:sap-ref-32 tail-place 0) (ldb (byte 32 0) (+ (sb-sys:sap-ref-32 tail-place 0) count)))
    (enter-ring ring count)
    ;; What was not taken is taken back: the octets may be elsewhere the next time.
    (setf (sb-sys:sap-ref-32 tail-place 0)
          (sb-sys:sap-ref-32 (sb-sys:int-sap (ring-submission-head ring)) 0))
    (take-results ring results)
    results))

(declaim (inline submission-tail))
(defun submission-tail (ring place)
  "Where call PLACE of those that are about to be submitted is in the submission queue of RING."
  (declare (type ring ring) (type (mod #.+ring-size+) place) #.*hot-policy*)
  (ldb (byte 32 0) (+ place (sb-sys:sap-ref-32 (sb-sys:int-sap (ring-submission-tail ring)) 0))))

(defun transfer-through-ring (ring opcode flags descriptors octets positions count results)
  "Makes COUNT calls, at least one, of OPCODE with FLAGS: each on one of DESCRIPTORS, and on the octets of OCTETS
from its position of POSITIONS to the next.  RESULTS says what they return."
  (declare (type ring ring) (type (unsigned-byte 32) opcode flags) (type ring-descriptors descriptors)
           (type octets octets) (type ring-positions positions) (type (integer 1 #.+ring-size+) count)
           (type ring-results results) #.*hot-policy*)
  (fill results +not-made+)
  (sb-sys:with-pinned-objects (octets)
    (let ((address (sb-sys:sap-int (sb-sys:vector-sap octets))))
      (dotimes (place count)
        (let ((start (aref positions place)))
          (declare (type index start))
          (put-call ring (submission-tail ring place) opcode (aref descriptors place)
                    (ldb (byte 64 0) (+ address start))
                    (ldb (byte 32 0) (- (the index (aref positions (1+ place))) start))
                    flags place))))
    (submit-calls ring count results)))

(defun send-through-ring (ring descriptors octets positions count results)
  "Does with RING what SEND-OCTETS would for COUNT of DESCRIPTORS, at least one and at most +RING-SIZE+: for each the
octets of OCTETS from its position of POSITIONS to the next.  Fills RESULTS, which it returns, with what that would
return, or +NOT-MADE+ for a call that was not made.  To be called by the thread that has made RING."
  (transfer-through-ring ring +opcode-send+ +msg-at-once+ descriptors octets positions count results))

(defun receive-through-ring (ring descriptors octets positions count results)
  "Does with RING what RECEIVE-OCTETS would for COUNT of DESCRIPTORS: for each to OCTETS from its position of POSITIONS
up to the next.  Fills RESULTS, which it returns, with what that would return; otherwise like SEND-THROUGH-RING."
  (transfer-through-ring ring +opcode-receive+ +msg-dontwait+ descriptors octets positions count results))

(defun close-through-ring (ring descriptors count results)
  "Does with RING what CLOSE-DESCRIPTOR would for COUNT of DESCRIPTORS, which are sockets; otherwise like
SEND-THROUGH-RING, with RESULTS as there."
  (declare (type ring ring) (type ring-descriptors descriptors) (type (integer 1 #.+ring-size+) count)
           (type ring-results results) #.*hot-policy*)
  (fill results +not-made+)
  (dotimes (place count)
    (put-call ring (submission-tail ring place) +opcode-close+ (aref descriptors place) 0 0 0 place))
  (submit-calls ring count results))

(defun ring-works-p (ring)
  "True when the kernel knows all calls of RING: it finds that there is no such descriptor."
  (let ((descriptors (make-array +ring-size+ :element-type 'fixnum :initial-element (1- (ash 1 30))))
        (positions (make-array (1+ +ring-size+) :element-type 'fixnum :initial-element 0))
        (results (make-array +ring-size+ :element-type 'fixnum :initial-element 0))
        (octets (make-octets 1)))
    (flet ((known-p (function)
             (= (- +ebadf+)
                (aref (the ring-results (funcall function ring descriptors octets positions 1 results)) 0))))
      (and (known-p #'send-through-ring)
           (known-p #'receive-through-ring)
           (= (- +ebadf+) (aref (close-through-ring ring descriptors 1 results) 0))))))
