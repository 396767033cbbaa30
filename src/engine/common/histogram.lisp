(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Histograms of durations, and what else is counted of requests.
;;;;
;;;; A TALLY-SHEET counts durations by their length.  Each worker has one of its own: so a request
;;;; takes no lock, and writes to no cache line that another processor writes to.  A reader adds the
;;;; sheets up.  The number of durations comes from the same counts, so both always agree.

(declaim (type simple-vector *bucket-bounds*))
(defparameter *bucket-bounds*
  (vector 100 250 500 1000 2500 5000 10000 25000 50000 100000 250000 500000
          1000000 2500000 5000000 10000000)
  "The upper bounds of the buckets of all histograms, in MICROSECONDS.  One more bucket counts what
takes longer.")

(defconstant +buckets+ 17
  "How many buckets a histogram has.")

(defconstant +request-kinds+ 48
  "How many kinds of requests there are for the layer above: see COUNT-REQUEST.")

(defconstant +sheet-places+ 67          ; +BUCKETS+ + 2 + +REQUEST-KINDS+
  "How many places of a tally sheet are written.")

(deftype tally-sheet ()
  "The counts of the buckets, the sum of all durations in MICROSECONDS, the sum of all octets sent,
and the counts of the kinds of requests.  The rest of the vector is a cache line that nobody writes,
between this sheet and the next object in memory."
  `(simple-array (unsigned-byte 62) (,(+ +sheet-places+ 8))))

(defun make-tally-sheet ()
  (make-array (+ +sheet-places+ 8) :element-type '(unsigned-byte 62) :initial-element 0))

(declaim (inline bucket-of))
(defun bucket-of (duration)
  "The index of the bucket for DURATION, in MICROSECONDS."
  (declare (type (unsigned-byte 62) duration))
  (loop with bounds = *bucket-bounds*
        for index of-type fixnum from 0 below (1- +buckets+)
        when (<= duration (the (unsigned-byte 62) (svref bounds index)))
          return index
        finally (return (1- +buckets+))))

(defun note-duration (sheet duration)
  "Counts DURATION, in MICROSECONDS, on SHEET, which only the current thread writes.  A reader may
find it in the sum before it is counted, but not the other way round."
  (declare (type tally-sheet sheet) (type (unsigned-byte 62) duration))
  (incf (aref sheet +buckets+) duration)
  (incf (aref sheet (bucket-of duration))))

(defun note-request (sheet duration kind octets)
  "Counts a request of KIND, an index below +REQUEST-KINDS+, on SHEET, as NOTE-DURATION does with
DURATION; and OCTETS that were sent."
  (declare (type tally-sheet sheet) (type (mod #.+request-kinds+) kind) (type fixnum octets))
  (incf (aref sheet (+ +buckets+ 2 kind)))
  (incf (aref sheet (1+ +buckets+)) octets)
  (note-duration sheet duration))

(defun octets-counted (sheet)
  "How many octets were sent, according to SHEET."
  (aref sheet (1+ +buckets+)))

(defun kinds-counted (sheet)
  "How many requests of each kind SHEET has counted, a vector."
  (subseq sheet (+ +buckets+ 2) +sheet-places+))

(defun add-sheet (sheet other)
  "Adds the counts of the sheet OTHER to SHEET, and returns SHEET."
  (map-into sheet #'+ sheet other))

(defun durations-counted (sheet)
  "How many durations SHEET has counted."
  (loop for index below +buckets+ sum (aref sheet index)))

(defun histogram (sheet)
  "A plist for people of SHEET, which nobody writes any more: the :COUNT of durations, their :SUM in
seconds, and in :BUCKETS, a list, each bound in seconds and how many durations were not longer."
  (list :count (durations-counted sheet)
        :sum (/ (aref sheet +buckets+) 1000000d0)
        :buckets (loop for bound across *bucket-bounds*
                       for index from 0
                       sum (aref sheet index) into count
                       collect (/ bound 1000000.0)
                       collect count)))
