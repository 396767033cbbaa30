(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Octets by groups that every Lisp has small numbers for; sbcl/octets.lisp has the same by
;;;; machine words.

(defconstant +group-size+ 4
  "How many octets an OCTET-GROUP has.")

(deftype octet-group ()
  "Several octets in one number, the first in its lowest bits."
  '(unsigned-byte 32))

(declaim (inline octet-group))
(defun octet-group (octets position)
  "The group of the octets that OCTETS has from POSITION on, of which there must be enough."
  (declare (type octets octets) (type index position))
  (logior (aref octets position)
          (ash (aref octets (+ position 1)) 8)
          (ash (aref octets (+ position 2)) 16)
          (ash (aref octets (+ position 3)) 24)))

(declaim (inline (setf octet-group)))
(defun (setf octet-group) (group octets position)
  "Makes GROUP the octets that OCTETS has from POSITION on, of which there must be enough."
  (declare (type octet-group group) (type octets octets) (type index position))
  (dotimes (place +group-size+ group)
    (setf (aref octets (+ position place)) (ldb (byte 8 (* 8 place)) group))))
