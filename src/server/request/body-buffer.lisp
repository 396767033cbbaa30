(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A body buffer keeps content until it is read: little of it in memory, much of it in a temporary
;;;; file.
;;;;
;;;; Invariants:
;;;; - The octets that were appended and not read are MEMORY from START to FILL, then FILE from
;;;;   POSITION to SIZE.
;;;; - While there is no FILE, MEMORY has at most *BODY-BUFFER-MEMORY* octets, or more while memory
;;;;   is plentiful.  When more come, all go to the file, and MEMORY is released.  From then on
;;;;   MEMORY is a window of the file for the reader.
;;;; - ACCOUNTED octets of the client memory budget are reserved for this body buffer.

(defparameter *body-buffer-memory* (- (* 64 1024) +vector-header-octets+)
  "How many octets a body buffer keeps in memory; more go to a temporary file, unless memory is
plentiful.")

(defparameter *most-body-buffer-memory* (* 4 1024 1024)
  "How many octets a body buffer keeps in memory at most, however plentiful memory is; more go to a
temporary file.")

(defparameter *most-octets-in-files* (* 4 1024 1024 1024)
  "How many octets, an integer, of content may be in temporary files before its requests are served,
of all requests of this process together.  Beyond that, handlers are called early, and wait for the
rest of their content.")

(defvar *octets-in-files* (make-counter)
  "The number of octets in temporary files now.")

(defparameter *plenty* 1/2
  "Memory is plentiful while all waiting content takes less than this share of its limit.  A file
costs several times the processor time.")

(defconstant +least-body-buffer+ 256
  "The smallest vector of a body buffer, in octets: a client may send one octet at a time.")

(defvar *empty-memory* (make-octets 0))

(defstruct (body-buffer (:include opaque) (:constructor make-body-buffer ()) (:copier nil))
  "Octets that were received and not read, in order.  Only its owner uses it."
  (memory *empty-memory* :type octets)
  (start 0 :type index)
  (fill 0 :type index)
  (file nil :type (or null fixnum))     ; a descriptor
  (position 0 :type index)
  (size 0 :type index)
  (accounted 0 :type index))

(defun body-buffer-left (body-buffer)
  "How many octets of BODY-BUFFER were not read."
  (+ (- (body-buffer-fill body-buffer) (body-buffer-start body-buffer))
     (- (body-buffer-size body-buffer) (body-buffer-position body-buffer))))

;;; Appending

(defun octets-if-room (size)
  "A vector of SIZE octets; NIL when the heap has no room for it."
  (handler-case (make-octets size)
    (storage-condition () nil)))

(defun larger-memory (body-buffer size)
  "A vector with the octets that BODY-BUFFER has in memory, and room for at least SIZE in all; NIL
when the heap has no room for it."
  (let* ((wanted (max +least-body-buffer+ (* 2 size)))
         (memory (octets-if-room (if (<= size *body-buffer-memory*)
                                     (min *body-buffer-memory* wanted)
                                     wanted))))
    (and memory
         (replace memory (body-buffer-memory body-buffer) :end2 (body-buffer-fill body-buffer)))))

(defun ensure-memory (body-buffer size)
  "Gives the memory of BODY-BUFFER room for SIZE octets in all; NIL when the heap has none."
  (or (<= size (length (body-buffer-memory body-buffer)))
      (let ((memory (larger-memory body-buffer size)))
        (when memory
          (setf (body-buffer-memory body-buffer) memory)
          (when (> size *body-buffer-memory*)
            (account-for-memory body-buffer))
          t))))

(defun append-to-memory (body-buffer octets start end)
  "Appends OCTETS from START to END to the memory of BODY-BUFFER; NIL when the heap has no room."
  (let* ((fill (body-buffer-fill body-buffer))
         (total (+ fill (- end start))))
    (when (ensure-memory body-buffer total)
      (replace (body-buffer-memory body-buffer) octets :start1 fill :start2 start :end2 end)
      (setf (body-buffer-fill body-buffer) total)
      t)))

(defun reserve-file-octets (count)
  "Reserves COUNT octets in temporary files; NIL when there would be too many."
  (counter-add-up-to *octets-in-files* count *most-octets-in-files*))

(defun write-reserving (file position octets start end)
  "Reserves room, and writes OCTETS from START to END to FILE at POSITION; NIL when one of them
fails."
  (let ((count (- end start)))
    (and (reserve-file-octets count)
         (or (write-file-octets file position octets start end)
             (progn (counter-add *octets-in-files* (- count))
                    nil)))))

(defun append-to-file (body-buffer octets start end)
  "Appends OCTETS from START to END to the file of BODY-BUFFER; NIL when that fails."
  (uninterruptibly                      ; so that CLEAR-BODY-BUFFER releases the reservation
    (and (write-reserving (body-buffer-file body-buffer) (body-buffer-size body-buffer)
                          octets start end)
         (incf (body-buffer-size body-buffer) (- end start))
         t)))

(defun move-to-file (body-buffer)
  "Moves all octets of BODY-BUFFER, of which none was read, to a new file; NIL when that fails."
  (uninterruptibly                      ; from now on CLEAR-BODY-BUFFER closes it
    (let ((file (open-temporary-file)))
      (cond ((minusp file) nil)
            ((write-reserving file 0 (body-buffer-memory body-buffer)
                              0 (body-buffer-fill body-buffer))
             (setf (body-buffer-file body-buffer) file
                   (body-buffer-size body-buffer) (shiftf (body-buffer-fill body-buffer) 0)
                   (body-buffer-memory body-buffer) *empty-memory*)
             t)
            (t
             (close-descriptor file)
             nil)))))

(defun plenty-p (octets)
  "True when memory would be plentiful with OCTETS more in use.  Garbage counts as used: a file is
cheaper than a collection."
  (let ((budget (client-memory-budget)))
    (and budget
         (< (+ octets (client-memory-reserved)) (* *plenty* *waiting-share* budget))
         (fits-in-heap-p octets))))

(defun append-to-body-buffer (body-buffer octets start end)
  "Appends OCTETS from START to END to BODY-BUFFER, of which none was read.  NIL when neither memory
nor a file has room: then BODY-BUFFER has not changed."
  (let ((total (+ (body-buffer-fill body-buffer) (- end start))))
    (cond ((body-buffer-file body-buffer)
           (append-to-file body-buffer octets start end))
          ((and (or (<= total *body-buffer-memory*)
                    (and (<= total *most-body-buffer-memory*)
                         (plenty-p (* 2 total))))
                (append-to-memory body-buffer octets start end)))
          (t
           (and (move-to-file body-buffer)
                (append-to-file body-buffer octets start end))))))

;;; Reading

(defun compact-body-buffer (body-buffer)
  "Forgets the octets of BODY-BUFFER that were read, so that others can be appended."
  (unless (body-buffer-file body-buffer) ; then the memory is a window of the file
    (let ((start (body-buffer-start body-buffer)))
      (when (plusp start)
        (replace (body-buffer-memory body-buffer) (body-buffer-memory body-buffer)
                 :start2 start :end2 (body-buffer-fill body-buffer))
        (decf (body-buffer-fill body-buffer) start)
        (setf (body-buffer-start body-buffer) 0)))))

(defun next-window (body-buffer)
  "Reads more of the file of BODY-BUFFER into its memory, which was read to its end.  NIL when the
file has no more, cannot be read, or the heap has no room."
  (let* ((position (body-buffer-position body-buffer))
         (count (min *body-buffer-memory* (- (body-buffer-size body-buffer) position))))
    (when (plusp count)
      (when (< (length (body-buffer-memory body-buffer)) count)
        (setf (body-buffer-memory body-buffer) (or (octets-if-room count)
                                                   (return-from next-window nil))))
      (when (read-file-octets (body-buffer-file body-buffer) position
                              (body-buffer-memory body-buffer) 0 count)
        (setf (body-buffer-start body-buffer) 0
              (body-buffer-fill body-buffer) count
              (body-buffer-position body-buffer) (+ position count))
        t))))

(defun read-body-buffer (body-buffer sequence start end)
  "Moves octets of BODY-BUFFER to SEQUENCE from START, up to END.  Returns the position after the
last one.  Signals an error when the file of BODY-BUFFER cannot be read."
  (loop while (and (< start end) (plusp (body-buffer-left body-buffer)))
        do (unless (or (< (body-buffer-start body-buffer) (body-buffer-fill body-buffer))
                       (next-window body-buffer))
             (error "A temporary file cannot be read."))
           (let ((count (min (- end start)
                             (- (body-buffer-fill body-buffer) (body-buffer-start body-buffer)))))
             (replace sequence (body-buffer-memory body-buffer)
                      :start1 start
                      :start2 (body-buffer-start body-buffer)
                      :end2 (body-buffer-fill body-buffer))
             (incf (body-buffer-start body-buffer) count)
             (incf start count))
        finally (return start)))

;;; The end

(defun clear-body-buffer (body-buffer)
  "Drops all octets of BODY-BUFFER, and closes its file."
  (uninterruptibly
    (when (body-buffer-file body-buffer)
      (counter-add *octets-in-files* (- (body-buffer-size body-buffer)))
      (close-descriptor (shiftf (body-buffer-file body-buffer) nil)))
    (setf (body-buffer-memory body-buffer) *empty-memory*
          (body-buffer-start body-buffer) 0
          (body-buffer-fill body-buffer) 0
          (body-buffer-position body-buffer) 0
          (body-buffer-size body-buffer) 0)
    (account-for-memory body-buffer)))

;;; The memory of all body buffers together

(defun account-for-memory (body-buffer)
  "Adjusts the reservation of BODY-BUFFER to its memory.  NIL where all waiting octets would take
too much; then the reservation has not changed."
  (change-reservation (body-buffer-accounted body-buffer)
                      (length (body-buffer-memory body-buffer))
                      :share *waiting-share*))
