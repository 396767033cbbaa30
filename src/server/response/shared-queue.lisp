(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A shared queue: a send queue into which any thread puts octets for a client, up to a high-water
;;;; mark.  It becomes the send queue of the connection when its first octets are sent, behind those
;;;; that waited there.
;;;;
;;;;   octets are     in          and are moved on by
;;;;   put in         INCOMING    any thread, under the lock
;;;;   taken          PARTS       the owner of the connection, or a thread that has the send
;;;;                              permission: small vectors together, to be sent now
;;;;   not accepted   PARTS       the owner, or the engine, when the socket accepts more
;;;;
;;;;   phase     meaning                PUT-IN-SHARED-QUEUE           the owner of the connection
;;;;   :OPEN     more may come          accepts octets up to MARK     sends them
;;;;   :ENDING   no more will come      accepts none                  sends the rest, then ends it
;;;;   :DROPPED  the peer is too slow   refuses all, as if full       ends it, and the connection
;;;;   :ENDED    the connection is gone accepts none                  does not exist
;;;;
;;;; Invariants: SIZE octets were put in and not sent, as of the last NOTE-UNSENT.  The queue is
;;;; full when SIZE exceeds MARK.  After each send by the owner, NOTE-UNSENT wakes threads and calls
;;;; functions that wait for room, if at most half of MARK is left.  Vectors that were put in never
;;;; change, so that many queues may share them.  The lock is not held during a send, nor during a
;;;; call of a program's function; an error in that affects no other.

(defstruct (shared-queue (:include send-queue)
                         (:constructor make-shared-queue (mark &key engine announced))
                         (:copier nil))
  "A SEND-QUEUE into which any thread puts octets for a client.  It is full when more than MARK
octets wait."
  (mark 0 :type index :read-only t)
  (engine nil :read-only t)             ; its log gets errors of functions
  (announced nil :type (or null unsigned-byte)) ; octets that may still be put in, if limited
  (lock (bt:make-lock "shared send queue") :read-only t)
  (phase :open :type (member :open :ending :dropped :ended))
  (incoming '() :type list)             ; vectors, newest first
  (size 0 :type fixnum)
  (silent-p nil :type boolean)          ; nothing was put in since the last SILENT-AGAIN-P
  (on-room '() :type list)              ; functions without arguments, each called once
  (on-end '() :type list)               ; likewise, called when it has ended
  (changed nil))                        ; a condition variable, once a thread has waited for room

(defmacro with-shared-queue ((shared-queue) &body body)
  "Evaluates BODY, which is short and does not wait, while no other thread uses SHARED-QUEUE."
  `(with-lock-briefly ((shared-queue-lock ,shared-queue))
     ,@body))

(defun full-p (shared-queue)
  "True when more than MARK octets are in SHARED-QUEUE, or it is to be ended because they were."
  (or (> (shared-queue-size shared-queue) (shared-queue-mark shared-queue))
      (eq :dropped (shared-queue-phase shared-queue))))

(defun queued-p (shared-queue)
  "True when octets were put into SHARED-QUEUE, and its owner has not taken them."
  (and (shared-queue-incoming shared-queue) t))

(defun shared-queue-shut-p (shared-queue)
  "True when SHARED-QUEUE accepts no octets any more, however much room there is."
  (and (member (shared-queue-phase shared-queue) '(:ending :ended)) t))

(defun put-in-shared-queue (shared-queue octets &optional however-full-p)
  "Puts OCTETS, a vector that must not change any more, into SHARED-QUEUE.  Returns :ROOM when more
may follow, or :FULL when the caller should wait for room before the next call.  Otherwise it has
not accepted them, and returns :REFUSED because it was full, unless HOWEVER-FULL-P; :OVER because it
has ended; or :TOO-LONG because fewer octets were announced."
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
  "True when no octets were put into SHARED-QUEUE since the last call."
  (with-shared-queue (shared-queue)
    (shiftf (shared-queue-silent-p shared-queue) t)))

(defun shared-queue-over-p (shared-queue)
  "True when SHARED-QUEUE accepts no octets any more."
  (not (eq :open (shared-queue-phase shared-queue))))

(defun shared-queue-ended-p (shared-queue)
  "True when SHARED-QUEUE has ended, and its octets were dropped."
  (eq :ended (shared-queue-phase shared-queue)))

(defun close-shared-queue (shared-queue)
  "Makes SHARED-QUEUE accept no more octets; those in it are still sent.  True for the first call."
  (with-shared-queue (shared-queue)
    (when (eq :open (shared-queue-phase shared-queue))
      (setf (shared-queue-phase shared-queue) :ending))))

(defun drop-shared-queue (shared-queue)
  "Has SHARED-QUEUE, whose peer is too slow, ended with its connection, which the caller resumes
next.  A worker informs the threads that wait for room, not the caller, which may hold locks that
these threads need."
  (with-shared-queue (shared-queue)
    (when (eq :open (shared-queue-phase shared-queue))
      (setf (shared-queue-phase shared-queue) :dropped))))

(defun shared-queue-broken-p (shared-queue)
  "True when SHARED-QUEUE has ended, or will end, and its octets are dropped."
  (and (member (shared-queue-phase shared-queue) '(:dropped :ended)) t))

(defun end-shared-queue (shared-queue &optional first)
  "Ends SHARED-QUEUE and drops its octets.  Wakes the threads that wait for room; then calls FIRST,
a function without arguments or NIL, and then the functions of programs that wait for room."
  (with-acquired (functions (end-of-shared-queue shared-queue) (call-all shared-queue functions))
    (when first
      (funcall first))
    ;; If one exits non-locally, the others are called all the same.
    (loop while functions
          do (call-noting shared-queue (pop functions)))))

(defun end-of-shared-queue (shared-queue)
  "Ends SHARED-QUEUE, and calls the functions in ON-END.  Returns the functions that wait for room,
for the caller to call.  The caller cannot be interrupted."
  (multiple-value-bind (takers functions)
      (with-shared-queue (shared-queue)
        (setf (shared-queue-phase shared-queue) :ended
              (shared-queue-incoming shared-queue) '()
              (shared-queue-size shared-queue) 0)
        (values (take-takers shared-queue) (shiftf (shared-queue-on-end shared-queue) '())))
    (call-all shared-queue functions)
    takers))

(defun call-noting (shared-queue function)
  "Calls FUNCTION, which a program gave to SHARED-QUEUE.  Logs an error, but not CLIENT-LEFT, by
which a writer ends."
  (handler-case (funcall function)
    (client-left () nil)
    (error (condition)
      (when (shared-queue-engine shared-queue)
        (log-message (shared-queue-engine shared-queue) :error
                     "What was to be done for a stream's room or end failed: ~A" condition)))))

(defun call-all (shared-queue functions)
  "Calls FUNCTIONS, a list, as CALL-NOTING does."
  (dolist (function functions)
    (call-noting shared-queue function)))

(defun call-when-over (shared-queue function)
  "Calls FUNCTION, which has no arguments, does not wait and is not interrupted, once, in any
thread, when SHARED-QUEUE has ended; at once if it has ended already."
  (when-taken (ended-p (with-shared-queue (shared-queue)
                         (cond ((eq :ended (shared-queue-phase shared-queue)) t)
                               (t (push function (shared-queue-on-end shared-queue)) nil))))
    (call-noting shared-queue function)))

(defun forget-when-over (shared-queue function)
  "Removes FUNCTION, an argument of an earlier CALL-WHEN-OVER, from SHARED-QUEUE."
  (with-shared-queue (shared-queue)
    (setf (shared-queue-on-end shared-queue)
          (remove function (shared-queue-on-end shared-queue) :test #'eq))))

(defun call-when-room (shared-queue function)
  "Calls FUNCTION, which has no arguments, once, in any thread.  Calls it at once if SHARED-QUEUE is
not full, or has ended; otherwise after a send by the owner that leaves at most half of its mark, or
when it has ended."
  (unless (with-shared-queue (shared-queue)
            (when (and (full-p shared-queue) (not (eq :ended (shared-queue-phase shared-queue))))
              (push function (shared-queue-on-room shared-queue))
              t))
    (call-all shared-queue (list function))))

(defun await-room (shared-queue seconds)
  "Waits up to SECONDS, a real or NIL for no limit, until SHARED-QUEUE is not full or has ended.
True when it is so."
  (let ((changed (with-shared-queue (shared-queue)
                   (or (shared-queue-changed shared-queue)
                       (setf (shared-queue-changed shared-queue) (bt:make-condition-variable))))))
    (wait-until (lambda ()
                  (or (not (full-p shared-queue)) (eq :ended (shared-queue-phase shared-queue))))
                changed (shared-queue-lock shared-queue) seconds 1/4)))

;;; The owner of the connection

(defconstant +most-joined+ (* 16 1024)
  "Several vectors are copied into one of at most so many octets, to be sent by one system call.")

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
  "The total number of octets of VECTORS, a list."
  (let ((size 0))
    (declare (type index size))
    (dolist (octets vectors size)
      (incf size (length (the octets octets))))))

(defun parts-of (vectors)
  "Parts for the octets of VECTORS, newest first, in the order of sending.  Small vectors share a
part."
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
  "Removes and returns the vectors that were put into SHARED-QUEUE, a list, newest first.  The
second value is true when no more will follow."
  (with-shared-queue (shared-queue)
    (values (shiftf (shared-queue-incoming shared-queue) '())
            (not (eq :open (shared-queue-phase shared-queue))))))

(defun note-unsent (shared-queue)
  "Updates the size of SHARED-QUEUE after a send.  If at most half of its mark is left, wakes and
calls those that wait for room."
  (let ((unsent (queued-octets shared-queue)))
    (call-all shared-queue
              (with-shared-queue (shared-queue)
                (setf (shared-queue-size shared-queue)
                      (+ unsent (octets-of (shared-queue-incoming shared-queue))))
                (when (and (<= (shared-queue-size shared-queue)
                               (ash (shared-queue-mark shared-queue) -1))
                           (not (full-p shared-queue))) ; a dropped one is full
                  (take-takers shared-queue))))))

(defun take-takers (shared-queue)
  "Wakes the thread that waits for room in SHARED-QUEUE.  Removes and returns the functions that
wait for room, oldest first.  The caller holds the lock."
  (when (shared-queue-changed shared-queue)
    (bt:condition-notify (shared-queue-changed shared-queue)))
  (reverse (shiftf (shared-queue-on-room shared-queue) '())))

(defun use-queue (io shared-queue)
  "Makes SHARED-QUEUE the send queue of IO and its connection.  The octets of the former queue are
sent first."
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
  "Sends as much of SHARED-QUEUE, the queue of IO, as the peer takes now.  MORE-P is as in FLUSH-IO.
True when no more octets will follow.  Signals DESCRIPTOR-BROKEN."
  (let ((engine-sends-p (engine-sends-p io)))
    (unless engine-sends-p              ; a program has a stream beside it, or the whole connection
      (send-output io))
    (prog1 (uninterruptibly
             (multiple-value-bind (vectors last-p) (take-incoming shared-queue)
               (enqueue shared-queue (parts-of vectors))
               last-p))
      (cond ((null (io-unsent io)))
            (engine-sends-p (flush-io io more-p))
            (t (send-unsent io))))))

(defun nothing-to-send-p (shared-queue)
  "True when all octets of SHARED-QUEUE were sent, and more may be put in.  A thread that puts some
in at this moment has them sent afterwards."
  (and (eq :open (shared-queue-phase shared-queue))
       (not (queued-p shared-queue))    ; nor a vector without octets
       (zerop (shared-queue-size shared-queue))))

(defun send-queued (shared-queue io &key more-p)
  "Makes SHARED-QUEUE the queue of IO, and sends as much of it as the peer takes now.  MORE-P is as
in FLUSH-IO.  True when all of it was sent, and no more will follow.  Signals DESCRIPTOR-BROKEN."
  (unless (nothing-to-send-p shared-queue)
    (use-queue io shared-queue)
    (let ((last-p (send-incoming shared-queue io more-p)))
      (note-unsent shared-queue)
      (and last-p (null (io-unsent io))))))
