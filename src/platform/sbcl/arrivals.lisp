(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; A filter that keeps clients from beginning connections to a listener that will be closed, for
;;;; SBCL on Linux.
;;;;
;;;; When a listener is closed, the system resets its connections that were not accepted yet and
;;;; those whose handshake is under way; their clients may have sent requests already.  So before
;;;; that, a filter drops the segments that begin a handshake, and lets all others pass.  A client
;;;; whose first segment was dropped sends it again after a second.  By then the system refuses it,
;;;; or gives it to another process that listens on the same port.
;;;;
;;;; Before that, connections that the system holds until their first octets arrive are to be let
;;;; in: their handshakes do not end otherwise.  When it holds none any more, it sends its part of
;;;; the handshake once more, a second after the first time, and the client's answer ends it.

(defconstant +so-attach-filter+ 26)

(defparameter *no-first-segment*
  ;; struct sock_filter of <linux/filter.h>: code, jumps if true and if false, constant.
  '((#x30 0 0 13)                       ; load the octet of flags of the TCP header
    (#x54 0 0 #x12)                     ; mask SYN and ACK
    (#x15 0 1 #x02)                     ; is it SYN without ACK?
    (#x06 0 0 0)                        ; yes: drop the segment
    (#x06 0 0 #xFFFFFFFF))              ; no: let it pass
  "A program of the classic Berkeley packet filter.")

(defun filter-octets (program)
  "PROGRAM in the format of the system, a vector of octets."
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
  "Attaches the filter PROGRAM to the socket DESCRIPTOR, which then receives only segments that pass
it.  Returns 0 or minus an error number."
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

(defun accepts-deferred-p (listener)
  "True if the system holds new connections of LISTENER until their first octets arrive."
  (plusp (socket-option (listener-descriptor listener) +tcp-defer-accept+ +ipproto-tcp+)))

(defmethod admit-held ((listener usocket:stream-server-usocket))
  (when (accepts-deferred-p listener)
    (defer-accepts listener 0)
    t))

(defmethod admit-held ((listener path-listener))
  nil)

(defmethod admit-held ((listener inherited-listener))
  nil)

(defmethod stop-arrivals ((listener usocket:stream-server-usocket))
  ;; If the system refuses the filter, the last connections may be reset; no more can be done.
  (attach-filter (listener-descriptor listener) *no-first-segment*)
  t)

(defmethod stop-arrivals ((listener path-listener))
  (remove-path listener)
  t)

(defmethod stop-arrivals ((listener inherited-listener))
  nil)
