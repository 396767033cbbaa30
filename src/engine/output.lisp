(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What is left of an answer when the socket takes no more of it now: a list of parts, in the
;;;; order in which they leave.
;;;;
;;;; Invariants: the octets of a part from POSITION to END were not sent, and nobody changes
;;;; them.  The open file of a part is that part's alone, and is closed when its last octet was
;;;; sent, or by DROP-PARTS.

(defstruct (part (:include opaque))
  "A range of something that is to be sent."
  (position 0 :type index)
  (end 0 :type index))

(defstruct (octets-part (:include part)
                        (:constructor make-octets-part
                            (octets &optional (position 0) (end (length octets)))))
  "Part of a vector of OCTETS."
  (octets nil :type octets :read-only t))

(defstruct (file-part (:include part) (:constructor make-file-part (file)))
  "Part of FILE, a descriptor, from which nobody else reads."
  (file nil :type (or null fixnum)))    ; NIL when it was closed

(defun open-file-part (name)
  "A part, yet empty, of the file NAME, a string; NIL when that cannot be read."
  (uninterruptibly
    (let ((file (open-file name)))
      (unless (minusp file)
        (make-file-part file)))))

(defun drop-parts (parts)
  "Lets go of PARTS, a list, which are not to be sent."
  (dolist (part parts)
    (when (file-part-p part)
      (uninterruptibly
        (let ((file (shiftf (file-part-file part) nil)))
          (when file
            (close-descriptor file)))))))

(defun send-part (descriptor part last-p)
  "Sends what DESCRIPTOR takes now of PART, which others follow unless LAST-P.  Returns how many
octets that were, 0 when a file ends too early, or minus an error number."
  (let* ((position (part-position part))
         (end (part-end part))
         (count (etypecase part
                  (octets-part
                   (funcall (if last-p #'send-octets #'send-octets-before-more)
                            descriptor (octets-part-octets part) position end))
                  (file-part
                   (send-file descriptor (file-part-file part) position end)))))
    (when (plusp count)
      (setf (part-position part) (+ position count)))
    count))

(defconstant +eio+ 5)

(defun send-parts (descriptor parts)
  "Sends what DESCRIPTOR takes now of PARTS, a list, one after the other.  Returns those that are
left, the first of them perhaps begun; whether anything was sent; and an error number, or NIL."
  (loop with sent-p = nil
        while parts
        do (let ((part (first parts)))
             (if (= (part-position part) (part-end part))
                 (drop-parts (list (pop parts)))
                 (let ((count (send-part descriptor part (null (rest parts)))))
                   (cond ((plusp count) (setf sent-p t))
                         ((would-block-p count) (return (values parts sent-p nil)))
                         ((zerop count) (return (values parts sent-p +eio+)))
                         (t (return (values parts sent-p (- count))))))))
        finally (return (values '() sent-p nil))))
