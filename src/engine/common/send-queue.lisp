(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The send queue of a connection holds the octets that its socket has not taken yet: a list of
;;;; parts, in the order in which they leave.  The owner of the connection adds parts and flushes
;;;; the queue: a handler through its buffered connection, while it serves a request; the engine
;;;; afterwards, whenever the socket takes more.
;;;;
;;;; Invariants: the octets of a part from POSITION to END were not sent, and nobody changes
;;;; them.  The open file of a part is that part's alone, and is closed when its last octet was
;;;; sent, or by DROP-PARTS.

(defstruct (part (:include opaque))
  "A range of something that is to be sent."
  ;; The position of the first unsent octet of PART.
  (position 0 :type index)
  ;; The position behind the last octet of PART.
  (end 0 :type index))

(defstruct (octets-part (:include part)
                        (:constructor make-octets-part
                            (octets &optional (position 0) (end (length octets)))))
  "Part of a vector of OCTETS."
  (octets nil :type octets :read-only t))

(defstruct (file-part (:include part) (:constructor make-file-part (file)))
  "Part of FILE, a descriptor, from which nobody else reads."
  ;; The descriptor that FILE-PART is read from, an integer; NIL when it was closed.
  (file nil :type (or null fixnum)))

(defstruct (step-part (:include part (end 1)) (:constructor make-step-part (function)))
  "Something that has to be done when a descriptor takes octets: FUNCTION, without arguments,
returns true when it is, and NIL when the descriptor takes no more now."
  (function nil :type function :read-only t))

(defun open-file-part (name)
  "A FILE-PART, yet empty, of the file NAME, a string; NIL when that cannot be read.  The caller
defers interrupts until it has recorded the part, which it has to drop in the end."
  (let ((file (open-file name)))
    (unless (minusp file)
      (make-file-part file))))

(defun drop-parts (parts)
  "Lets go of PARTS, a list, which are not to be sent."
  (dolist (part parts)
    (when (file-part-p part)
      (when-taken (file (shiftf (file-part-file part) nil))
        (close-descriptor file)))))

(defun send-part-to-descriptor (descriptor part more-p)
  (let ((position (part-position part))
        (end (part-end part)))
    (etypecase part
      (octets-part
       (funcall (if more-p #'send-octets-before-more #'send-octets)
                descriptor (octets-part-octets part) position end))
      (file-part
       (send-file descriptor (file-part-file part) position end)))))

(defun gather-octets (parts buffer end)
  "Copies the first octets of PARTS, a list, to BUFFER, up to END.  Returns how many: fewer than
END only if there are no more, or a step has to be done before; 0 if a file ends too early."
  (loop with fill = 0
        for part in parts
        while (and (< fill end) (not (step-part-p part)))
        do (let* ((position (part-position part))
                  (next (+ fill (min (- end fill) (- (part-end part) position)))))
             (etypecase part
               (octets-part
                (replace buffer (octets-part-octets part)
                         :start1 fill :end1 next :start2 position))
               (file-part
                (unless (read-file-octets (file-part-file part) position buffer fill next)
                  (return fill))))
             (setf fill next))
        finally (return fill)))

(defun send-first (destination parts more-p)
  "Sends as much of the first of PARTS, a list, and perhaps of the next ones, as DESTINATION, see
SEND-PARTS, takes now.  Returns the number of octets, 0 if a file ends too early, or minus an
error number."
  (let ((part (first parts)))
    (cond ((step-part-p part) (if (funcall (step-part-function part)) 1 +would-block+))
          ((functionp destination) (funcall destination parts))
          (t (send-part-to-descriptor destination part (or more-p (rest parts)))))))

(defun skip-octets (parts count)
  "Notes that COUNT octets of PARTS, a list, were sent."
  (loop for part in parts
        for sent = (min count (- (part-end part) (part-position part)))
        while (plusp count)
        do (incf (part-position part) sent)
           (decf count sent)))

(defun send-parts (destination parts &optional more-p)
  "Sends as much of PARTS, a list, as DESTINATION takes now, one part after the other.
DESTINATION is a descriptor; or a function that takes a list of parts, the first with octets
left, and returns how many octets it has taken, as SEND-OCTETS does.  If MORE-P, the system may
hold octets that a descriptor takes, for others that follow soon.  Returns three values: a list
of the parts that are left, the first of them perhaps begun; how many octets were sent, or NIL for
none; and an error number, an integer, or NIL."
  (loop with sent = nil
        while parts
        do (let ((part (first parts)))
             (if (= (part-position part) (part-end part))
                 (drop-parts (list (pop parts)))
                 (let ((count (send-first destination parts more-p)))
                   (cond ((plusp count)
                          (skip-octets parts count)
                          (setf sent (+ (or sent 0) count)))
                         ((would-block-p count) (return (values parts sent nil)))
                         ((zerop count) (return (values parts sent +eio+)))
                         (t (return (values parts sent (- count))))))))
        finally (return (values '() sent nil))))

(defun count-octets (parts)
  "How many octets PARTS, a list, have yet to send."
  (loop for part in parts
        sum (- (part-end part) (part-position part))))

;;; The queue

(defstruct (peer-watch (:include opaque) (:constructor make-peer-watch ()) (:copier nil))
  "How a peer takes its time, see slow-readers.lisp."
  (looked nil :type (or null fixnum))   ; the last look, in MILLISECONDS; NIL while nobody waits
  (owed nil :type (or null fixnum))     ; octets that it had yet to take then; NIL if not known
  (end nil :type (or null fixnum))      ; by when it is to take some of them, in MILLISECONDS
  (waited 0 :type fixnum)               ; for how many milliseconds it was waited for
  (taken 0 :type fixnum)                ; how many octets it took meanwhile
  (worker-waited 0 :type fixnum))       ; of workers for output and input, in milliseconds

(defstruct (taking-limits (:include opaque)
                          (:constructor make-taking-limits (milliseconds rate grace))
                          (:copier nil))
  "The demands on a peer, see LIMIT-TAKING.  The connections of a server share one of these."
  (milliseconds nil :type (or null fixnum) :read-only t)
  (rate nil :type (or null (integer 1)) :read-only t)
  (grace 0 :type fixnum :read-only t))  ; in milliseconds

(defvar *no-limits* (make-taking-limits nil nil 0)
  "The TAKING-LIMITS of a new queue.")

(defparameter *recent-limits-count* 8
  "The largest number of TAKING-LIMITS that are remembered.")
(defvar *recent-limits* '()
  "The TAKING-LIMITS that were made last, a list.")

(defun taking-limits (milliseconds rate grace)
  "The TAKING-LIMITS of these values, perhaps made before."
  (or (find-if (lambda (limits)
                 (and (eql milliseconds (taking-limits-milliseconds limits))
                      (eql rate (taking-limits-rate limits))
                      (= grace (taking-limits-grace limits))))
               *recent-limits*)
      (let ((recent *recent-limits*))
        (first (set-published *recent-limits*
                              (cons (make-taking-limits milliseconds rate grace)
                                    (if (< (length recent) *recent-limits-count*)
                                        recent
                                        (butlast recent))))))))

(defstruct (send-queue (:include opaque) (:constructor make-send-queue ()) (:copier nil))
  "The unsent octets of a connection.  Its owner alone writes the slots; other threads may read
them."
  ;; The parts (see PART) of SEND-QUEUE, a list in the order in which they leave.
  (parts '() :type list)
  ;; The function by which SEND-PARTS sends SEND-QUEUE; NIL if a descriptor does.
  (sender nil :type (or null function))
  (limits *no-limits* :type taking-limits)
  (watch nil :type (or null peer-watch)) ; NIL until the peer is waited for
  ;; How many octets of SEND-QUEUE and beside it were sent since they were counted last; see COUNT-
  ;; REQUEST.
  (sent 0 :type fixnum)
  (reserved 0 :type index))             ; octets of the budget of all clients, for its parts

(defun queued-octets (queue)
  "How many octets QUEUE, a SEND-QUEUE, has, an integer."
  (count-octets (send-queue-parts queue)))

(defun enqueue (queue parts)
  "Adds PARTS, a list (see PART), to the end of QUEUE, a SEND-QUEUE.  The caller owns its
connection."
  (let ((watch (send-queue-watch queue)))
    (when (and watch (peer-watch-owed watch))
      (incf (peer-watch-owed watch) (count-octets parts))))
  (setf (send-queue-parts queue) (append (send-queue-parts queue) parts)))

(defun flush-queue (queue descriptor &optional more-p)
  "Sends as much of QUEUE, a SEND-QUEUE, as its sender, or else DESCRIPTOR, takes now; MORE-P is
as in SEND-PARTS.  The caller owns its connection, and is not interrupted.  Returns true if
anything was sent; and an error number, an integer, or NIL."
  (multiple-value-bind (left sent failure)
      (send-parts (or (send-queue-sender queue) descriptor) (send-queue-parts queue) more-p)
    (setf (send-queue-parts queue) left)
    (incf (send-queue-sent queue) (or sent 0))
    (values sent failure)))

(defun clear-queue (queue)
  "Drops the parts of QUEUE, a SEND-QUEUE, unsent.  The caller owns its connection."
  (drop-parts (shiftf (send-queue-parts queue) '()))
  (reset-taking queue))
