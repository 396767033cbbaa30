(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What is left of an answer when the socket takes no more of it now: a list of parts, in the
;;;; order in which they leave.
;;;;
;;;; Invariants: the octets of a part from POSITION to END were not sent, and nobody changes
;;;; them.

(defstruct part
  "A range of something that is to be sent."
  (position 0 :type index)
  (end 0 :type index))

(defstruct (octets-part (:include part)
                        (:constructor make-octets-part
                            (octets &optional (position 0) (end (length octets)))))
  "Part of a vector of OCTETS."
  (octets nil :type octets :read-only t))

(defun send-part (descriptor part last-p)
  "Sends what DESCRIPTOR takes now of PART, which others follow unless LAST-P.  Returns how many
octets that were, or minus an error number."
  (let ((count (funcall (if last-p #'send-octets #'send-octets-before-more)
                        descriptor (octets-part-octets part)
                        (part-position part) (part-end part))))
    (when (plusp count)
      (incf (part-position part) count))
    count))

(defun send-parts (descriptor parts)
  "Sends what DESCRIPTOR takes now of PARTS, a list, one after the other.  Returns those that are
left, the first of them perhaps begun; whether anything was sent; and an error number, or NIL."
  (loop with sent-p = nil
        while parts
        do (let ((part (first parts)))
             (if (= (part-position part) (part-end part))
                 (pop parts)
                 (let ((count (send-part descriptor part (null (rest parts)))))
                   (cond ((plusp count) (setf sent-p t))
                         ((would-block-p count) (return (values parts sent-p nil)))
                         (t (return (values parts sent-p (- count))))))))
        finally (return (values '() sent-p nil))))
