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
;;;;   phase     what was said               PUT-IN-OUTBOX                  the owner of the connection
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

(defstruct (outbox (:include send-queue) (:constructor make-outbox (mark &key engine announced))
                   (:copier nil))
  "A SEND-QUEUE for what any thread has for a client; MARK is how many octets may wait."
  (mark 0 :type index :read-only t)
  (engine nil :read-only t)             ; which is told of functions that fail
  (announced nil :type (or null unsigned-byte)) ; octets that may still be put in, if known
  (lock (bt:make-lock "outbox") :read-only t)
  (phase :open :type (member :open :ending :dropped :ended))
  (incoming '() :type list)             ; vectors, the last first
  (size 0 :type fixnum)
  (silent-p nil :type boolean)          ; was nothing put in since SILENT-AGAIN-P was asked?
  (on-room '() :type list)              ; functions without arguments, each called once
  (on-end '() :type list)               ; such functions, called when it has ended
  (changed nil))                        ; a condition variable, where somebody has waited for room

(setf (documentation 'make-outbox 'function)
      "A new, empty outbox in which MARK octets, an integer, may wait.  ANNOUNCED is how many may
be put in altogether, an integer, or NIL for any number; ENGINE, or NIL, is where the failure of a
program's function is logged."
      (documentation 'outbox-announced 'function)
      "How many octets may still be put into OUTBOX, an integer; NIL for any number.")

(defmacro with-outbox ((outbox) &body body)
  "Evaluates BODY, which is short and waits for nothing, while no other thread touches OUTBOX."
  `(with-lock-briefly ((outbox-lock ,outbox))
     ,@body))

(defun full-p (outbox)
  "True when more octets than its mark says are in OUTBOX, or it is to be ended since they were."
  (or (> (outbox-size outbox) (outbox-mark outbox))
      (eq :dropped (outbox-phase outbox))))

(defun queued-p (outbox)
  "True when something was put into OUTBOX that its owner has not taken."
  (and (outbox-incoming outbox) t))

(defun outbox-shut-p (outbox)
  "True when OUTBOX takes nothing any more, however much room there is."
  (and (member (outbox-phase outbox) '(:ending :ended)) t))

(defun put-in-outbox (outbox octets &optional however-full-p)
  "Puts OCTETS, a vector that nobody changes any more, into OUTBOX.  Returns :ROOM when more may follow, :FULL when
these are more than may wait, so that nobody should go on before there is room; or, where it has not taken them,
:REFUSED because it was full before, unless HOWEVER-FULL-P, :OVER because it has ended, and :TOO-LONG because fewer were
announced."
  (with-outbox (outbox)
    (cond ((outbox-shut-p outbox) :over)
          ((and (full-p outbox) (not however-full-p)) :refused)
          ((and (outbox-announced outbox)
                (> (length octets) (outbox-announced outbox)))
           :too-long)
          (t
           (when (outbox-announced outbox)
             (decf (outbox-announced outbox) (length octets)))
           (push octets (outbox-incoming outbox))
           (incf (outbox-size outbox) (length octets))
           (setf (outbox-silent-p outbox) nil)
           (if (full-p outbox) :full :room)))))

(defun silent-again-p (outbox)
  "True when nothing was put into OUTBOX since this was asked before."
  (with-outbox (outbox)
    (shiftf (outbox-silent-p outbox) t)))

(defun outbox-over-p (outbox)
  "True when nothing can be put into OUTBOX any more."
  (not (eq :open (outbox-phase outbox))))

(defun outbox-ended-p (outbox)
  "True when OUTBOX has ended, and what was in it is dropped."
  (eq :ended (outbox-phase outbox)))

(defun close-outbox (outbox)
  "Lets nobody put anything into OUTBOX any more; what is in it is still sent.  True for the first who does so."
  (with-outbox (outbox)
    (when (eq :open (outbox-phase outbox))
      (setf (outbox-phase outbox) :ending))))

(defun drop-outbox (outbox)
  "Has OUTBOX, whose peer is too slow, ended with its connection, which the caller visits next: those who wait for room learn
of that from a worker, and not in the caller, who may have locks of theirs."
  (with-outbox (outbox)
    (when (eq :open (outbox-phase outbox))
      (setf (outbox-phase outbox) :dropped))))

(defun outbox-broken-p (outbox)
  "True when OUTBOX has ended, or is to, and what is in it is dropped."
  (and (member (outbox-phase outbox) '(:dropped :ended)) t))

(defun end-outbox (outbox &optional first)
  "Drops what OUTBOX has: nobody will send it.  Wakes who waits for room; FIRST, a function without arguments or NIL, is called
before the functions of programs that do."
  (with-acquired (functions (end-of-outbox outbox) (call-all outbox functions))
    (when first
      (funcall first))
    (loop while functions               ; where it is left amid one, the others are called all the same
          do (call-noting outbox (pop functions)))))

(defun end-of-outbox (outbox)
  "Ends OUTBOX, and calls who wants to know of that.  Returns the functions of those who wait for room, the caller's to call.
The caller cannot be interrupted."
  (multiple-value-bind (takers functions)
      (with-outbox (outbox)
        (setf (outbox-phase outbox) :ended
              (outbox-incoming outbox) '()
              (outbox-size outbox) 0)
        (values (take-takers outbox) (shiftf (outbox-on-end outbox) '())))
    (call-all outbox functions)
    takers))

(defun call-noting (outbox function)
  "Calls FUNCTION, which a program gave to OUTBOX.  An error is logged."
  (handler-case (funcall function)
    (error (condition)
      (when (outbox-engine outbox)
        (log-message (outbox-engine outbox) :error
                     "What was to be done for a stream's room or end failed: ~A" condition)))))

(defun call-all (outbox functions)
  "Calls FUNCTIONS, a list, as CALL-NOTING does."
  (dolist (function functions)
    (call-noting outbox function)))

(defun call-when-over (outbox function)
  "Calls FUNCTION, without arguments, which waits for nothing and is not interrupted, once, in any thread, when OUTBOX has
ended; at once if it has by now."
  (uninterruptibly
    (when (with-outbox (outbox)
            (cond ((eq :ended (outbox-phase outbox)) t)
                  (t (push function (outbox-on-end outbox)) nil)))
      (call-noting outbox function))))

(defun forget-when-over (outbox function)
  "Lets FUNCTION, of CALL-WHEN-OVER for OUTBOX, not be called any more."
  (with-outbox (outbox)
    (setf (outbox-on-end outbox) (remove function (outbox-on-end outbox) :test #'eq))))

(defun call-when-room (outbox function)
  "Calls FUNCTION, without arguments, once, in any thread, when OUTBOX has room, or has ended; at once if it has
by now."
  (unless (with-outbox (outbox)
            (when (and (full-p outbox) (not (eq :ended (outbox-phase outbox))))
              (push function (outbox-on-room outbox))
              t))
    (call-all outbox (list function))))

(defun await-room (outbox seconds)
  "Waits up to SECONDS, a real or NIL for no limit, until OUTBOX has room or has ended.  True when it has."
  (let ((changed (with-outbox (outbox)
                   (or (outbox-changed outbox)
                       (setf (outbox-changed outbox) (bt:make-condition-variable))))))
    (wait-until (lambda ()
                  (or (not (full-p outbox)) (eq :ended (outbox-phase outbox))))
                changed (outbox-lock outbox) seconds 1/4)))

;;; For the owner of the connection

(defconstant +most-joined+ (* 16 1024)
  "How many octets of several vectors are copied into one at most, to leave by one call of the system.")

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

(defun take-incoming (outbox)
  "What was put into OUTBOX and not taken before, a list of vectors, the last first; and as second
value true when nothing will follow them."
  (with-outbox (outbox)
    (values (shiftf (outbox-incoming outbox) '())
            (not (eq :open (outbox-phase outbox))))))

(defun note-unsent (outbox)
  "Notes how much of OUTBOX was not sent yet; and tells of room, if there is some."
  (let ((unsent (queued-octets outbox)))
    (call-all outbox (with-outbox (outbox)
                       (setf (outbox-size outbox)
                             (+ unsent (octets-of (outbox-incoming outbox))))
                       (when (and (<= (outbox-size outbox) (ash (outbox-mark outbox) -1))
                                  (not (full-p outbox))) ; as it is where it was dropped
                         (take-takers outbox))))))

(defun take-takers (outbox)
  "A list of the functions that are to be told of room in OUTBOX, in the order in which they came, after a thread was
woken that waits for it.  Under the lock."
  (when (outbox-changed outbox)
    (bt:condition-notify (outbox-changed outbox)))
  (reverse (shiftf (outbox-on-room outbox) '())))

(defun use-queue (wire outbox)
  "Makes OUTBOX the send queue of WIRE and its connection: what that has there leaves first."
  (let* ((base (wire-base wire))
         (connection (wire-connection base))
         (queue (wire-queue wire)))
    (unless (eq queue outbox)
      (uninterruptibly
        (copy-limits queue outbox)
        (setf (send-queue-parts outbox) (shiftf (send-queue-parts queue) '())
              (send-queue-sender outbox) (send-queue-sender queue)
              (wire-queue wire) outbox)
        (when (eq queue (wire-queue base)) ; as with TLS
          (setf (wire-queue base) outbox))
        (when (and connection (eq queue (connection-queue connection)))
          (setf (connection-queue connection) outbox))))))

(defun send-incoming (outbox wire more-p)
  "Sends what the peer of WIRE takes now of OUTBOX, its queue, and of what was put in.  MORE-P is
as in FLUSH-WIRE.  True when nothing will follow.  Signals DESCRIPTOR-BROKEN."
  (let ((engine-sends-p (engine-sends-p wire)))
    (unless engine-sends-p              ; a program has a stream beside it, or all of it
      (send-output wire))
    (prog1 (uninterruptibly
             (multiple-value-bind (vectors last-p) (take-incoming outbox)
               (enqueue outbox (parts-of vectors))
               last-p))
      (cond ((null (wire-unsent wire)))
            (engine-sends-p (flush-wire wire more-p))
            (t (send-unsent wire))))))

(defun nothing-to-send-p (outbox)
  "True when all that was put into OUTBOX was sent, and more may be put in.  Who just puts something in has it sent
afterwards."
  (and (eq :open (outbox-phase outbox))
       (not (queued-p outbox))          ; nor a vector without octets
       (zerop (outbox-size outbox))))

(defun send-queued (outbox wire &key more-p)
  "Sends what the peer of WIRE takes now of what was put into OUTBOX, its queue from now on.
MORE-P is as in FLUSH-WIRE.  True when all of it was sent, and nothing will follow.  Signals
DESCRIPTOR-BROKEN."
  (unless (nothing-to-send-p outbox)
    (use-queue wire outbox)
    (let ((last-p (send-incoming outbox wire more-p)))
      (note-unsent outbox)
      (and last-p (null (wire-unsent wire))))))
