(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Small answers of several connections, which one call of the system sends.
;;;;
;;;;   what is done with a batch        by                                    which has LOCKED-P
;;;;   an answer is added               its worker                            meanwhile
;;;;   all are sent, and finished with  its worker, or the sentinel, when     until SENT-P, and again to
;;;;                                    that takes too long                   empty it
;;;;
;;;; Invariants:
;;;; - Whose answer a batch has is owned by its worker, until it is finished with.
;;;; - The octets of answer N are those from position N to the next.
;;;; - Nobody adds to a batch that was SENT-P.

(defconstant +batch-octets+ (* 32 1024)
  "How many octets the answers of a batch have at most.")

(defstruct (output-batch (:include opaque) (:constructor make-output-batch (ring)))
  "Answers that were held."
  (ring nil :read-only t)               ; see the platform's MAKE-RING
  (locked-p nil)
  (sent-p nil)
  (count 0 :type (integer 0 #.+ring-size+))
  (began 0 :type fixnum)                ; when the first was added, in MICROSECONDS
  (long-share 0.0 :type single-float)   ; of the batches before, how many were held for long
  (tick 0 :type fixnum)                 ; at which that was looked at last
  (connections (make-array +ring-size+ :initial-element nil) :type simple-vector :read-only t)
  (descriptors (make-array +ring-size+ :element-type 'fixnum :initial-element 0)
   :type ring-descriptors :read-only t)
  (positions (make-array (1+ +ring-size+) :element-type 'fixnum :initial-element 0)
   :type ring-positions :read-only t)
  (results (make-array +ring-size+ :element-type 'fixnum :initial-element 0)
   :type ring-results :read-only t)
  (octets (make-octets +batch-octets+) :type octets :read-only t))

(declaim (inline batch-locked-p unlock-batch))
(defun batch-locked-p (batch)
  "Locks BATCH; NIL where somebody else has done so."
  (compare-and-set (output-batch-locked-p batch) nil t))

(defun unlock-batch (batch)
  (compare-and-set (output-batch-locked-p batch) t nil))

(defun lock-batch (batch)
  "Locks BATCH.  Who has it makes calls of the system that do not wait, and nothing else."
  (loop until (batch-locked-p batch)
        do (bt:thread-yield)))

(defun added-to-batch-p (batch connection octets start end)
  "Adds an answer to CONNECTION, OCTETS from START to END, to BATCH; NIL where there is no room for it.  The caller cannot
be interrupted."
  (declare (type octets octets) (type index start end))
  (when (batch-locked-p batch)
    (prog1 (let* ((place (output-batch-count batch))
                  (positions (output-batch-positions batch))
                  (from (aref positions place)))
             (when (and (not (output-batch-sent-p batch)) ; a program that was called then may visit others
                        (< place +ring-size+)
                        (<= (+ from (- end start)) +batch-octets+))
               (replace (output-batch-octets batch) octets :start1 from :start2 start :end2 end)
               (when (zerop place)
                 (setf (output-batch-began batch) (microseconds)))
               (setf (svref (output-batch-connections batch) place) connection
                     (aref (output-batch-descriptors batch) place) (connection-descriptor connection)
                     (aref positions (1+ place)) (+ from (- end start))
                     (output-batch-count batch) (1+ place))
               t))
      (unlock-batch batch))))

(defun share-with (share found-p weight)
  "SHARE, of those of whom something was found lately, with another one of whom it was if FOUND-P."
  (declare (type single-float share weight))
  (+ (* (- 1.0 weight) share) (if found-p weight 0.0)))

;;; For how long answers are held
;;;
;;; Where handlers take long, though nobody looks stuck, the answers before would wait for them.  So it is remembered how
;;; many batches were held for long.  Some are, also of instant handlers, whose thread has lost its processor; that is why
;;; one tells nothing.

(defparameter *held-microseconds* 200
  "After how long the answers of a batch are sent before its worker handles something else.")

(defparameter *most-long* 0.5
  "With which share of batches that were held for long a worker holds no answers for some time.")

(defun held-long-p (batch now)
  "True when the answers of BATCH have been held for long, NOW, in MICROSECONDS."
  (> (- now (output-batch-began batch)) *held-microseconds*))

(defun note-batch-sent (batch)
  "Notes for how long the answers of BATCH, which its worker sends, were held."
  (setf (output-batch-long-share batch)
        (share-with (output-batch-long-share batch) (held-long-p batch (microseconds)) 0.125)))

(defun note-batch-late (batch)
  "Notes that the answers of BATCH were held so long that its worker did not send them: it holds none for some ticks."
  (setf (output-batch-long-share batch) 1.0))

(defun held-briefly-p (batch tick)
  "True when most batches of the worker of BATCH are sent soon; or were not for some ticks, so that it is tried again, at
TICK of the sentinel's clock."
  (unless (= tick (output-batch-tick batch))
    (setf (output-batch-tick batch) tick
          (output-batch-long-share batch) (share-with (output-batch-long-share batch) nil 0.03125)))
  (< (output-batch-long-share batch) *most-long*))

;;; Sending

(defun send-answer (batch place)
  "Sends answer PLACE of BATCH by itself; returns what SEND-OCTETS does."
  (let ((positions (output-batch-positions batch)))
    (send-octets (aref (output-batch-descriptors batch) place) (output-batch-octets batch)
                 (aref positions place) (aref positions (1+ place)))))

(defun send-answers-singly (batch)
  "Sends the answers of BATCH, one by one; leaves the results in it."
  (dotimes (place (output-batch-count batch))
    (setf (aref (output-batch-results batch) place) (send-answer batch place))))

(defun send-answers (batch)
  "Sends the answers of BATCH, which its worker has locked, together; leaves the results in it."
  (let ((count (output-batch-count batch))
        (results (output-batch-results batch)))
    (cond ((= 1 count)
           (send-answers-singly batch))
          (t
           (send-through-ring (output-batch-ring batch) (output-batch-descriptors batch)
                              (output-batch-octets batch) (output-batch-positions batch) count results)
           (dotimes (place count)
             (when (eql +not-made+ (aref results place))
               (setf (aref results place) (send-answer batch place))))))))

(defun answer-left (batch place)
  "The octets of answer PLACE of BATCH that were not sent, fresh; NIL where all were.  Second value: the error
number that has come in their place, or NIL."
  (let* ((positions (output-batch-positions batch))
         (result (aref (output-batch-results batch) place))
         (from (+ (aref positions place) (max 0 result)))
         (end (aref positions (1+ place))))
    (cond ((= from end) nil)
          ((or (plusp result) (would-block-p result))
           (subseq (output-batch-octets batch) from end))
          (t (values nil (- result))))))

(defun call-for-answers (function batch)
  "Calls FUNCTION with the connection and the place of each answer of BATCH, as CALL-FOR-ALL does."
  (let ((next 0)
        (count (output-batch-count batch)))
    (declare (type (integer 0 #.+ring-size+) next count))
    (flet ((call-for-next ()
             (when (< next count)
               (let ((place next))
                 (incf next)
                 (funcall function (svref (output-batch-connections batch) place) place))
               t)))
      (declare (dynamic-extent #'call-for-next))
      (call-to-end #'call-for-next))))

(defun empty-batch (batch)
  "Makes BATCH, which the caller has locked, one without answers."
  (fill (output-batch-connections batch) nil)
  (setf (output-batch-count batch) 0
        (output-batch-sent-p batch) nil))
