(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Content that is written piece by piece: by any thread, or by the handler.

;;; A shared queue: the content of one reply, or the frames of a socket, that any thread writes.  It
;;; writes to the send queue of the connection, whose lock guards it as well.
;;;
;;;   what a thread puts in                    is
;;;   before the head of the reply was sent    held
;;;   after that                               sent at once, as far as the client takes it
;;;
;;;   phase     meaning                   PUT-IN-SHARED-QUEUE
;;;   :OPEN     more may come             accepts octets up to MARK
;;;   :ENDING   no more will come         accepts none; the owner of the connection sends the rest
;;;   :ENDED    it is over                accepts none
;;;
;;; It is full when more than MARK octets wait.  Vectors that were put in never change, so that many
;;; queues may share them.

(defstruct (shared-queue (:include opaque) (:copier nil))
  "Octets that any thread sends by QUEUE, a SEND-QUEUE.  It is full when more than MARK wait."
  ;; The SUSPENDED-EXCHANGE whose octets they are.
  (suspended-exchange nil :read-only t)
  (queue nil :type send-queue :read-only t)
  (mark 0 :type index :read-only t)
  ;; The first value of FRAMING-OF-STREAM; not changed by writing.
  (framing :plain :read-only t)
  ;; How many octets may still be put in, an integer; NIL where their number was not announced.
  (announced nil :type (or null unsigned-byte))
  (coding nil)                          ; of the content; NIL for none
  (compressor nil)                      ; for that, until it has ended
  (reserved 0 :type index)              ; octets of memory that are reserved for that
  (phase :open :type (member :open :ending :ended))
  (closed-p nil)                        ; the program has closed it
  (begun-p nil)                         ; the head was sent
  (held '() :type list)                 ; vectors that wait for that, the last first
  (size 0 :type fixnum)                 ; how many octets were held
  (on-end '() :type list))              ; functions without arguments, called when it has ended

(defun make-queue (constructor suspended-exchange mark framing coding &rest slots)
  "A SHARED-QUEUE for SUSPENDED-EXCHANGE, in which MARK octets may wait, with FRAMING and CODING, if
memory can be reserved for that.  CONSTRUCTOR, a function, makes it with SLOTS besides."
  (let ((shared-queue
          (apply constructor
                 :suspended-exchange suspended-exchange :mark mark :framing framing
                 :announced (and (integerp framing) framing)
                 :queue (io-queue (http-io (connection-data
                                            (suspended-exchange-connection suspended-exchange))))
                 slots)))
    (cond ((or (null coding) (eq :none framing))
           (setf (shared-queue-coding shared-queue) coding))
          ((change-reservation (shared-queue-reserved shared-queue)
                               (getf *compressor-octets* coding) :share *waiting-share*)
           (setf (shared-queue-coding shared-queue) coding
                 (shared-queue-compressor shared-queue) (funcall 'make-compressor coding))))
    shared-queue))

(defun shared-queue-engine (shared-queue)
  "The engine of the connection of SHARED-QUEUE."
  (suspended-exchange-engine (shared-queue-suspended-exchange shared-queue)))

(defun full-p (shared-queue)
  "True when more than MARK octets of SHARED-QUEUE wait, with those of the head."
  (> (if (shared-queue-begun-p shared-queue)
         (send-queue-size (shared-queue-queue shared-queue))
         (shared-queue-size shared-queue))
     (shared-queue-mark shared-queue)))

(defun shared-queue-shut-p (shared-queue)
  "True when SHARED-QUEUE accepts no octets any more, however much room there is."
  (or (not (eq :open (shared-queue-phase shared-queue)))
      (send-queue-dead-p (shared-queue-queue shared-queue))))

(defun shared-queue-ended-p (shared-queue)
  "True when SHARED-QUEUE has ended, or its octets were dropped."
  (or (eq :ended (shared-queue-phase shared-queue))
      (send-queue-dead-p (shared-queue-queue shared-queue))))

(defun put-in-shared-queue (shared-queue octets &optional however-full-p)
  "Puts OCTETS, a vector that must not change any more, into SHARED-QUEUE.  Returns :ROOM when more
may follow, or :FULL when the caller should wait for room before the next call.  Otherwise it has
not accepted them, and returns :REFUSED because it was full, unless HOWEVER-FULL-P; :OVER because it
has ended; or :TOO-LONG because fewer octets were announced.  OCTETS are FRAMED."
  (make-room-in-heap (length octets))   ; threads that write would fill it faster than it is freed
  (prog1 (with-send-queue ((shared-queue-queue shared-queue))
           (cond ((shared-queue-shut-p shared-queue) :over)
                 ((and (full-p shared-queue) (not however-full-p)) :refused)
                 ((and (shared-queue-announced shared-queue)
                       (> (length octets) (shared-queue-announced shared-queue)))
                  :too-long)
                 (t
                  (when (shared-queue-announced shared-queue)
                    (decf (shared-queue-announced shared-queue) (length octets)))
                  (when (shared-queue-compressor shared-queue)
                    (setf octets (compressed-piece shared-queue octets :flush)))
                  (cond ((shared-queue-begun-p shared-queue)
                         (write-under-lock (shared-queue-queue shared-queue)
                                           (list (make-octets-part octets))))
                        (t
                         (push octets (shared-queue-held shared-queue))
                         (incf (shared-queue-size shared-queue) (length octets))))
                  (if (full-p shared-queue) :full :room))))
    (when (send-queue-carrier (shared-queue-queue shared-queue))
      (send-on (shared-queue-queue shared-queue)))
    (make-room-for-output (shared-queue-engine shared-queue) (shared-queue-queue shared-queue))))

(defun compressed-piece (shared-queue octets operation)
  "OCTETS in the coding and the framing of SHARED-QUEUE, after what was put in before."
  (let ((output (make-output (make-octets 256))))
    (compress (shared-queue-compressor shared-queue) octets 0 (length octets) operation
              (lambda (octets end) (encode-octets output octets 0 end)))
    (framed-as (subseq (output-octets output) 0 (output-fill output))
               (shared-queue-framing shared-queue))))

(defun last-parts (shared-queue)
  "The parts that follow what was put into SHARED-QUEUE, and end its content."
  (mapcar #'make-octets-part
          `(,@(and (shared-queue-coding shared-queue)
                   (list (compressed-piece shared-queue *no-octets* :finish)))
            ,@(and (eq :chunked (shared-queue-framing shared-queue))
                   (list *last-chunk*)))))

(defun owner-wanted-p (shared-queue)
  "True when octets of SHARED-QUEUE wait for the owner of the connection, since no poller does."
  (let ((queue (shared-queue-queue shared-queue)))
    (and (send-queue-parts queue) (null (send-queue-arm queue)))))

(defun close-shared-queue (shared-queue)
  "Makes SHARED-QUEUE accept no more octets; those in it are still sent.  True for the first call."
  (with-send-queue ((shared-queue-queue shared-queue))
    (unless (shared-queue-shut-p shared-queue)
      (setf (shared-queue-phase shared-queue) :ending))))

(defun end-shared-queue (shared-queue)
  "Ends SHARED-QUEUE, and calls the functions that wait for its end."
  (mapc #'funcall (with-send-queue ((shared-queue-queue shared-queue))
                    (setf (shared-queue-phase shared-queue) :ended
                          (shared-queue-held shared-queue) '())
                    (let ((compressor (shiftf (shared-queue-compressor shared-queue) nil)))
                      (when compressor
                        (funcall 'end-compressor compressor))
                      (change-reservation (shared-queue-reserved shared-queue) 0))
                    (shiftf (shared-queue-on-end shared-queue) '()))))

(defun call-when-over (shared-queue function)
  "Has FUNCTION, which has no arguments and does not wait, called once, in any thread, when
SHARED-QUEUE ends.  The caller looks afterwards whether it had ended before."
  (with-send-queue ((shared-queue-queue shared-queue))
    (push function (shared-queue-on-end shared-queue))))

(defun forget-when-over (shared-queue function)
  "Removes FUNCTION, an argument of an earlier CALL-WHEN-OVER, from SHARED-QUEUE."
  (with-send-queue ((shared-queue-queue shared-queue))
    (setf (shared-queue-on-end shared-queue)
          (remove function (shared-queue-on-end shared-queue) :test #'eq))))

;;; The owner of the connection

(defun send-queued (shared-queue io)
  "Sends as much of SHARED-QUEUE over IO as the peer takes now.  True when all of it was sent, and
no more will follow.  Signals DESCRIPTOR-BROKEN."
  (let ((queue (shared-queue-queue shared-queue)))
    (unless (shared-queue-begun-p shared-queue)
      (begin-shared-queue shared-queue io))
    (if (engine-sends-p io)
        (flush-io io)
        (send-output io))               ; a program has a stream beside it, or the whole connection
    (with-send-queue ((shared-queue-queue shared-queue))
      (and (not (eq :open (shared-queue-phase shared-queue)))
           (null (send-queue-parts queue))))))

(defun begin-shared-queue (shared-queue io)
  "Writes what was put into SHARED-QUEUE so far, and lets other threads write to IO from now on."
  (let ((queue (shared-queue-queue shared-queue)))
    (push-output io)                    ; the head
    (with-send-queue ((shared-queue-queue shared-queue))
      (setf (shared-queue-begun-p shared-queue) t)
      (dolist (octets (reverse (shiftf (shared-queue-held shared-queue) '())))
        (write-under-lock queue (list (make-octets-part octets)))))))

;;; Writing, from any thread

(defun have-sent (shared-queue)
  "Sends what of SHARED-QUEUE no poller has sent, unless a worker keeps the connection for it.  Has
the owner of the connection do so otherwise, and look at its suspended exchange."
  (let* ((suspended-exchange (shared-queue-suspended-exchange shared-queue))
         (owner-p (eq (bt:current-thread) (suspended-exchange-owner suspended-exchange)))
         (queue (shared-queue-queue shared-queue)))
    (when (and (shared-queue-begun-p shared-queue)
               ;; The owner may be in a function of the program for long.
               (or owner-p
                   (and (null (send-queue-descriptor queue)) ; its sender waits
                        (null (suspended-exchange-keeper suspended-exchange)))))
      (flush-queue queue))
    (unless owner-p
      (resume suspended-exchange))))

(defun put-waiting (shared-queue wait put)
  "Calls PUT, which returns what PUT-IN-SHARED-QUEUE does for SHARED-QUEUE, until that has taken its
octets, and has them sent.  Waits for room: up to WAIT seconds, a real; while the client takes
octets, for T; not for NIL, nor in the owner before the head was sent.  Returns :ROOM when more may
follow at once, else what PUT has returned last, or :OVER.  Where there is a descriptor, a thread
that waits also sends: it may be the owner, and all workers may wait."
  (let* ((suspended-exchange (shared-queue-suspended-exchange shared-queue))
         (owner-p (eq (bt:current-thread) (suspended-exchange-owner suspended-exchange)))
         (queue (shared-queue-queue shared-queue))
         (descriptor (send-queue-descriptor queue)))
    (labels ((over-or-room-p ()
               (or (shared-queue-ended-p shared-queue) (not (full-p shared-queue))))
             (await-room ()
               (loop with end = (end-after (if (eq t wait) nil wait))
                     for now = (milliseconds)
                     until (or (over-or-room-p) (and end (<= end now)))
                     do (cond ((and (shared-queue-begun-p shared-queue) descriptor)
                               (await-taker queue (earlier end (+ now 250)))
                               (when (taker-given-up-p queue (milliseconds))
                                 (end-queue queue t))
                               (flush-queue queue))
                              (t        ; another thread sends
                               (wait-until #'over-or-room-p (bt:make-condition-variable)
                                           (send-queue-lock queue) 1/4 1/100))))))
      (loop
        (let ((result (funcall put)))
          (when (and (member result '(:room :full)) (owner-wanted-p shared-queue))
            (have-sent shared-queue))
          (unless (member result '(:full :refused))
            (return result))
          (unless (or (null wait)
                      (and owner-p (not (shared-queue-begun-p shared-queue)))
                      ;; Workers may wait for too many clients.
                      (wait-for-client (suspended-exchange-connection suspended-exchange)
                                       :output #'await-room))
            (end-queue queue t))
          (cond ((shared-queue-ended-p shared-queue) (return :over))
                ((full-p shared-queue) (return result))
                ((eq :full result) (return :room))))))))

(defun write-waiting (shared-queue wait put)
  "Writes to SHARED-QUEUE; WAIT and PUT are as in PUT-WAITING.  True when more may follow.  Signals
STREAM-FULL or CONTENT-TOO-LONG; when SHARED-QUEUE is over, REPLY-ALREADY-SENT if the program has
closed it, else CLIENT-LEFT."
  (ecase (put-waiting shared-queue wait put)
    (:room t)
    (:full nil)
    (:refused (error 'stream-full))
    (:too-long (error 'content-too-long :stream nil))
    (:over (if (shared-queue-closed-p shared-queue)
               (error 'reply-already-sent)
               (error 'client-left :source (shared-queue-suspended-exchange shared-queue))))))

(defun write-content (shared-queue octets wait)
  "Writes OCTETS, content that must not change any more, to SHARED-QUEUE in its framing, as
WRITE-WAITING does."
  (let ((framed (framed octets shared-queue)))
    (write-waiting shared-queue wait (lambda () (put-in-shared-queue shared-queue framed)))))

(defun close-content (shared-queue)
  "Ends SHARED-QUEUE for the program: what was written is still sent.  True for the first call,
unless it is over."
  (setf (shared-queue-closed-p shared-queue) t)
  (when (close-shared-queue shared-queue)
    (resume (shared-queue-suspended-exchange shared-queue))
    t))

;;; A reply stream: a handler writes the content of its reply to it, after the head.
;;;
;;;   framing     the content                                 octets that are written
;;;   :CHUNKED    ends with the last chunk                    become chunks
;;;   a number    has so many octets more                     are sent unchanged; more are an error
;;;   :PLAIN      ends with the connection, or is of another  are sent unchanged
;;;               protocol
;;;   :NONE       does not exist                              are dropped
;;;   NIL         has ended                                   are dropped
;;;
;;; A chunk is composed in the output buffer of the connection, from which the head was sent.  It is
;;; complete at any time, so that a read of content, which sends the output first, may come between
;;; two writes.  Writes without a flush between them share it, as long as the buffer has room.

(defclass reply-stream (descriptor-stream)
  ((inner :initarg :inner :reader reply-stream-inner
          :documentation "The stream of the connection.")
   (framing :initarg :framing :accessor reply-stream-framing)
   (compressor :initarg :compressor :initform nil :reader reply-stream-compressor)
   (number :reader reply-stream-number :documentation "That of the content at COMPRESSOR."))
  (:documentation "A stream for the octets of the content of one reply."))

(defun framing-of-stream (method status length chunked-p)
  "The framing of streamed content for a reply with STATUS to a request by METHOD: :CHUNKED, :PLAIN,
:NONE or a number of octets; and what the head says of it: a number of octets, :CHUNKED, or NIL for
nothing.  LENGTH is the number of octets, or NIL if unknown; then CHUNKED-P says whether chunks are
allowed (RFC 9112, section 6)."
  (let ((said (and (body-allowed-p status)
                   (or length (and chunked-p :chunked)))))
    (values (cond ((eql 101 status) :plain)
                  ((not (content-wanted-p method status)) :none)
                  (t (or said :plain)))
            said)))

(defun framed-as (octets framing)
  "OCTETS, which must not change any more, in the form that FRAMING, of a REPLY-STREAM, requires."
  (if (and (eq :chunked framing) (plusp (length octets))) ; an empty chunk would be the last one
      (chunk-of octets)
      octets))

(defun framed (octets shared-queue)
  "OCTETS, which must not change any more, in the form in which PUT-IN-SHARED-QUEUE takes them."
  (if (shared-queue-coding shared-queue)
      octets
      (framed-as octets (shared-queue-framing shared-queue))))

(defun write-chunked (io octets start end)
  "Writes OCTETS from START to END to IO in chunks."
  (check-range octets start end)
  (loop with digits = 4                 ; enough for a whole buffer
        while (< start end)
        do (let* ((buffer (output-buffer io))
                  (fill (io-fill io))
                  (position (if (plusp fill) (- fill 2) (+ digits 2)))
                  (count (min (- end start) (- (length buffer) position 2))))
             (declare (type index fill position) (type fixnum count))
             (cond ((plusp count)
                    (replace buffer octets :start1 position :start2 start :end2 (+ start count))
                    (setf (io-fill io) (frame-chunk buffer 0 digits (+ position count)))
                    (incf start count))
                   (t (empty-output io))))))

(defun write-as (io framing octets start end)
  "Writes OCTETS from START to END to IO with FRAMING, :CHUNKED or :PLAIN."
  (if (eq :chunked framing)
      (write-chunked io octets start end)
      (write-with-backpressure io octets start end)))

(defun write-coded (stream framing octets start end operation)
  "Writes OCTETS from START to END in the coding of STREAM, a REPLY-STREAM, with FRAMING."
  (compress (reply-stream-compressor stream) octets start end operation
            (lambda (octets end) (write-as (stream-io stream) framing octets 0 end))
            (reply-stream-number stream)))

(defmethod initialize-instance :after ((stream reply-stream) &key compressor)
  (when compressor
    (setf (slot-value stream 'number) (funcall 'compressor-content compressor))))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream reply-stream) sequence start end &key)
  (let ((io (stream-io stream))
        (framing (reply-stream-framing stream)))
    (cond ((member framing '(nil :none)))
          ((not (typep sequence 'octets))
           (write-sequence (coerce (subseq sequence start end) 'octets) stream))
          ((reply-stream-compressor stream)
           (write-coded stream framing sequence start end :go-on))
          ((symbolp framing)
           (write-as io framing sequence start end))
          (t                            ; as far as the announced length goes
           (let ((count (min framing (- end start))))
             (whole-or-broken (io)
               (write-with-backpressure io sequence start (+ start count))
               (setf (reply-stream-framing stream) (- framing count)))
             (when (< count (- end start))
               (error 'content-too-long :stream (io-stream io)))))))
  sequence)

(defmethod trivial-gray-streams:stream-finish-output ((stream reply-stream))
  "Sends as much of the output of STREAM as the client takes now."
  (let ((framing (reply-stream-framing stream)))
    (when framing
      (when (reply-stream-compressor stream)
        (write-coded stream framing *no-octets* 0 0 :flush))
      (push-output (stream-io stream))))
  nil)

;;; The end

(defun end-reply (stream)
  "Ends the content of STREAM, a REPLY-STREAM, if it has not ended yet.  Octets that the peer does
not take now are queued.  True when the content has its announced length."
  (let ((io (stream-io stream))
        (framing (shiftf (reply-stream-framing stream) nil)))
    (when (and framing (io-open-p io))
      (whole-or-broken (io)
        (when (reply-stream-compressor stream)
          (write-coded stream framing *no-octets* 0 0 :finish))
        (when (eq :chunked framing)
          (write-with-backpressure io *last-chunk* 0 (length *last-chunk*))))
      (push-output io))
    (not (typep framing '(integer 1)))))

(defmethod close ((stream reply-stream) &key abort)
  (unless abort
    (end-reply stream))
  (setf (reply-stream-framing stream) nil)
  (close (reply-stream-inner stream) :abort abort))
