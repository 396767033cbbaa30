(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite ownership :in engine
  :description "Who may touch a connection: every order of steps.")

(in-suite ownership)

;;; An exhaustive search of what can happen to two connections that have the same descriptor number,
;;; one after the other, while two workers, the sentinel and a hard stop deal with them and their
;;; clients send octets and end.  Every order of the steps is tried.  What an event makes of an
;;; ownership is asked of the engine's own function.
;;;
;;; A step is what happens at once: one access to shared memory, or one call of the system.  The
;;; kernel is modelled as epoll(7) describes edge-triggered watching: an arrival makes an event
;;; pending where the socket is watched; taking it reports the socket to one thread if it still has
;;; something.
;;;
;;; What must hold:
;;; - whoever uses the descriptor for a connection finds it to be that connection's;
;;; - a descriptor is closed once, and only by us if it was not given away;
;;; - when nobody has anything to do, no connection is parked that has input, an end, or nobody who
;;;   would get the report of one; and none at all when the engine was stopped;
;;; - when the stop is done with a connection that somebody owns, that was shut down.

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *model-fields*
    '((:holder 2)                       ; of the descriptor: 0, connection 1 or 2, or 3, a program
      (:entry 2)                        ; of the table: 0, 1 or 2
      (:coming 2)                       ; the connection that is accepted next: 1, 2, or 3 for none
      (:stopping 1)
      ;; Of each connection: ownership, octets that came, an end that came, octets that still will,
      ;; watched, an event is pending, tokens in the shared queue, the socket was shut down.
      (:word-1 5) (:data-1 1) (:end-1 1) (:more-1 1)
      (:watched-1 1) (:pending-1 1) (:queued-1 2) (:shut-1 1)
      (:word-2 5) (:data-2 1) (:end-2 1) (:more-2 1)
      (:watched-2 1) (:pending-2 1) (:queued-2 2) (:shut-2 1)
      ;; Of each thread: where it is, and its connection.
      (:worker-at 5) (:worker-of 2) (:sibling-at 5) (:sibling-of 2)
      (:sentinel-at 5) (:sentinel-of 2) (:stop-at 5) (:stop-of 2))
    "Names and sizes in bits; together a fixnum.")

  (defparameter *model-places*
    '(:idle :find :find-over :own :own-over :serve :look :watch :park :late
      :forget :end :close :forget-given :leave
      :claim :claimed :requeue :queue :shut)
    "Where a thread can be.")

  (defparameter *ownership-bits* '(:owned :arrived :read-closed :closed)
    "The bits of an ownership, the lowest first.")

  (defun ownership-word (&rest bits)
    "The ownership in which BITS are set."
    (loop for bit in bits sum (ash 1 (position bit *ownership-bits*))))

  (defun model-place (name)
    (position name *model-places*))

  (defun model-field (name &optional connection)
    "The index of the field NAME, of CONNECTION where it has one for each."
    (position (if connection
                  (intern (format nil "~A-~D" name connection) '#:keyword)
                  name)
              *model-fields* :key #'first)))

(defvar *world*)
(defvar *thread*)

(defmacro its (connection name)
  "The field NAME of CONNECTION in *WORLD*."
  `(svref *world* (if (= 1 ,connection) ,(model-field name 1) ,(model-field name 2))))

(defmacro shared (world name)
  `(the fixnum (svref ,world ,(model-field name))))

(defun first-world ()
  "The beginning: the first connection is about to be accepted; each client will send an octet."
  (let ((*world* (make-array (length *model-fields*) :initial-element 0)))
    (setf (shared *world* :coming) 1)
    (dolist (connection '(1 2) *world*)
      (setf (its connection :word) (ownership-word :closed)
            (its connection :more) 1))))

(defun world-number (world)
  "A number, a fixnum, that tells WORLD from all others; the two workers may change places."
  (declare (type simple-vector world) (optimize speed))
  (macrolet ((pack (&rest fields)
               (loop with form = 0 and shift = 0
                     for (field . value) in fields
                     for size = (second (assoc field *model-fields*))
                     do (setf form `(logior ,form (ash (the (unsigned-byte ,size) ,value) ,shift)))
                        (incf shift size)
                     finally (return `(the (unsigned-byte 62) ,form))))
             (pack-world ()
               `(pack ,@(loop for (field) in *model-fields*
                              collect (cons field
                                            (case field
                                              (:worker-at 'first-at) (:worker-of 'first-of)
                                              (:sibling-at 'second-at) (:sibling-of 'second-of)
                                              (t `(svref world ,(model-field field)))))))))
    (let* ((worker-at (shared world :worker-at)) (worker-of (shared world :worker-of))
           (sibling-at (shared world :sibling-at)) (sibling-of (shared world :sibling-of))
           (swap-p (> (+ (* 4 (the (mod 32) worker-at)) (the (mod 4) worker-of))
                      (+ (* 4 (the (mod 32) sibling-at)) (the (mod 4) sibling-of))))
           (first-at (if swap-p sibling-at worker-at)) (first-of (if swap-p sibling-of worker-of))
           (second-at (if swap-p worker-at sibling-at))
           (second-of (if swap-p worker-of sibling-of)))
      (pack-world))))

