(in-package #:hunchentoot-recycling-taskmaster.http)

;;; Helpers for the other files of this layer.

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun ascii-octets (string)
    "A fresh vector of the character codes of STRING, which must all be below 128."
    (map 'octets #'char-code string)))

(declaim (inline check-range))
(defun check-range (octets start end)
  "Signals an error unless OCTETS is a simple vector of octets with the range [START, END)."
  (unless (and (typep octets 'octets)
               (typep start 'index)
               (typep end 'index)
               (<= start end (length octets)))
    (error "[~S, ~S) is not a range of octets in ~S." start end (type-of octets))))

;;; Groups (see OCTET-GROUP).  A carry out of one octet in a sum or a difference changes only later
;;; octets of the group, which the callers do not use then.

(defmacro in-each (octet)
  "The group that has OCTET in each place."
  `(* ,octet ,(loop repeat +group-size+
                    for group = 1 then (+ 1 (ash group 8))
                    finally (return group))))

(defmacro group+ (group other)
  `(ldb (byte ,(* 8 +group-size+) 0) (+ ,group ,other)))

(defmacro group- (group other)
  `(ldb (byte ,(* 8 +group-size+) 0) (- ,group ,other)))
