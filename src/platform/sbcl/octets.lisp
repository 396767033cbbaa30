(in-package #:hunchentoot-recycling-taskmaster.platform)

;;; hot: octets by machine words, for SBCL where the lowest octet comes first.  Nothing here
;;; checks its arguments.

(defconstant +group-size+ 8
  "How many octets an OCTET-GROUP has.")

(deftype octet-group ()
  "Several octets in one number, the first in its lowest bits."
  '(unsigned-byte 64))

(declaim (inline octet-group))
(defun octet-group (octets position)
  "The group of the octets that OCTETS has from POSITION on, of which there must be enough."
  (declare (type octets octets) (type index position) #.*hot-policy*)
  (sb-sys:with-pinned-objects (octets)
    (sb-sys:sap-ref-64 (sb-sys:vector-sap octets) position)))

(declaim (inline (setf octet-group)))
(defun (setf octet-group) (group octets position)
  "Makes GROUP the octets that OCTETS has from POSITION on, of which there must be enough."
  (declare (type octet-group group) (type octets octets) (type index position) #.*hot-policy*)
  (sb-sys:with-pinned-objects (octets)
    (setf (sb-sys:sap-ref-64 (sb-sys:vector-sap octets) position) group)))
