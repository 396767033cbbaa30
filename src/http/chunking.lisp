(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; A chunk that grows where it lies, since nobody knows its size before the last of it is written.
;;;;
;;;;   start               end
;;;;   size CR LF octets CR LF         RFC 9112, section 7.1
;;;;
;;;; Invariant: save while the caller puts octets into it, it is a whole chunk, which may be sent at
;;;; any time.

(declaim (inline size-line-length))
(defun size-line-length (size)
  "How many octets the line with SIZE takes."
  (declare (type content-size size))
  (+ 2 (ceiling (integer-length size) 4)))

(defun chunk-room (size room)
  "How many octets more the chunk of SIZE octets, 0 for none yet, may get where ROOM octets are for
all of it, the line with its size and its end included."
  (declare (type index size room) #.*plain-policy*)
  (max 0 (- room (size-line-length room) size 2)))

(defun lengthen-chunk (octets start size count)
  "Makes the chunk of SIZE octets that begins at START of OCTETS, 0 for none yet, one of COUNT more,
at least 1.  Returns where in OCTETS the caller is to put these, and where the chunk ends.  Signals
an error where OCTETS has no room for it; see CHUNK-ROOM."
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
  "A chunk of OCTETS, at least one, as a fresh vector of octets (RFC 9112, section 7.1)."
  (declare (type octets octets) #.*plain-policy*)
  (let* ((size (length octets))
         (chunk (make-octets (+ (size-line-length size) size 2))))
    (replace chunk octets :start1 (lengthen-chunk chunk 0 0 size))
    chunk))
