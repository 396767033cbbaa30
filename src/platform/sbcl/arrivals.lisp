(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; How the system stops to begin connections to a listener that is going to be closed, for SBCL on
;;;; Linux.
;;;;
;;;; A listener that is closed resets the connections that the system has accepted for it and those
;;;; whose handshake is under way, and their clients may have sent requests already.  So before it
;;;; is closed, a filter drops the segments that begin a handshake, and all else passes.  A client
;;;; whose first segment was dropped sends it again after a second; by then the system refuses it,
;;;; or gives it to another process that listens on the same port.

(defconstant +so-attach-filter+ 26)

(defparameter *no-first-segment*
  ;; struct sock_filter of <linux/filter.h>: code, jumps if true and if false, constant.
  '((#x30 0 0 13)                       ; load the octet of flags of the TCP header
    (#x54 0 0 #x12)                     ; SYN and ACK
    (#x15 0 1 #x02)                     ; SYN alone?
    (#x06 0 0 0)                        ; drop it
    (#x06 0 0 #xFFFFFFFF))              ; let it pass
  "A program of the classic Berkeley packet filter.")

(defun filter-octets (program)
  "PROGRAM as the system wants it."
  (let ((octets (make-octets (* 8 (length program)))))
    (sb-sys:with-pinned-objects (octets)
      (loop for (code if-true if-false constant) in program
            for place = (sb-sys:vector-sap octets) then (sb-sys:sap+ place 8)
            do (setf (sb-sys:sap-ref-16 place 0) code
                     (sb-sys:sap-ref-8 place 2) if-true
                     (sb-sys:sap-ref-8 place 3) if-false
                     (sb-sys:sap-ref-32 place 4) constant)))
    octets))

(defun attach-filter (descriptor program)
  "Has the system give the socket DESCRIPTOR only what PROGRAM lets pass.  Returns 0 or minus an
error number."
  (let ((octets (filter-octets program)))
    (sb-sys:with-pinned-objects (octets)
      ;; struct sock_fprog: the number of instructions, and their address.
      (sb-alien:with-alien ((given (array (sb-alien:unsigned 64) 2)))
        (setf (sb-alien:deref given 0) (length program)
              (sb-alien:deref given 1) (sb-sys:sap-int (sb-sys:vector-sap octets)))
        (system-call "setsockopt" sb-alien:int (sb-alien:int descriptor)
                     (sb-alien:int +sol-socket+) (sb-alien:int +so-attach-filter+)
                     ((* (array (sb-alien:unsigned 64) 2)) (sb-alien:addr given))
                     (sb-alien:int 16))))))

(defmethod stop-arrivals ((listener usocket:stream-server-usocket))
  ;; Where the filter is refused, connections that come last may be reset, as they were without it.
  (attach-filter (listener-descriptor listener) *no-first-segment*)
  (defer-accepts listener 0)            ; what has come without an octet comes now
  t)

(defmethod stop-arrivals ((listener path-listener))
  (remove-path listener)
  t)

(defmethod stop-arrivals ((listener inherited-listener))
  nil)
