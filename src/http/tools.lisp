(in-package #:hunchentoot-recycling-taskmaster.http)

;;; What the other files of this storey are written with.

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defun accessor-name (structure slot)
    "The name of the accessor of SLOT that DEFSTRUCT makes for STRUCTURE."
    (intern (format nil "~A-~A" structure slot) (symbol-package structure)))

  (defun slot-without-documentation (slot)
    "The slot description SLOT as DEFSTRUCT wants it."
    (destructuring-bind (name initial-value &rest options) slot
      (let ((options (copy-list options)))
        (remf options :documentation)
        (list* name initial-value options))))

  (defun ascii-octets (string)
    "A fresh vector of the character codes of STRING, which has no code over 127."
    (map 'octets #'char-code string)))

(defmacro define-record (name-and-options documentation &rest slots)
  "DEFSTRUCT, with the DOCUMENTATION of each of SLOTS given to its accessor."
  (let ((name (if (consp name-and-options) (first name-and-options) name-and-options)))
    `(progn
       (defstruct ,name-and-options
         ,documentation
         ,@(mapcar #'slot-without-documentation slots))
       ,@(loop for (slot nil . options) in slots
               for text = (getf options :documentation)
               when text
                 collect `(setf (documentation ',(accessor-name name slot) 'function) ,text))
       ',name)))

(declaim (inline check-range))
(defun check-range (octets start end)
  "Signals an error unless OCTETS is a vector of octets with the range [START, END)."
  (unless (and (typep octets 'octets)
               (typep start 'index)
               (typep end 'index)
               (<= start end (length octets)))
    (error "[~S, ~S) is no range of octets in ~S." start end (type-of octets))))

;;; Groups (see OCTET-GROUP): where a sum or a difference of two goes beyond an octet, it
;;; spoils only octets behind it, which nobody looks at any more.

(defmacro in-each (octet)
  "The group that has OCTET in each place."
  `(* ,octet ,(loop repeat +group-size+
                    for group = 1 then (+ 1 (ash group 8))
                    finally (return group))))

(defmacro group+ (group other)
  `(ldb (byte ,(* 8 +group-size+) 0) (+ ,group ,other)))

(defmacro group- (group other)
  `(ldb (byte ,(* 8 +group-size+) 0) (- ,group ,other)))