(defun number-world (number)
  "The world of which NUMBER is the number."
  (declare (type (unsigned-byte 62) number))
  (macrolet ((unpack ()
               `(let ((world (make-array ,(length *model-fields*))))
                  ,@(loop with shift = 0
                          for (nil size) in *model-fields*
                          for index from 0
                          collect `(setf (svref world ,index) (ldb (byte ,size ,shift) number))
                          do (incf shift size))
                  world)))
    (unpack)))

(define-condition model-violation (error)
  ((what :initarg :what :reader violation-what))
  (:report (lambda (condition stream)
             (format stream "~A" (violation-what condition)))))

(defun violate (control &rest arguments)
  (error 'model-violation :what (apply #'format nil control arguments)))

;;; The steps

(define-compiler-macro at (&whole form place &rest more)
  (if (keywordp place)
      `(at ,(model-place place) ,@more)
      form))

(defun at (place &optional (connection (thread-connection)))
  "The current thread is at PLACE next, with CONNECTION."
  (setf place (if (keywordp place) (model-place place) place))
  (setf (svref *world* (car *thread*)) place
        (svref *world* (cdr *thread*)) (if (eql place 0) 0 connection)))

(defun thread-connection ()
  (svref *world* (cdr *thread*)))

(defparameter *model-changes*
  (loop for event in '(:ready :ready-over :claim :park :end)
        collect event
        collect (coerce (loop for word below 16 collect (next-ownership event word)) 'vector))
  "For each event what the engine makes of each ownership.")

(defun model-event (event connection)
  "EVENT happens to the ownership of CONNECTION, which was as the value tells."
  (let ((before (its connection :word)))
    (setf (its connection :word)
          (svref (getf *model-changes* event) (the fixnum before)))
    before))

(defmacro bits-p (word &rest bits)
  "Whether one of BITS is set in WORD."
  `(logtest ,word ,(apply #'ownership-word bits)))

(defun use (connection what)
  "A call of the system, WHAT, on the descriptor, for CONNECTION."
  (unless (= connection (shared *world* :holder))
    (violate "~A for connection ~D, of a descriptor that is not its own" what connection)))

(defun over-in-model-p (connection)
  (or (plusp (its connection :end))
      (plusp (its connection :shut))))

(defun readable-in-model-p (connection)
  (or (plusp (its connection :data))
      (over-in-model-p connection)))

(defun mark-pending (connection)
  (when (and (plusp (its connection :watched))
             (readable-in-model-p connection))
    (setf (its connection :pending) 1)))

(defun close-in-model (connection)
  (use connection "close")
  (setf (shared *world* :holder) 0
        (its connection :watched) 0
        (its connection :pending) 0))

(defun accept-in-model ()
  "Accepts the next connection, if its descriptor number is to be had; its owner serves it at once."
  (let ((connection (shared *world* :coming)))
    (when (and (< connection 3)
               (zerop (shared *world* :holder))
               (zerop (shared *world* :stopping)))
      (setf (shared *world* :holder) connection
            (shared *world* :coming) (1+ connection)
            (its connection :word) (ownership-word :owned)
            (shared *world* :entry) connection)
      (at :serve connection))))

(defun take-event-in-model (connection)
  (when (plusp (its connection :pending))
    (setf (its connection :pending) 0)
    (when (readable-in-model-p connection)
      (at (if (over-in-model-p connection) :find-over :find) connection))))

(defun take-queued (connection)
  (when (plusp (its connection :queued))
    (decf (its connection :queued))
    (at :find connection)))

(defun read-in-model (connection)
  "Takes all that came; the owner knows then that it has read all, but not whether an end came with
it."
  (use connection "recv")
  (cond ((plusp (its connection :data))
         (setf (its connection :data) 0)
         (at :look))
        ((readable-in-model-p connection)
         (at :forget))
        (t
         (at :look))))

(defmacro one-of (&rest forms)
  "A list of functions, each of which evaluates one of FORMS."
  `(list ,@(loop for form in forms collect `(lambda () ,form))))

(defun worker-choices (place)
  "Functions, each of which makes the step that a thread at PLACE may make."
  (let ((connection (thread-connection)))
    (ecase place
      (:idle (one-of (accept-in-model) (take-event-in-model 1) (take-event-in-model 2)
                     (take-queued 1) (take-queued 2)))
      ((:find :find-over)
       (one-of (at (cond ((/= connection (shared *world* :entry)) :idle)
                         ((eq place :find) :own)
                         (t :own-over)))))
      ((:own :own-over)
       (one-of (at (if (bits-p (model-event (if (eq place :own) :ready :ready-over) connection)
                               :owned :closed)
                       :idle
                       :serve))))
      ;; The first connection may also be closed or given away at any time.  What may happen to the
      ;; second one is that it is mistaken for the first.
      (:serve (if (= connection 1)
                  (one-of (read-in-model connection) (at :forget) (at :forget-given))
                  (one-of (read-in-model connection))))
      (:look (one-of (let ((word (its connection :word)))
                       (at (cond ((bits-p word :arrived)
                                  (if (bits-p (model-event :park connection) :arrived)
                                      :serve
                                      (violate "an owner parks when it wants to look again")))
                                 ((bits-p word :read-closed) :forget)
                                 ((plusp (shared *world* :stopping)) :forget)
                                 ((plusp (its connection :watched)) :park)
                                 (t :watch))))))
      (:watch (one-of (progn (use connection "epoll_ctl")
                             (setf (its connection :watched) 1)
                             (mark-pending connection)
                             (at :park))))
      (:park (one-of (at (if (bits-p (model-event :park connection) :arrived) :serve :late))))
      (:late (one-of (at (cond ((zerop (shared *world* :stopping)) :idle)
                               ((bits-p (model-event :claim connection) :owned :closed) :idle)
                               (t :forget)))))
      ;; Ending
      (:forget (one-of (progn (when (= connection (shared *world* :entry))
                                (setf (shared *world* :entry) 0))
                              (at :end))))
      (:end (one-of (progn (model-event :end connection) (at :close))))
      (:close (one-of (progn (close-in-model connection) (at :idle))))
      ;; Giving away
      (:forget-given (one-of (progn (when (= connection (shared *world* :entry))
                                      (setf (shared *world* :entry) 0))
                                    (at :leave))))
      (:leave (one-of (progn (model-event :end connection)
                             (setf (shared *world* :holder) 3
                                   (its connection :watched) 0 ; nobody finds it any more
                                   (its connection :pending) 0)
                             (at :idle)))))))

(defun sentinel-choices (place)
  "The same for the sentinel."
  (let ((connection (thread-connection)))
    (case place
      (:idle (one-of (unless (zerop (shared *world* :entry))
                       (at :claim (shared *world* :entry)))))
      (:claim (one-of (at (if (claimed-in-model-p connection) :claimed :shut))))
      ;; It drops the connection, parks it again as it was, or has somebody look at it.
      (:claimed (one-of (at :forget)
                        (at (if (bits-p (model-event :park connection) :arrived) :requeue :late))
                        (at :requeue)))
      (:requeue (one-of (unless (bits-p (model-event :park connection) :arrived)
                          (at :queue))))
      (:queue (one-of (progn (setf (its connection :queued) 1)
                             (at :late))))
      ;; Under the lock, as the end of an ownership.  The deadline may have changed meanwhile.
      (:shut (one-of (shut-in-model connection) (at :idle)))
      (t (worker-choices place)))))

(defun claimed-in-model-p (connection)
  (not (bits-p (model-event :claim connection) :owned :closed)))

(defun shut-in-model (connection)
  (when (bits-p (its connection :word) :owned)
    (use connection "shutdown")
    (setf (its connection :shut) 1)
    (mark-pending connection))
  (at :idle))

(defun stop-is-done-with (connection)
  "Who stops the engine turns away from CONNECTION."
  (when (and (bits-p (its connection :word) :owned)
             (zerop (its connection :shut)))
    (violate "the stop leaves connection ~D to its owner, who may wait for more" connection))
  (at :idle))

(defun stop-choices (place)
  "The same for who stops the engine: it says so, and then deals with what the table has."
  (let ((connection (thread-connection)))
    (case place
      (:idle (one-of (progn (setf (shared *world* :stopping) 1)
                            (unless (zerop (shared *world* :entry))
                              (at :claim (shared *world* :entry))))))
      (:claim (one-of (at (if (claimed-in-model-p connection) :forget :shut))))
      (:shut (one-of (progn (shut-in-model connection)
                            (stop-is-done-with connection))))
      (t (worker-choices place)))))

(defun client-choices ()
  (append
   (loop for each in '(1 2)
         collect (let ((connection each))
                   (lambda ()
                     (when (and (plusp (its connection :more))
                                (< connection (shared *world* :coming))
                                (zerop (its connection :end)))
                       (decf (its connection :more))
                       (incf (its connection :data))
                       (mark-pending connection))))
         collect (let ((connection each))
                   (lambda ()
                     (when (and (= connection 1)
                                (< connection (shared *world* :coming)))
                       (setf (its connection :end) 1)
                       (mark-pending connection)))))
   ;; A program closes what it was given.
   (list (lambda ()
           (when (= 3 (shared *world* :holder))
             (setf (shared *world* :holder) 0))))))

(defparameter *model-threads*
  (loop for (name at of choices) in '((:worker :worker-at :worker-of worker-choices)
                                      (:sibling :sibling-at :sibling-of worker-choices)
                                      (:sentinel :sentinel-at :sentinel-of sentinel-choices)
                                      (:stop :stop-at :stop-of stop-choices))
        collect (list name (model-field at) (model-field of) choices))
  "For each thread its name, its fields, and the function that tells what it may do.")

(defvar *active-threads* *model-threads*
  "Those of *MODEL-THREADS* that do anything.")

(defun step-worlds (world choices)
  "The numbers of the worlds that CHOICES make of WORLD, without itself."
  (loop for choice in choices
        for next = (copy-seq world)
        do (let ((*world* next))
             (funcall (the function choice)))
        unless (loop for index of-type fixnum below (length (the simple-vector world))
                     always (eq (svref next index) (svref world index)))
          collect (world-number next)))

(defun next-worlds (world)
  "The numbers of what one step of anybody makes of WORLD; and true when no worker could make one."
  (let ((workers '()) (others '()) (*world* world))
    (loop for (nil at of choices) in *active-threads*
          do (let* ((*thread* (cons at of))
                    (nexts (step-worlds world (funcall choices (nth (svref world at)
                                                                    *model-places*)))))
               (if (eq choices 'worker-choices)
                   (setf workers (append nexts workers))
                   (setf others (append nexts others)))))
    (values (append workers others (step-worlds world (client-choices)))
            (null workers))))

;;; What must hold when nobody has anything to do

(defun enders-idle-p (world)
  (and (zerop (shared world :sentinel-at))
       (zerop (shared world :stop-at))))

(defun check-resting-world (*world*)
  "Checks *WORLD*, in which no worker, nor who ends connections, is at anything."
  (dolist (connection '(1 2))
    (let ((word (its connection :word)))
      (unless (bits-p word :closed)
        (when (plusp (shared *world* :stopping))
          (violate "connection ~D is left, and all has stopped" connection))
        (when (bits-p word :owned)
          (violate "connection ~D is owned by nobody who does anything" connection))
        (when (zerop (its connection :watched))
          (violate "connection ~D is parked, and nobody would get its report" connection))
        (when (readable-in-model-p connection)
          (violate "something came on connection ~D, and waits unseen" connection))))))

;;; The search

(defstruct (number-set (:constructor make-number-set (size-bits)))
  "Numbers above 0, in an open hash table of a fixed size: there are too many for one of the
Lisp's."
  (size-bits 0 :type (mod 32))
  (count 0 :type fixnum)
  (numbers (make-array (ash 1 size-bits) :element-type '(unsigned-byte 62) :initial-element 0)
   :type (simple-array (unsigned-byte 62) (*))))

(defun note-number (set number)
  "Puts NUMBER into SET; true when it was not there."
  (declare (type number-set set) (type (unsigned-byte 62) number) (optimize speed))
  (let* ((numbers (number-set-numbers set))
         (mask (1- (length numbers))))
    (loop for place of-type fixnum = (logand mask (logxor number (ash number -17) (ash number -31)
                                                          (ash number -43)))
            then (logand mask (1+ place))
          do (let ((there (aref numbers place)))
               (cond ((= there number) (return nil))
                     ((zerop there)
                      (setf (aref numbers place) number)
                      (when (> (incf (number-set-count set)) (* 7/8 (length numbers)))
                        (error "The model has more worlds than were expected."))
                      (return t)))))))

(defun describe-world (world)
  "A list of what in WORLD is not 0."
  (loop for (name) in *model-fields*
        for value across world
        unless (eql value 0)
          collect (list name (cond ((search "-AT" (string name)) (nth value *model-places*))
                                   ((search "WORD" (string name))
                                    (loop for bit in *ownership-bits*
                                          when (logtest value (ownership-word bit))
                                            collect bit))
                                   (t value)))))

(defun explain-path (numbers)
  "Text for people: what is new in each of the worlds with NUMBERS, the first one first."
  (format nil "~{~S~^~%~}"
          (loop for last = '() then next
                for number in numbers
                for next = (describe-world (number-world number))
                collect (set-difference next last :test #'equal))))

(defun search-worlds (size-bits &optional (threads (mapcar #'first *model-threads*)))
  "Tries every order of steps of THREADS and the clients.  Returns how many worlds there are, which
must be fewer than 7/8 of 2^SIZE-BITS; or, when one is not as it must be, text that explains how it
came to be."
  (let ((*active-threads* (remove-if-not (lambda (name) (member name threads)) *model-threads*
                                         :key #'first))
        (set (make-number-set size-bits))
        (path '()))                     ; lists: a number, and those that are to be tried after it
    (flet ((enter (number)
             (when (note-number set number)
               (let ((world (number-world number)))
                 (multiple-value-bind (nexts rest-p) (next-worlds world)
                   (push (cons number nexts) path)
                   (when (and rest-p (enders-idle-p world))
                     (check-resting-world world)))))))
      (handler-case
          (loop initially (enter (world-number (first-world)))
                while path
                do (if (rest (first path))
                       (enter (pop (rest (first path))))
                       (pop path))
                finally (return (number-set-count set)))
        (model-violation (violation)
          (format nil "~A:~%~A" violation
                  (explain-path (reverse (mapcar #'first path)))))))))

(test no-order-of-steps-breaks-the-rules-of-ownership
  (if (platform:readiness-supported-p)
      ;; With all four threads there are eleven million: (search-worlds 24).  Of two workers, who
      ;; may change places, one that is alone is the sibling.
      (dolist (threads '((:worker :sibling :sentinel) (:worker :sibling :stop)
                         (:sibling :sentinel :stop)))
        (let ((result (search-worlds 22 threads)))
          (is (integerp result) "~A: ~A" threads result)))
      (skip "There is no ready engine here.")))
