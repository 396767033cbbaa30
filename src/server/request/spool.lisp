(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Octets that came, to be read later: a few in memory, many in a temporary file.
;;;;
;;;; Invariants:
;;;; - MEMORY from START to FILL, then FILE from POSITION to SIZE, is what was appended and not read.
;;;; - While there is no FILE, MEMORY has at most *SPOOL-MEMORY* octets, or more while memory is plentiful.
;;;;   When more come, all go to the file, and MEMORY is given up; from then on it is a window of the file
;;;;   for who reads.
;;;; - ACCOUNTED octets of the budget of all clients are reserved for this spool.

(defparameter *spool-memory* (- (* 64 1024) +vector-header-octets+)
  "How many octets a spool has in memory; more go to a temporary file, unless memory is plentiful.")

(defparameter *most-spool-memory* (* 4 1024 1024)
  "How many octets a spool has in memory at most, however plentiful that is; more go to a temporary file.")

(defparameter *most-octets-in-files* (* 4 1024 1024 1024)
  "How many octets, an integer, of content that is received before its request is served may be in temporary files, of all
requests of this process together.  Where there would be more, handlers are called, and wait for the rest of their content.")

(defvar *octets-in-files* (make-counter)
  "How many are.")

(defparameter *plenty* 1/2
  "Memory is plentiful while all content together has less than this share of what it may have while it
waits: a file costs several times the processor time.")

(defconstant +least-spool+ 256
  "The least octets that are allocated: a client may send one at a time.")

(defvar *empty-memory* (make-octets 0))

(defstruct (spool (:include opaque) (:constructor make-spool ()) (:copier nil))
  "Octets that came and were not read, in order.  Its owner alone touches it."
  (memory *empty-memory* :type octets)
  (start 0 :type index)
  (fill 0 :type index)
  (file nil :type (or null fixnum))     ; a descriptor
  (position 0 :type index)
  (size 0 :type index)
  (accounted 0 :type index))

(defun spool-left (spool)
  "How many octets of SPOOL were not read."
  (+ (- (spool-fill spool) (spool-start spool))
     (- (spool-size spool) (spool-position spool))))

;;; Appending

(defun octets-if-room (size)
  "A vector of SIZE octets; NIL when the heap has no room for it."
  (handler-case (make-octets size)
    (storage-condition () nil)))

(defun larger-memory (spool size)
  "A vector with the octets that SPOOL has in memory, and room for SIZE in all, or more; NIL when the heap has
no room for it."
  (let* ((wanted (max +least-spool+ (* 2 size)))
         (memory (octets-if-room (if (<= size *spool-memory*)
                                     (min *spool-memory* wanted)
                                     wanted))))
    (and memory
         (replace memory (spool-memory spool) :end2 (spool-fill spool)))))

(defun memory-made-p (spool size)
  "Sees to it that the memory of SPOOL has room for SIZE octets; NIL when the heap has none."
  (or (<= size (length (spool-memory spool)))
      (let ((memory (larger-memory spool size)))
        (when memory
          (setf (spool-memory spool) memory)
          (when (> size *spool-memory*)
            (account-for-memory spool))
          t))))

(defun append-to-memory (spool octets start end)
  (let* ((fill (spool-fill spool))
         (total (+ fill (- end start))))
    (when (memory-made-p spool total)
      (replace (spool-memory spool) octets :start1 fill :start2 start :end2 end)
      (setf (spool-fill spool) total)
      t)))

(defun reserve-file-octets (count)
  "Reserves COUNT octets of those that may be in files; NIL when they may not."
  (counter-add-up-to *octets-in-files* count *most-octets-in-files*))

(defun write-reserving (file position octets start end)
  "Writes OCTETS from START to END to FILE at POSITION; NIL when that cannot be, or may not."
  (let ((count (- end start)))
    (and (reserve-file-octets count)
         (or (write-file-octets file position octets start end)
             (progn (counter-add *octets-in-files* (- count))
                    nil)))))

(defun append-to-file (spool octets start end)
  (uninterruptibly                      ; so that CLEAR-SPOOL gives back what was reserved
    (and (write-reserving (spool-file spool) (spool-size spool) octets start end)
         (incf (spool-size spool) (- end start))
         t)))

(defun move-to-file (spool)
  "Lets SPOOL, of which nothing was read, have all of its octets in a file; NIL when that cannot be."
  (uninterruptibly                      ; until it is closed by CLEAR-SPOOL
    (let ((file (open-temporary-file)))
      (cond ((minusp file) nil)
            ((write-reserving file 0 (spool-memory spool) 0 (spool-fill spool))
             (setf (spool-file spool) file
                   (spool-size spool) (shiftf (spool-fill spool) 0)
                   (spool-memory spool) *empty-memory*)
             t)
            (t
             (close-descriptor file)
             nil)))))

(defun plenty-p (octets)
  "True when memory is plentiful, though OCTETS more were taken.  Garbage is in the way as well: it is not
collected for what can be in a file."
  (let ((budget (client-memory-budget)))
    (and budget
         (< (+ octets (client-memory-reserved)) (* *plenty* *waiting-share* budget))
         (fits-in-heap-p octets))))

(defun append-to-spool (spool octets start end)
  "Appends OCTETS from START to END to SPOOL, of which nothing was read.  NIL when there is no room for
them, neither in memory nor in a file: SPOOL is as it was."
  (let ((total (+ (spool-fill spool) (- end start))))
    (cond ((spool-file spool)
           (append-to-file spool octets start end))
          ((and (or (<= total *spool-memory*)
                    (and (<= total *most-spool-memory*)
                         (plenty-p (* 2 total))))
                (append-to-memory spool octets start end)))
          (t
           (and (move-to-file spool)
                (append-to-file spool octets start end))))))

;;; Reading

(defun compact-spool (spool)
  "Forgets what was read of SPOOL, so that octets can be appended to it."
  (unless (spool-file spool)            ; the memory is a window of that
    (let ((start (spool-start spool)))
      (when (plusp start)
        (replace (spool-memory spool) (spool-memory spool) :start2 start :end2 (spool-fill spool))
        (decf (spool-fill spool) start)
        (setf (spool-start spool) 0)))))

(defun next-window (spool)
  "Reads more of the file of SPOOL, whose memory was read to its end.  NIL when that has no more, or
cannot be read, or the heap has no room."
  (let* ((position (spool-position spool))
         (count (min *spool-memory* (- (spool-size spool) position))))
    (when (plusp count)
      (when (< (length (spool-memory spool)) count)
        (setf (spool-memory spool) (or (octets-if-room count)
                                       (return-from next-window nil))))
      (when (read-file-octets (spool-file spool) position (spool-memory spool) 0 count)
        (setf (spool-start spool) 0
              (spool-fill spool) count
              (spool-position spool) (+ position count))
        t))))

(defun read-spool (spool sequence start end)
  "Moves octets of SPOOL to SEQUENCE from START, up to END; returns the position after the last one.
Signals an error when the file of SPOOL cannot be read."
  (loop while (and (< start end) (plusp (spool-left spool)))
        do (unless (or (< (spool-start spool) (spool-fill spool)) (next-window spool))
             (error "A temporary file cannot be read."))
           (let ((count (min (- end start) (- (spool-fill spool) (spool-start spool)))))
             (replace sequence (spool-memory spool)
                      :start1 start :start2 (spool-start spool) :end2 (spool-fill spool))
             (incf (spool-start spool) count)
             (incf start count))
        finally (return start)))

;;; The end

(defun clear-spool (spool)
  "Drops all octets of SPOOL, and closes its file."
  (uninterruptibly
    (when (spool-file spool)
      (counter-add *octets-in-files* (- (spool-size spool)))
      (close-descriptor (shiftf (spool-file spool) nil)))
    (setf (spool-memory spool) *empty-memory*
          (spool-start spool) 0
          (spool-fill spool) 0
          (spool-position spool) 0
          (spool-size spool) 0)
    (account-for-memory spool)))

;;; What all spools have in memory together

(defun account-for-memory (spool)
  "Reserves as many octets as SPOOL has in memory.  NIL where what waits would have too much then; as many as before are
reserved in that case."
  (uninterruptibly
    (let* ((size (length (spool-memory spool)))
           (more (- size (spool-accounted spool))))
      (when (if (plusp more)
                (reserve-client-memory more *waiting-share*)
                (progn (release-client-memory (- more)) t))
        (setf (spool-accounted spool) size)
        t))))
