(in-package #:hunchentoot-recycling-taskmaster.platform)

;;; hot: octets by machine words, for SBCL on little-endian processors.  No function here checks its
;;; arguments.

(defconstant +group-size+ 8
  "The number of octets in an OCTET-GROUP.")

(deftype octet-group ()
  "Several octets in one number, the first in its lowest bits."
  '(unsigned-byte 64))

(declaim (inline octet-group))
(defun octet-group (octets position)
  "The group of octets that begins in OCTETS at POSITION.  It must lie within OCTETS."
  (declare (type octets octets) (type index position) #.*hot-policy*)
  (sb-sys:with-pinned-objects (octets)
    (sb-sys:sap-ref-64 (sb-sys:vector-sap octets) position)))

(declaim (inline (setf octet-group)))
(defun (setf octet-group) (group octets position)
  "Writes GROUP to OCTETS from POSITION on.  It must lie within OCTETS."
  (declare (type octet-group group) (type octets octets) (type index position) #.*hot-policy*)
  (sb-sys:with-pinned-objects (octets)
    (setf (sb-sys:sap-ref-64 (sb-sys:vector-sap octets) position) group)))
