(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The one way out of a connection.  Its send queue has what the socket has not taken yet, a list
;;;; of parts in the order in which they leave.  Any thread writes, whoever owns the connection:
;;;; what the socket takes at once is never queued.
;;;;
;;;; The lock is held for a send that does not wait, and for arming the poller; never while a thread
;;;; waits or a function of a program runs.  Where a stream of the Lisp carries the octets, a send
;;;; waits: all is queued, and a thread that holds another lock sends what is queued.
;;;;
;;;; A write is sent, or queued for a worker, which the poller calls when there is room, until the
;;;; queue is dead: then what waited was dropped, and a write returns an error number.
;;;;
;;;; Invariants:
;;;; - While octets wait on a connection that the poller watches, it is armed for output.
;;;; - The descriptor is used only before the queue is dead, and closed only after that.  So no
;;;;   thread uses a number that is another connection's by then.
;;;; - RESERVED counts the vectors of the parts in the memory budget of all clients.
;;;; - Nobody changes the octets of a part.  Of the parts that have one open file, which are written
;;;;   together, the last closes it: parts leave in order, or are dropped together.

(defstruct (part (:include opaque)
                 (:constructor make-octets-part
                     (octets &optional (position 0) (end (length octets))))
                 (:constructor make-file-part (file &optional shared-p)))
  "A range of OCTETS that is to be sent, or of FILE, a descriptor."
  (octets nil :type (or null octets) :read-only t)
  (file nil :type (or null fixnum))     ; NIL when it was closed, too
  (shared-p nil :read-only t)           ; a later part has FILE, too, and closes it
  ;; The position of the first unsent octet of PART.
  (position 0 :type index)
  ;; The position behind the last octet of PART.
  (end 0 :type index)
  (queued-p nil))                       ; a queue has taken PART over, and closes its file

(defun parts-size (parts)
  "How many octets of PARTS, a list, are to be sent."
  (loop for part in parts
        sum (- (part-end part) (part-position part)) of-type index))

(defun drop-parts (parts)
  "Lets go of PARTS, a list, which are not to be sent."
  (dolist (part parts)
    (when (and (part-file part) (not (part-shared-p part)))
      (close-descriptor (shiftf (part-file part) nil)))))

(defstruct (send-queue (:include opaque)
                       (:constructor make-send-queue
                           (&optional descriptor (lock (bt:make-lock "send queue"))
                            &aux (sender-lock (unless descriptor (bt:make-lock "sender")))))
                       (:copier nil))
  "The output of a connection on DESCRIPTOR, an integer, or NIL where SENDER sends, and waits."
  (descriptor nil :type (or null fixnum) :read-only t)
  (lock nil :read-only t)
  (dead-p nil)                          ; it takes and sends nothing any more
  ;; The parts (see PART) of SEND-QUEUE, and the last cons of that list.
  (parts '() :type list)
  (last '() :type list)
  (size 0 :type fixnum)                 ; how many octets wait
  ;; A function that sends instead of the descriptor.  It takes a list of parts, the first with
  ;; octets left, and returns what SEND-OCTETS does; or NIL.
  (sender nil :type (or null function))
  (sender-lock nil :read-only t)        ; held by a thread that waits in SENDER; or NIL
  (arm nil :type (or null function))    ; has a poller make an event when there is room; or NIL
  ;; Of a connection that carries virtual ones: what puts their octets in when all parts were sent;
  ;; true when there may be some; and true while a thread sends them.
  (more nil :type (or null function))
  (more-p nil)
  (sending-p nil)
  ;; Of a virtual connection: the queue of that one, and what shuts this one.
  (carrier nil :type (or null send-queue))
  (shut nil :type (or null function))
  (room nil)                            ; notified when that has sent some, once a thread has waited
  ;; The demands on the peer, see LIMIT-TAKING.
  (milliseconds nil :type (or null fixnum))
  (rate nil :type (or null (integer 1)))
  ;; How the peer takes its time, see TAKER-GIVEN-UP-P.
  (since nil :type (or null fixnum))    ; when the wait for it began; NIL while nothing waits
  (began 0 :type fixnum)                ; how many octets it had taken by then
  (moved 0 :type fixnum)                ; when it took some last, or the wait began
  (taken 0 :type fixnum)                ; how many octets it had taken at the last look
  (sent 0 :type (unsigned-byte 62))     ; how many octets the socket has taken
  (counted 0 :type (unsigned-byte 62))  ; how many of them COUNT-REQUEST has counted
  (reserved 0 :type index))             ; octets of the budget of all clients, for its parts

(defmacro with-send-queue ((queue) &body body)
  "Evaluates BODY, which is short and does not wait, while no other thread uses QUEUE."
  `(with-lock-briefly ((send-queue-lock ,queue))
     ,@body))

;;; Under the lock

(defun hold-memory (queue octets)
  "Counts OCTETS more, an integer, or fewer if it is below 0, for QUEUE: beyond the budget, too; see
MAKE-ROOM-FOR-OUTPUT."
  (incf (send-queue-reserved queue) octets)
  (reserve-client-memory octets nil))

(defun put-parts (queue parts)
  "Queues PARTS, a list."
  (dolist (part parts)
    (setf (part-queued-p part) t)
    (hold-memory queue (length (part-octets part))))
  (incf (send-queue-size queue) (parts-size parts))
  (if (send-queue-parts queue)
      (setf (cdr (send-queue-last queue)) parts)
      (setf (send-queue-parts queue) parts))
  (setf (send-queue-last queue) (last parts)))

(defun note-sent (queue count)
  "Notes that COUNT octets, the first ones of QUEUE, were sent, and drops the parts that were sent
whole.  With the last one, the wait for the peer ends."
  (decf (send-queue-size queue) count)
  (incf (send-queue-sent queue) count)
  (loop for part = (first (send-queue-parts queue))
        while part
        do (let ((sent (min count (- (part-end part) (part-position part)))))
             (decf count sent)
             (when (< (incf (part-position part) sent) (part-end part))
               (return))
             (drop-parts (list (pop (send-queue-parts queue))))
             (hold-memory queue (- (length (part-octets part)))))
        finally (setf (send-queue-last queue) '() ; or it would keep what was sent alive
                      (send-queue-since queue) nil))
  (tell-room queue))

(defun tell-room (queue)
  "Wakes a thread that waits in AWAIT-TAKER, without a descriptor."
  (when (send-queue-room queue)
    (bt:condition-notify (send-queue-room queue))))

(defun arm-for-output (queue)
  "Makes an event when the socket of QUEUE takes octets again, if a poller watches it."
  (when (send-queue-arm queue)
    (funcall (send-queue-arm queue))))

(defun send-parts (queue)
  "Sends what waits in QUEUE, as far as its descriptor takes it now.  Returns an error number, after
which QUEUE is dead, or NIL."
  (loop with descriptor = (send-queue-descriptor queue)
        for parts = (or (send-queue-parts queue)
                        (and (send-queue-more queue)
                             (progn (funcall (send-queue-more queue))
                                    (send-queue-parts queue))))
        for part = (first parts)
        while (and part descriptor)
        do (let* ((position (part-position part))
                  (end (part-end part))
                  ;; Perhaps of the next parts, too; 0 if a file ends too early.
                  (count (cond ((= position end) 0)
                               ((send-queue-sender queue)
                                (funcall (send-queue-sender queue) parts))
                               ((part-file part)
                                (send-file descriptor (part-file part) position end))
                               (t
                                (send-octets descriptor (part-octets part) position end
                                             (rest parts))))))
             (cond ((or (plusp count) (= position end))
                    (note-sent queue count))
                   ((would-block-p count)
                    (arm-for-output queue)
                    (return nil))
                   (t
                    (return (end-under-lock queue count)))))))

(defun write-under-lock (queue parts)
  "See WRITE-PARTS."
  (let ((waits-p (send-queue-parts queue))) ; it is armed then
    (cond ((send-queue-dead-p queue) +ebadf+)
          (t
           (put-parts queue parts)
           (unless waits-p
             (send-parts queue))))))

(defun end-under-lock (queue &optional (count 0))
  "Makes QUEUE dead.  Returns the error number of COUNT, which a send has returned."
  (setf (send-queue-dead-p queue) t)
  (tell-room queue)
  (drop-parts (send-queue-parts queue))
  (setf (send-queue-parts queue) '()
        (send-queue-last queue) '()
        (send-queue-size queue) 0)
  (hold-memory queue (- (send-queue-reserved queue)))
  (if (zerop count) +eio+ (- count)))

;;; From any thread

(declaim (inline send-on))
(defun send-on (queue)
  "Sends what was put into QUEUE and is not sent under its lock.  Returns an error number, or NIL."
  (cond ((send-queue-sender-lock queue)
         (flush-queue queue))
        ((send-queue-carrier queue)
         (send-more (send-queue-carrier queue))
         nil)))

(defun write-parts (queue parts)
  "Writes PARTS, a list (see PART), all or nothing, and takes their files over unless QUEUE was dead
before.  What the socket does not take now waits in QUEUE.  Returns NIL, or an error number when
QUEUE is dead."
  (or (with-send-queue (queue)
        (write-under-lock queue parts))
      (send-on queue)))

(defun write-to-queue (queue octets start end)
  "Writes OCTETS from START to END as WRITE-PARTS does, and copies those that wait."
  (declare (type octets octets) (type index start end))
  (or (with-send-queue (queue)
        (unless (or (send-queue-dead-p queue) (send-queue-parts queue) (send-queue-sender queue))
          ;; Most replies are sent here whole.
          (let ((sent (max 0 (send-octets (send-queue-descriptor queue) octets start end))))
            (incf (send-queue-sent queue) sent)
            (incf start sent)))
        (when (< start end)
          (write-under-lock queue (list (make-octets-part (subseq octets start end))))))
      (send-on queue)))

(defun send-more (queue)
  "Sends what virtual connections have for QUEUE, of the one that carries them.  Of several threads
that do so at a time, one sends for all."
  (setf (send-queue-more-p queue) t)
  (uninterruptibly
    (loop while (and (send-queue-more-p queue)
                     (compare-and-set (send-queue-sending-p queue) nil t))
          do (setf (send-queue-more-p queue) nil)
             (unwind-protect (flush-queue queue)
               ;; Before it looks again: by a plain SETF, that might come first.
               (compare-and-set (send-queue-sending-p queue) t nil)))))

(defun flush-queue (queue)
  "Sends as much of QUEUE as the socket takes now; all of it, after other threads that do so, if its
sender waits: a non-local exit makes QUEUE dead then.  A worker calls this when the poller says so;
it need not own the connection.  Returns an error number, or NIL."
  (when (send-queue-sender-lock queue)
    (unless-returned
        (bt:with-lock-held ((send-queue-sender-lock queue))
          (loop for part = (first (send-queue-parts queue))
                while part
                do (let* ((left (- (part-end part) (part-position part)))
                          (count (if (plusp left)
                                     (funcall (send-queue-sender queue) (list part))
                                     0)))
                     (with-send-queue (queue)
                       (cond ((send-queue-dead-p queue))
                             ((or (plusp count) (zerop left)) (note-sent queue count))
                             (t (end-under-lock queue count)))))))
      (end-queue queue)))
  (or (with-send-queue (queue)
        (if (send-queue-dead-p queue) +ebadf+ (send-parts queue)))
      (when (send-queue-carrier queue)
        (send-more (send-queue-carrier queue)))))

(defun end-queue (queue &optional shut-p)
  "Makes QUEUE dead, and drops what waits.  If SHUT-P, also shuts the descriptor down, which makes
an event: the owner of the connection closes it."
  (with-send-queue (queue)
    (unless (send-queue-dead-p queue)
      (end-under-lock queue)
      (cond ((not shut-p))
            ((send-queue-shut queue) (funcall (send-queue-shut queue)))
            (t (shut-descriptor (send-queue-descriptor queue) :io))))))

(defun await-taker (queue until)
  "Waits until the peer of QUEUE, which has a descriptor or is that of a virtual connection, may
take more octets; returns NIL after UNTIL, in MILLISECONDS."
  (if (send-queue-shut queue)
      (let ((sent (send-queue-sent queue)))
        (compare-and-set (send-queue-room queue) nil (bt:make-condition-variable))
        (wait-until (lambda ()
                      (or (> (send-queue-sent queue) sent)
                          (null (send-queue-parts queue))))
                    (send-queue-room queue) (send-queue-lock queue)
                    (/ (milliseconds-left until) 1000) 1/10))
      (await-descriptor (send-queue-descriptor queue) :output :until until)))

;;; The one rule for peers that take octets slowly.  A peer is given up when it has taken
;;;
;;;   nothing                        for the time in which it has to take some
;;;   less than the least rate       since a wait for it began, beyond a time of grace
;;;
;;;   while                          the peer is looked at by
;;;   a handler waits for room       its worker: the server's AWAIT-PEER
;;;   no thread has the connection   the sentinel
;;;
;;; A wait begins when octets wait, and is looked at, and ends when none do: a handler may be slow
;;; as well.
;;;
;;; A peer may take octets long before the socket takes more of ours: the kernel waits until a
;;; third of its buffer, which may have megabytes, is free.  So the engine asks the kernel how many
;;; of its octets are unsent.  Octets that are on their way when a wait begins arrive at once, but
;;; the peer has not taken them yet; so the engine asks often.

(defparameter *reply-grace* 30
  "How many seconds a wait for a peer lasts before it counts how fast that takes octets.")

(defun limit-taking (queue seconds &optional rate)
  "From now on gives up the peer of QUEUE, a SEND-QUEUE, if it takes nothing for SECONDS, a real;
or, once waits for it have lasted *REPLY-GRACE* seconds, if it takes fewer than RATE octets a
second, an integer.  Either is NIL for no limit."
  (setf (send-queue-milliseconds queue) (as-milliseconds seconds)
        (send-queue-rate queue) rate))

(defun earlier (moment other)
  "The earlier one of MOMENT and OTHER, integers or NIL, for never."
  (if (and moment other) (min moment other) (or moment other)))

(defun taker-given-up-p (queue now)
  "Looks at NOW, in MILLISECONDS, how many octets the peer of QUEUE, a SEND-QUEUE in which octets
wait, has taken.  The first look begins a wait.  True if it has taken too few by then."
  (with-send-queue (queue)
    (when (send-queue-parts queue)
      ;; The kernel says how many are unsent, where it can.
      (let ((taken (- (send-queue-sent queue)
                      (max 0 (unsent-octets (send-queue-descriptor queue)))))
            (milliseconds (send-queue-milliseconds queue))
            (rate (send-queue-rate queue)))
        (cond ((null (send-queue-since queue))
               (setf (send-queue-since queue) now
                     (send-queue-moved queue) now
                     (send-queue-began queue) taken))
              ((> taken (send-queue-taken queue))
               (setf (send-queue-moved queue) now)))
        (setf (send-queue-taken queue) taken)
        (or (and milliseconds
                 (<= (+ (send-queue-moved queue) milliseconds) now))
            (and rate
                 (<= (+ (send-queue-since queue) (* 1000 *reply-grace*)
                        (floor (* 1000 (- taken (send-queue-began queue))) rate))
                     now)))))))
