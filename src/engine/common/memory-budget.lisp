(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; One memory budget for everything that clients can make this process keep: unfinished heads,
;;;; content, messages, and replies that they do not take.  Many clients, none of which has more
;;;; than it may, could otherwise fill the heap; when that is full, the Lisp ends.
;;;;
;;;; The owner of the memory reserves octets before it allocates them, and releases as many once
;;;; nothing refers to them.  An owner that gets NIL allocates nothing: it refuses its client, or
;;;; evicts another one, or uses a file.

(defparameter *client-memory-share* 1/4
  "The share of the heap, a rational, that may be reserved for all clients together.")

(defparameter *waiting-share* 1/2
  "The share of the budget, a rational, up to which memory is reserved for what waits for clients:
the rest is left to requests that are served.")

(defparameter *request-share* 3/8
  "The share of the budget, a rational, up to which requests wait for their replies.  They cannot
give way at once, since workers have to answer them; so it is less than *WAITING-SHARE*.")

(defvar *client-memory* (make-counter)
  "How many octets are reserved for clients, of all engines of this process.")

(defun client-memory-budget ()
  "How many octets may be reserved for all clients together, an integer; NIL where the size of the
heap is not known, and nothing is limited."
  (let ((heap (heap-octets)))
    (and heap (floor (* *client-memory-share* heap)))))

(defun client-memory-reserved ()
  "How many octets are reserved for all clients together, an integer."
  (counter-count *client-memory*))

(defun reserve-client-memory (octets &optional (share 1))
  "Reserves OCTETS more, an integer, or releases some if it is below 0.  True when no more than
SHARE of the budget, a rational, is reserved then, or some were released; otherwise NIL, and nothing
was reserved.  SHARE is *WAITING-SHARE* for what waits for a client; NIL reserves whatever the
budget is, for memory that is in use already.  Any thread may call it; the caller releases as many
octets later, and is not to be interrupted before it has noted that."
  (let ((budget (client-memory-budget)))
    (cond ((null budget) t)
          ((and share (not (minusp octets)))
           (counter-add-up-to *client-memory* octets (floor (* share budget))))
          (t (counter-add *client-memory* octets)
             t))))

(defmacro change-reservation (place size &key (share 1))
  "Reserves SIZE octets, an integer, where PLACE says how many octets are reserved so far, and sets
PLACE to SIZE.  Returns true; or NIL, and changes nothing, if more than SHARE of the budget would
then be reserved.  Evaluates the forms in PLACE several times.  No interrupt comes between the
budget and PLACE."
  (let ((new (gensym "SIZE")))
    `(let ((,new ,size))
       (uninterruptibly
         (when (or (= ,new ,place) (reserve-client-memory (- ,new ,place) ,share))
           (setf ,place ,new)
           t)))))

;;; The heap itself, garbage included

;; With a heap of 256 MiB, 3/4 and 5/8 were tried against 20 to 100 WebSockets that send texts of 2
;; to 16 MiB all at once, 30 processes each: none died, and as many messages were served.  Beside a
;; load one died later with 3/4: several threads may find the same room before one of them has taken
;; it.
(defparameter *most-used* 5/8
  "The share of the heap that may be in use, garbage included, when memory is taken for a client.")

(defvar *collection-lock* (bt:make-lock "collection")
  "Held while all garbage is collected for the sake of clients: others that want that wait.")

(defvar *next-collection* 0
  "When all garbage may be collected again, in MILLISECONDS: that holds up every thread, and is to
take no more than a fourth of the time.")

(defun fits-in-heap-p (octets)
  "True when OCTETS more, an integer, may be allocated in the heap as it is, garbage included, or
its size is not known."
  (or (null (heap-octets))
      (< (+ octets (heap-used)) (* *most-used* (heap-octets)))))

(defun make-room-in-heap (octets)
  "Like FITS-IN-HEAP-P of OCTETS, an integer, but collects all garbage that is in the way, unless
that was done just before: long vectors outlive several collections of the usual kind."
  (or (fits-in-heap-p octets)
      (bt:with-lock-held (*collection-lock*)
        (let ((began (milliseconds)))
          (when (>= began *next-collection*)
            (collect-garbage)
            (setf *next-collection* (+ (milliseconds) (* 3 (- (milliseconds) began)))))
          (fits-in-heap-p octets)))))
