(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A send queue into which any thread puts octets for a client, up to a high-water mark.  From
;;;; its first octet on, which leaves behind what its connection had to send before, it is the
;;;; connection's.
;;;;
;;;;   octets are     in          and who moves them on
;;;;   put in         INCOMING    any thread, under the lock
;;;;   taken          PARTS       the owner of the connection, or a thread that has the right to send
;;;;                              from it: small vectors together, to be sent now
;;;;   not sent       PARTS       the owner, or the engine, when the socket takes more
;;;;
;;;;   phase     what was said               PUT-IN-SHARED-QUEUE            the owner of the connection
;;;;   :OPEN     nothing                     takes octets up to the mark    sends them
;;;;   :ENDING   that all was put in         does not take any              sends the rest, and then ends it
;;;;   :DROPPED  that its peer is too slow   refuses any, as if full        ends it, and the connection
;;;;   :ENDED    the connection is gone      does not take any              has none
;;;;
;;;; Invariants: SIZE octets were put in and not sent, as far as the owner has told.  A thread
;;;; that has found it above the mark is told of room once, when no more than half the mark is
;;;; left.  Vectors that were put in are never changed: many queues may share them.  The lock is
;;;; not held while something is sent.  The functions of programs are called without it, and what
;;;; one of them signals reaches nobody else.

(defstruct (shared-queue (:include send-queue) (:constructor make-shared-queue (mark &key engine announced))
                         (:copier nil))
  "A SEND-QUEUE for what any thread has for a client; MARK is how many octets may wait."
  (mark 0 :type index :read-only t)
  (engine nil :read-only t)             ; which is told of functions that fail
  (announced nil :type (or null unsigned-byte)) ; octets that may still be put in, if known
  (lock (bt:make-lock "shared send queue") :read-only t)
  (phase :open :type (member :open :ending :dropped :ended))
  (incoming '() :type list)             ; vectors, the last first
  (size 0 :type fixnum)
  (silent-p nil :type boolean)          ; was nothing put in since SILENT-AGAIN-P was asked?
  (on-room '() :type list)              ; functions without arguments, each called once
  (on-end '() :type list)               ; such functions, called when it has ended
  (changed nil))                        ; a condition variable, where somebody has waited for room

(setf (documentation 'make-shared-queue 'function)
      "A new, empty shared send queue in which MARK octets, an integer, may wait.  ANNOUNCED is how
many may be put in altogether, an integer, or NIL for any number; ENGINE, or NIL, is where the
failure of a program's function is logged."
      (documentation 'shared-queue-announced 'function)
      "How many octets may still be put into SHARED-QUEUE, an integer; NIL for any number.")

(defmacro with-shared-queue ((shared-queue) &body body)
  "Evaluates BODY, which is short and waits for nothing, while no other thread touches
SHARED-QUEUE."
  `(with-lock-briefly ((shared-queue-lock ,shared-queue))
     ,@body))

(defun full-p (shared-queue)
  "True when more octets than its mark says are in SHARED-QUEUE, or it is to be ended since they
were."
  (or (> (shared-queue-size shared-queue) (shared-queue-mark shared-queue))
      (eq :dropped (shared-queue-phase shared-queue))))

(defun queued-p (shared-queue)
  "True when something was put into SHARED-QUEUE that its owner has not taken."
  (and (shared-queue-incoming shared-queue) t))

(defun shared-queue-shut-p (shared-queue)
  "True when SHARED-QUEUE takes nothing any more, however much room there is."
  (and (member (shared-queue-phase shared-queue) '(:ending :ended)) t))

(defun put-in-shared-queue (shared-queue octets &optional however-full-p)
  "Puts OCTETS, a vector that nobody changes any more, into SHARED-QUEUE.  Returns :ROOM when more
may follow, :FULL when these are more than may wait, so that nobody should go on before there is
room; or, where it has not taken them, :REFUSED because it was full before, unless HOWEVER-FULL-P,
:OVER because it has ended, and :TOO-LONG because fewer were announced."
  (with-shared-queue (shared-queue)
    (cond ((shared-queue-shut-p shared-queue) :over)
          ((and (full-p shared-queue) (not however-full-p)) :refused)
          ((and (shared-queue-announced shared-queue)
                (> (length octets) (shared-queue-announced shared-queue)))
           :too-long)
          (t
           (when (shared-queue-announced shared-queue)
             (decf (shared-queue-announced shared-queue) (length octets)))
           (push octets (shared-queue-incoming shared-queue))
           (incf (shared-queue-size shared-queue) (length octets))
           (setf (shared-queue-silent-p shared-queue) nil)
           (if (full-p shared-queue) :full :room)))))

(defun silent-again-p (shared-queue)
  "True when nothing was put into SHARED-QUEUE since this was asked before."
  (with-shared-queue (shared-queue)
    (shiftf (shared-queue-silent-p shared-queue) t)))

(defun shared-queue-over-p (shared-queue)
  "True when nothing can be put into SHARED-QUEUE any more."
  (not (eq :open (shared-queue-phase shared-queue))))

(defun shared-queue-ended-p (shared-queue)
  "True when SHARED-QUEUE has ended, and what was in it is dropped."
  (eq :ended (shared-queue-phase shared-queue)))

(defun close-shared-queue (shared-queue)
  "Lets nobody put anything into SHARED-QUEUE any more; what is in it is still sent.  True for the
first who does so."
  (with-shared-queue (shared-queue)
    (when (eq :open (shared-queue-phase shared-queue))
      (setf (shared-queue-phase shared-queue) :ending))))

(defun drop-shared-queue (shared-queue)
  "Has SHARED-QUEUE, whose peer is too slow, ended with its connection, which the caller visits
next: those who wait for room learn of that from a worker, and not in the caller, who may have locks
of theirs."
  (with-shared-queue (shared-queue)
    (when (eq :open (shared-queue-phase shared-queue))
      (setf (shared-queue-phase shared-queue) :dropped))))

(defun shared-queue-broken-p (shared-queue)
  "True when SHARED-QUEUE has ended, or is to, and what is in it is dropped."
  (and (member (shared-queue-phase shared-queue) '(:dropped :ended)) t))

(defun end-shared-queue (shared-queue &optional first)
  "Drops what SHARED-QUEUE has: nobody will send it.  Wakes who waits for room; FIRST, a function
without arguments or NIL, is called before the functions of programs that do."
  (with-acquired (functions (end-of-shared-queue shared-queue) (call-all shared-queue functions))
    (when first
      (funcall first))
    ;; Where one exits non-locally, the others are called all the same.
    (loop while functions
          do (call-noting shared-queue (pop functions)))))

(defun end-of-shared-queue (shared-queue)
  "Ends SHARED-QUEUE, and calls who wants to know of that.  Returns the functions of those who wait
for room, the caller's to call.  The caller cannot be interrupted."
  (multiple-value-bind (takers functions)
      (with-shared-queue (shared-queue)
        (setf (shared-queue-phase shared-queue) :ended
              (shared-queue-incoming shared-queue) '()
              (shared-queue-size shared-queue) 0)
        (values (take-takers shared-queue) (shiftf (shared-queue-on-end shared-queue) '())))
    (call-all shared-queue functions)
    takers))

(defun call-noting (shared-queue function)
  "Calls FUNCTION, which a program gave to SHARED-QUEUE.  An error is logged."
  (handler-case (funcall function)
    (error (condition)
      (when (shared-queue-engine shared-queue)
        (log-message (shared-queue-engine shared-queue) :error
                     "What was to be done for a stream's room or end failed: ~A" condition)))))

(defun call-all (shared-queue functions)
  "Calls FUNCTIONS, a list, as CALL-NOTING does."
  (dolist (function functions)
    (call-noting shared-queue function)))

(defun call-when-over (shared-queue function)
  "Calls FUNCTION, without arguments, which waits for nothing and is not interrupted, once, in any
thread, when SHARED-QUEUE has ended; at once if it has by now."
  (uninterruptibly
    (when (with-shared-queue (shared-queue)
            (cond ((eq :ended (shared-queue-phase shared-queue)) t)
                  (t (push function (shared-queue-on-end shared-queue)) nil)))
      (call-noting shared-queue function))))

(defun forget-when-over (shared-queue function)
  "Lets FUNCTION, of CALL-WHEN-OVER for SHARED-QUEUE, not be called any more."
  (with-shared-queue (shared-queue)
    (setf (shared-queue-on-end shared-queue) (remove function (shared-queue-on-end shared-queue) :test #'eq))))

(defun call-when-room (shared-queue function)
  "Calls FUNCTION, without arguments, once, in any thread, when SHARED-QUEUE has room, or has ended;
at once if it has by now."
  (unless (with-shared-queue (shared-queue)
            (when (and (full-p shared-queue) (not (eq :ended (shared-queue-phase shared-queue))))
              (push function (shared-queue-on-room shared-queue))
              t))
    (call-all shared-queue (list function))))

(defun await-room (shared-queue seconds)
  "Waits up to SECONDS, a real or NIL for no limit, until SHARED-QUEUE has room or has ended.  True
when it has."
  (let ((changed (with-shared-queue (shared-queue)
                   (or (shared-queue-changed shared-queue)
                       (setf (shared-queue-changed shared-queue) (bt:make-condition-variable))))))
    (wait-until (lambda ()
                  (or (not (full-p shared-queue)) (eq :ended (shared-queue-phase shared-queue))))
                changed (shared-queue-lock shared-queue) seconds 1/4)))

;;; For the owner of the connection

(defconstant +most-joined+ (* 16 1024)
  "How many octets of several vectors are copied into one at most, to leave by one call of the
system.")

(defun joined-octets (vectors count)
  "The COUNT octets of VECTORS, a list of one or more, in one vector."
  (if (null (rest vectors))
      (first vectors)
      (let ((octets (make-octets count)) (fill 0))
        (declare (type index fill))
        (dolist (vector vectors octets) ; where it is NIL, which ABCL compares with declared types
          (replace octets (the octets vector) :start1 fill)
          (incf fill (length (the octets vector)))))))

(defun octets-of (vectors)
  "How many octets VECTORS, a list, have."
  (let ((size 0))
    (declare (type index size))
    (dolist (octets vectors size)
      (incf size (length (the octets octets))))))

(defun parts-of (vectors)
  "Parts of the octets of VECTORS, of which the last is first, in the order in which they leave:
small ones together."
  (let ((parts '()) (joined '()) (count 0))
    (declare (type index count))
    (flet ((end-part ()
             (when joined
               (push (make-octets-part (joined-octets joined count)) parts)
               (setf joined '() count 0))))
      (dolist (octets vectors)
        (when (> (+ count (length octets)) +most-joined+)
          (end-part))
        (push octets joined)
        (incf count (length octets)))
      (end-part))
    parts))

(defun take-incoming (shared-queue)
  "What was put into SHARED-QUEUE and not taken before, a list of vectors, the last first; and as
second value true when nothing will follow them."
  (with-shared-queue (shared-queue)
    (values (shiftf (shared-queue-incoming shared-queue) '())
            (not (eq :open (shared-queue-phase shared-queue))))))

(defun note-unsent (shared-queue)
  "Notes how much of SHARED-QUEUE was not sent yet; and tells of room, if there is some."
  (let ((unsent (queued-octets shared-queue)))
    (call-all shared-queue (with-shared-queue (shared-queue)
                             (setf (shared-queue-size shared-queue)
                                   (+ unsent (octets-of (shared-queue-incoming shared-queue))))
                             (when (and (<= (shared-queue-size shared-queue) (ash (shared-queue-mark shared-queue) -1))
                                        (not (full-p shared-queue))) ; as it is where it was dropped
                               (take-takers shared-queue))))))

(defun take-takers (shared-queue)
  "A list of the functions that are to be told of room in SHARED-QUEUE, in the order in which they
came, after a thread was woken that waits for it.  Under the lock."
  (when (shared-queue-changed shared-queue)
    (bt:condition-notify (shared-queue-changed shared-queue)))
  (reverse (shiftf (shared-queue-on-room shared-queue) '())))

(defun use-queue (io shared-queue)
  "Makes SHARED-QUEUE the send queue of IO and its connection: what that has there leaves first."
  (let* ((base (io-base io))
         (connection (io-connection base))
         (queue (io-queue io)))
    (unless (eq queue shared-queue)
      (uninterruptibly
        (copy-limits queue shared-queue)
        (setf (send-queue-parts shared-queue) (shiftf (send-queue-parts queue) '())
              (send-queue-sender shared-queue) (send-queue-sender queue)
              (io-queue io) shared-queue)
        (when (eq queue (io-queue base))   ; as with TLS
          (setf (io-queue base) shared-queue))
        (when (and connection (eq queue (connection-queue connection)))
          (setf (connection-queue connection) shared-queue))))))

(defun send-incoming (shared-queue io more-p)
  "Sends what the peer of IO takes now of SHARED-QUEUE, its queue, and of what was put in.  MORE-P
is as in FLUSH-IO.  True when nothing will follow.  Signals DESCRIPTOR-BROKEN."
  (let ((engine-sends-p (engine-sends-p io)))
    (unless engine-sends-p              ; a program has a stream beside it, or all of it
      (send-output io))
    (prog1 (uninterruptibly
             (multiple-value-bind (vectors last-p) (take-incoming shared-queue)
               (enqueue shared-queue (parts-of vectors))
               last-p))
      (cond ((null (io-unsent io)))
            (engine-sends-p (flush-io io more-p))
            (t (send-unsent io))))))

(defun nothing-to-send-p (shared-queue)
  "True when all that was put into SHARED-QUEUE was sent, and more may be put in.  Who just puts
something in has it sent afterwards."
  (and (eq :open (shared-queue-phase shared-queue))
       (not (queued-p shared-queue))    ; nor a vector without octets
       (zerop (shared-queue-size shared-queue))))

(defun send-queued (shared-queue io &key more-p)
  "Sends what the peer of IO takes now of what was put into SHARED-QUEUE, its queue from now on.
MORE-P is as in FLUSH-IO.  True when all of it was sent, and nothing will follow.  Signals
DESCRIPTOR-BROKEN."
  (unless (nothing-to-send-p shared-queue)
    (use-queue io shared-queue)
    (let ((last-p (send-incoming shared-queue io more-p)))
      (note-unsent shared-queue)
      (and last-p (null (io-unsent io))))))
