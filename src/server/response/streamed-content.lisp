(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Content that is written piece by piece: by any thread, or by the handler.
;;;;
;;;; A shared queue: the content of one reply, or the frames of a socket, that any thread writes.
;;;; It writes to the send queue of the connection, whose lock guards it as well.
;;;;
;;;;   what a thread puts in                    is
;;;;   before the head of the reply was sent    held
;;;;   after that                               sent at once, as far as the client takes it
;;;;
;;;;   phase     meaning                   PUT-IN-SHARED-QUEUE
;;;;   :OPEN     more may come             accepts octets up to MARK
;;;;   :ENDING   no more will come         accepts none; the owner of the connection sends the rest
;;;;   :ENDED    it is over                accepts none
;;;;
;;;; It is full when more than MARK octets wait.  Vectors that were put in never change, so that
;;;; many queues may share them.  No lock is held during a call of a program's function; an error in
;;;; that affects no other.

(defstruct (shared-queue (:include opaque)
                         (:constructor make-shared-queue (mark queue engine announced))
                         (:copier nil))
  "Octets that any thread sends by QUEUE, a SEND-QUEUE.  It is full when more than MARK wait."
  (mark 0 :type index :read-only t)
  (queue nil :type send-queue :read-only t)
  (engine nil :read-only t)
  (announced nil :type (or null unsigned-byte)) ; octets that may still be put in, if limited
  (phase :open :type (member :open :ending :ended))
  (begun-p nil)                         ; the head was sent
  (held '() :type list)                 ; vectors that wait for that, the last first
  (size 0 :type fixnum)                 ; and their octets
  (silent-p nil :type boolean)          ; nothing was put in since the last SILENT-AGAIN-P
  (on-end '() :type list))              ; functions without arguments, called when it has ended

(defmacro with-shared-queue ((shared-queue) &body body)
  "Evaluates BODY, which is short and does not wait, while no other thread uses SHARED-QUEUE."
  `(with-send-queue ((shared-queue-queue ,shared-queue))
     ,@body))

(defun octets-waiting-in (shared-queue)
  "How many octets of SHARED-QUEUE wait, an integer; with those of the head."
  (if (shared-queue-begun-p shared-queue)
      (send-queue-size (shared-queue-queue shared-queue))
      (shared-queue-size shared-queue)))

(defun full-p (shared-queue)
  "True when more than MARK octets of SHARED-QUEUE wait."
  (> (octets-waiting-in shared-queue) (shared-queue-mark shared-queue)))

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
has ended; or :TOO-LONG because fewer octets were announced."
  (make-room-in-heap (length octets))   ; threads that write would fill it faster than it is freed
  (prog1 (with-shared-queue (shared-queue)
           (cond ((shared-queue-shut-p shared-queue) :over)
                 ((and (full-p shared-queue) (not however-full-p)) :refused)
                 ((and (shared-queue-announced shared-queue)
                       (> (length octets) (shared-queue-announced shared-queue)))
                  :too-long)
                 (t
                  (when (shared-queue-announced shared-queue)
                    (decf (shared-queue-announced shared-queue) (length octets)))
                  (setf (shared-queue-silent-p shared-queue) nil)
                  (cond ((shared-queue-begun-p shared-queue)
                         (write-under-lock (shared-queue-queue shared-queue)
                                           octets 0 (length octets) nil))
                        (t
                         (push octets (shared-queue-held shared-queue))
                         (incf (shared-queue-size shared-queue) (length octets))))
                  (if (full-p shared-queue) :full :room))))
    (make-room-for-output (shared-queue-engine shared-queue) (shared-queue-queue shared-queue))))

(defun owner-wanted-p (shared-queue)
  "True when octets of SHARED-QUEUE wait for the owner of the connection, since no poller does."
  (let ((queue (shared-queue-queue shared-queue)))
    (and (or (send-queue-parts queue) (send-queue-dead-p queue))
         (null (send-queue-arm queue)))))

(defun silent-again-p (shared-queue)
  "True when no octets were put into SHARED-QUEUE since the last call."
  (with-shared-queue (shared-queue)
    (shiftf (shared-queue-silent-p shared-queue) t)))

(defun close-shared-queue (shared-queue)
  "Makes SHARED-QUEUE accept no more octets; those in it are still sent.  True for the first call."
  (with-shared-queue (shared-queue)
    (unless (shared-queue-shut-p shared-queue)
      (setf (shared-queue-phase shared-queue) :ending))))

(defun drop-shared-queue (shared-queue)
  "Ends the connection of SHARED-QUEUE, whose peer is too slow.  Its owner does the rest."
  (end-queue (shared-queue-queue shared-queue) t))

(defun end-shared-queue (shared-queue)
  "Ends SHARED-QUEUE, and calls the functions of programs that wait for its end, or for room."
  (let* ((queue (shared-queue-queue shared-queue))
         (functions (with-shared-queue (shared-queue)
                      (setf (shared-queue-phase shared-queue) :ended
                            (shared-queue-held shared-queue) '()
                            (shared-queue-size shared-queue) 0)
                      (notify-waiters queue)
                      (append (reverse (shiftf (shared-queue-on-end shared-queue) '()))
                              (reverse (shiftf (send-queue-on-room queue) '()))))))
    (dolist (function functions)
      (call-noting (shared-queue-engine shared-queue) function))))

(defun call-noting (engine function &optional (occasion "a stream's room or end"))
  "Calls FUNCTION, which a program gave for OCCASION.  Logs an error in the log of ENGINE, but not
CLIENT-LEFT, by which a writer ends."
  (handler-case (funcall function)
    (client-left () nil)
    (error (condition)
      (log-message engine :error "What was to be done for ~A failed: ~A" occasion condition))))

(defun call-when-over (shared-queue function)
  "Calls FUNCTION, which has no arguments and does not wait, once, in any thread, when SHARED-QUEUE
has ended; at once if it has ended already."
  (when (with-shared-queue (shared-queue)
          (cond ((eq :ended (shared-queue-phase shared-queue)) t)
                (t (push function (shared-queue-on-end shared-queue)) nil)))
    (call-noting (shared-queue-engine shared-queue) function)))

(defun forget-when-over (shared-queue function)
  "Removes FUNCTION, an argument of an earlier CALL-WHEN-OVER, from SHARED-QUEUE."
  (with-shared-queue (shared-queue)
    (setf (shared-queue-on-end shared-queue)
          (remove function (shared-queue-on-end shared-queue) :test #'eq))))

(defun call-when-room (shared-queue function)
  "Calls FUNCTION, which has no arguments, once, in any thread.  Calls it at once if SHARED-QUEUE is
not full, or has ended; otherwise when at most half of its mark waits, or it has ended."
  (unless (with-shared-queue (shared-queue)
            (when (and (full-p shared-queue) (not (shared-queue-ended-p shared-queue)))
              (push (lambda () (call-noting (shared-queue-engine shared-queue) function))
                    (send-queue-on-room (shared-queue-queue shared-queue)))
              t))
    (let ((*giving-room-p* t))
      (call-noting (shared-queue-engine shared-queue) function))))

(defun await-room (shared-queue seconds)
  "Waits up to SECONDS, a real or NIL for no limit, until SHARED-QUEUE is not full or has ended.
True when it is so.  Returns NIL at once in a function that waited for room itself.  Where there is
a descriptor, a thread that waits also sends: it may be the owner, and all workers may wait."
  (let* ((queue (shared-queue-queue shared-queue))
         (end (end-after seconds))
         (changed (with-shared-queue (shared-queue)
                    (or (send-queue-changed queue)
                        (setf (send-queue-changed queue) (bt:make-condition-variable))))))
    (flet ((room-p ()
             (or (not (full-p shared-queue)) (shared-queue-ended-p shared-queue))))
      (loop until (or *giving-room-p* (room-p))
            do (when (eql 0 (milliseconds-left end))
                 (return nil))
               (cond ((and (shared-queue-begun-p shared-queue) (send-queue-descriptor queue))
                      (await-descriptor (send-queue-descriptor queue) :output
                                        :until (earlier end (+ (milliseconds) 250)))
                      (when (taker-given-up-p queue (milliseconds))
                        (end-queue queue t))
                      (flush-queue queue))
                     (t                 ; another thread sends
                      (wait-until #'room-p changed (send-queue-lock queue)
                                  (min 1/4 (/ (or (milliseconds-left end) 250) 1000)) nil)))
            finally (return (room-p))))))

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
    (with-shared-queue (shared-queue)
      (and (not (eq :open (shared-queue-phase shared-queue)))
           (null (send-queue-parts queue))))))

(defun begin-shared-queue (shared-queue io)
  "Writes what was put into SHARED-QUEUE so far, and lets other threads write to IO from now on."
  (let ((queue (shared-queue-queue shared-queue)))
    (push-output io)                    ; the head
    (with-shared-queue (shared-queue)
      (setf (send-queue-mark queue) (shared-queue-mark shared-queue)
            (shared-queue-begun-p shared-queue) t
            (shared-queue-size shared-queue) 0)
      (dolist (octets (reverse (shiftf (shared-queue-held shared-queue) '())))
        (write-under-lock queue octets 0 (length octets) nil)))
    (flush-queue queue)))

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
;;; Chunks are composed in the output buffer of the connection.  Each is complete at any time, so
;;; that a read of content, which sends the output first, may come between two writes.  Writes
;;; without a flush between them share one chunk, as long as the buffer has room.

(defclass reply-stream (trivial-gray-streams:fundamental-binary-output-stream
                        trivial-gray-streams:trivial-gray-stream-mixin)
  ((io :initarg :io :reader reply-stream-io)
   (inner :initarg :inner :reader reply-stream-inner
          :documentation "The stream of the connection.")
   (framing :initarg :framing :accessor reply-stream-framing)
   ;; The last chunk in the output buffer: where it begins, its number of octets, and where it ends.
   ;; If the buffer ends elsewhere, that chunk was sent.
   (chunk-start :initform 0 :accessor chunk-start)
   (chunk-size :initform 0 :accessor chunk-size)
   (chunk-end :initform 0 :accessor chunk-end))
  (:documentation "A stream for the octets of the content of one reply."))

(defun make-reply-stream (io inner framing)
  "A stream for the content of a reply over IO, whose head was written, on the stream INNER.
FRAMING is :CHUNKED, :PLAIN, :NONE or the number of octets of the content."
  (make-instance 'reply-stream :io io :inner inner :framing framing))

(defun framing-of-stream (method status length chunked-p)
  "The framing, as for MAKE-REPLY-STREAM, of streamed content for a reply with STATUS to a request
by METHOD; and what the head says of it: a number of octets, :CHUNKED, or NIL for nothing.  LENGTH
is the number of octets, or NIL if unknown; then CHUNKED-P says whether chunks are allowed (RFC
9112, section 6)."
  (let ((said (and (body-allowed-p status)
                   (or length (and chunked-p :chunked)))))
    (values (cond ((eql 101 status) :plain)
                  ((not (content-wanted-p method status)) :none)
                  (t (or said :plain)))
            said)))

(defun framed (octets framing)
  "OCTETS, which must not change any more, in the form that FRAMING, of a REPLY-STREAM, requires."
  (if (eq :chunked framing) (chunk-of octets) octets))

(defun write-encoded (io output)
  "Writes the octets of OUTPUT, which are of no use in part, to IO, with backpressure."
  (whole-or-broken (io)
    (write-with-backpressure io (output-octets output) 0 (output-fill output))))

(defun write-chunked (stream octets start end)
  "Writes OCTETS from START to END to STREAM in chunks."
  (let ((io (reply-stream-io stream)))
    (check-range octets start end)
    (loop while (< start end)
          do (let* ((buffer (output-buffer io))
                    (fill (io-fill io))
                    (last-p (and (plusp fill) (= fill (the index (chunk-end stream)))))
                    (first (if last-p (chunk-start stream) fill))
                    (size (if last-p (chunk-size stream) 0))
                    (count (min (- end start) (chunk-room size (- (length buffer) first)))))
               (declare (type index fill first size count))
               (if (zerop count)
                   (empty-output io)
                   (multiple-value-bind (position chunk-end)
                       (lengthen-chunk buffer first size count)
                     (replace buffer octets :start1 position :start2 start :end2 (+ start count))
                     (setf (chunk-start stream) first
                           (chunk-size stream) (+ size count)
                           (chunk-end stream) chunk-end
                           (io-fill io) chunk-end)
                     (incf start count)))))))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream reply-stream) sequence start end &key)
  (let ((io (reply-stream-io stream))
        (framing (reply-stream-framing stream)))
    (cond ((member framing '(nil :none)))
          ((not (typep sequence 'octets))
           (write-sequence (coerce (subseq sequence start end) 'octets) stream))
          ((eq :chunked framing)
           (write-chunked stream sequence start end))
          ((eq :plain framing)
           (write-with-backpressure io sequence start end))
          (t                            ; as far as the announced length goes
           (let ((count (min framing (- end start))))
             (whole-or-broken (io)
               (write-with-backpressure io sequence start (+ start count))
               (setf (reply-stream-framing stream) (- framing count)))
             (when (< (+ start count) end)
               (error 'content-too-long :stream (io-stream io)))))))
  sequence)

(defmethod trivial-gray-streams:stream-write-byte ((stream reply-stream) octet)
  (check-type octet octet)
  (let ((octets (make-octets 1)))
    (setf (aref octets 0) octet)
    (write-sequence octets stream))
  octet)

(defun flush-reply (stream)
  "Sends as much of the output of STREAM as the client takes now."
  (when (reply-stream-framing stream)
    (push-output (reply-stream-io stream)))
  nil)

(defmethod trivial-gray-streams:stream-force-output ((stream reply-stream))
  (flush-reply stream))

(defmethod trivial-gray-streams:stream-finish-output ((stream reply-stream))
  (flush-reply stream))

(defmethod stream-element-type ((stream reply-stream))
  '(unsigned-byte 8))

;;; The end

(defun note-sent-beside (stream shared-queue)
  "Notes that content of STREAM, a REPLY-STREAM, was sent from SHARED-QUEUE: sets the rest of the
announced length."
  (when (shared-queue-announced shared-queue)
    (setf (reply-stream-framing stream) (shared-queue-announced shared-queue))))

(defun end-reply (stream)
  "Ends the content of STREAM, a REPLY-STREAM, if it has not ended yet.  Octets that the peer does
not take now are queued.  True when the content has its announced length."
  (let ((io (reply-stream-io stream))
        (framing (shiftf (reply-stream-framing stream) nil)))
    (when (and framing (io-open-p io))
      (when (eq :chunked framing)
        (with-reply (end)
          (encode-octets end *last-chunk*)
          (write-encoded io end)))
      (push-output io))
    (not (typep framing '(integer 1)))))

(defmethod close ((stream reply-stream) &key abort)
  (unless abort
    (end-reply stream))
  (setf (reply-stream-framing stream) nil)
  (close (reply-stream-inner stream) :abort abort))
