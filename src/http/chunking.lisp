(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; A chunk that grows in place: its size is known only after its last octet is written.
;;;;
;;;;   start               end
;;;;   size CR LF octets CR LF         RFC 9112, section 7.1
;;;;
;;;; Invariant: the chunk is complete and can be sent at any time, except while the caller writes
;;;; octets into it.

(declaim (inline size-line-length))
(defun size-line-length (size)
  "The number of octets of the line with SIZE."
  (declare (type content-size size))
  (+ 2 (ceiling (integer-length size) 4)))

(defun chunk-room (size room)
  "The number of octets that can be added to the chunk of SIZE octets, 0 for none yet, if all of it,
with its size line and its end, has to fit into ROOM octets."
  (declare (type index size room) #.*plain-policy*)
  (max 0 (- room (size-line-length room) size 2)))

(defun lengthen-chunk (octets start size count)
  "Lengthens the chunk of SIZE octets, 0 for none yet, that begins at START of OCTETS, by COUNT
octets, at least 1.  Returns the position where the caller has to write the new octets, and the end
of the chunk.  Signals an error if OCTETS has no room for the chunk; see CHUNK-ROOM."
  (declare (type octets octets) (type index start size count) #.*plain-policy*)
  (let* ((grown (+ size count))
         (former (+ start (size-line-length size)))
         (first (+ start (size-line-length grown)))
         (last (+ first grown)))
    (check-range octets start (+ last 2))
    (unless (or (zerop size) (= first former)) ; the line got longer
      (replace octets octets :start1 first :start2 former :end2 (+ former size)))
    (put-line-end octets (put-hexadecimal octets start grown))
    (values (+ first size) (put-line-end octets last))))

(defun chunk-of (octets)
  "A fresh vector of octets: a chunk with OCTETS, at least one, as its data (RFC 9112, section
7.1)."
  (declare (type octets octets) #.*plain-policy*)
  (let* ((size (length octets))
         (chunk (make-octets (+ (size-line-length size) size 2))))
    (replace chunk octets :start1 (lengthen-chunk chunk 0 0 size))
    chunk))
