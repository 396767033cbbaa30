(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Groups of octets that are fixnums in every Lisp; sbcl/octets.lisp has groups of machine words.

(defconstant +group-size+ 4
  "The number of octets in an OCTET-GROUP.")

(deftype octet-group ()
  "Several octets in one number, the first in its lowest bits."
  '(unsigned-byte 32))

(declaim (inline octet-group))
(defun octet-group (octets position)
  "The group of octets that begins in OCTETS at POSITION.  It must lie within OCTETS."
  (declare (type octets octets) (type index position))
  (logior (aref octets position)
          (ash (aref octets (+ position 1)) 8)
          (ash (aref octets (+ position 2)) 16)
          (ash (aref octets (+ position 3)) 24)))

(declaim (inline (setf octet-group)))
(defun (setf octet-group) (group octets position)
  "Writes GROUP to OCTETS from POSITION on.  It must lie within OCTETS."
  (declare (type octet-group group) (type octets octets) (type index position))
  (dotimes (place +group-size+ group)
    (setf (aref octets (+ position place)) (ldb (byte 8 (* 8 place)) group))))
