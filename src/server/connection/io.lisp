(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A buffered connection: its octets, an input buffer (received, not yet read), and an output
;;;; buffer (written, not yet sent).
;;;;
;;;;   octets come and leave by       where
;;;;   the descriptor                 the platform reads descriptors
;;;;   a TLS-SESSION on that          likewise, after the handshake has begun
;;;;   a stream, which waits          other Lisps; and where a program has put a stream around ours
;;;;
;;;; The buffers belong to the worker, which lends them to the connection for a request.

;;; The buffers of a worker

(defstruct (worker-buffers (:include opaque) (:constructor make-worker-buffers ()))
  "The buffers of a worker."
  (free nil)                            ; a buffer that no connection uses, or NIL
  (reply (make-output) :read-only t)    ; replies are composed here
  (plain (make-output) :read-only t)    ; and content that is compressed
  (compressors '() :type list)          ; by coding, a plist
  (line (make-output) :read-only t))    ; lines of a journal are composed here

(defvar *worker-buffers* nil
  "The worker buffers of the current thread, if it is a worker; otherwise NIL.")

(defun call-with-worker-buffers (thunk)
  "Calls THUNK, the main function of a worker, with worker buffers."
  (let ((*worker-buffers* (make-worker-buffers)))
    (unwind-protect (funcall thunk)
      (loop for (nil compressor) on (worker-buffers-compressors *worker-buffers*) by #'cddr
            do (funcall 'end-compressor compressor)))))

(defstruct (free-list (:include opaque) (:constructor make-free-list (most)) (:copier nil))
  "At most MOST objects that no thread uses, for any thread to take."
  (most 0 :type index :read-only t)
  (items '() :type list))

(defun take-from-free-list (free-list)
  "Removes an object from FREE-LIST and returns it; NIL when it has none."
  (loop for items = (free-list-items free-list)
        while items
        when (compare-and-set (free-list-items free-list) items (rest items))
          return (first items)))

(defun put-on-free-list (free-list object)
  "Adds OBJECT to FREE-LIST.  OBJECT becomes garbage when the free list is full, or when another
thread changes it at the same time."
  (let ((items (free-list-items free-list)))
    (when (< (length items) (free-list-most free-list))
      (compare-and-set (free-list-items free-list) items (cons object items)))))

(defconstant +buffer-size+ (- (* 32 1024) 16)
  "With its header, such a vector takes one page of SBCL's heap.")

(defvar *buffers* (make-free-list 64)
  "Buffers that neither a connection nor a worker has.  A connection often takes a buffer in one
thread and returns it in another: wherever they flow, about as many exist as are in use.")

(defun take-buffer ()
  "A buffer for the input or the output of a connection."
  (let ((own *worker-buffers*))
    (or (and own (shiftf (worker-buffers-free own) nil))
        (take-from-free-list *buffers*)
        (make-octets +buffer-size+))))

(defun return-buffer (buffer)
  "Keeps BUFFER, to which nothing refers any more, for the next connection that takes one."
  (let ((own *worker-buffers*))
    (cond ((/= (length (the octets buffer)) +buffer-size+)) ; it grew, for a long head for example
          ((and own (null (worker-buffers-free own)))
           (setf (worker-buffers-free own) buffer))
          (t
           (put-on-free-list *buffers* buffer)))))

;;; A buffered connection

(defstruct (io (:include opaque) (:copier nil)
               (:constructor make-io (descriptor queue source beneath)))
  "A buffered connection.  Invariants: INPUT is NIL, or its octets from START to END were received
and not read; OUTPUT is NIL, or its octets from 0 to FILL were written and not sent; QUEUE has what
was written before those.  DRAINED-P is true only if the poller will report the next octets."
  (descriptor nil :type (or null descriptor)) ; NIL after closing
  (tls nil)                             ; a TLS-SESSION on it; ended, after closing
  ;; A function that receives instead, as RECEIVE-OCTETS does without its first argument; or NIL.
  (receiver nil :type (or null function))
  (source nil)                          ; a stream that carries the octets, and waits; or NIL
  (beneath nil :read-only t)            ; the buffered connection beneath SOURCE, if that is ours
  (stream nil)                          ; the stream of octets on top of this
  ;; The CONNECTION of the engine; NIL where there is none, or not yet.
  (connection nil)
  ;; The party that closes the descriptor.  :ENGINE: the engine, which watches it, so that CLOSE
  ;; only shuts it down.  :STREAM: CLOSE closes it.
  (owner :engine :type (member :engine :stream))
  (lent nil)                            ; the Lisp's own stream beside it, see io-stream.lisp
  (source-ready-p nil)                  ; the socket beneath SOURCE has octets that were not read
  (milliseconds -1 :type fixnum)        ; limit of one wait for input; -1 for none
  (input nil :type (or null octets))
  (start 0 :type index)
  (end 0 :type index)
  ;; A program uses it for another protocol, and its waits have no share.
  (talked-on-p nil)
  (drained-p nil)
  (reserved 0 :type index)              ; octets of the client memory budget, for INPUT that waits
  (queue nil :type send-queue)
  (output nil :type (or null octets))
  (fill 0 :type index))

(define-condition stream-timeout (client-left stream-error)
  ()
  (:report (lambda (condition stream)
             (format stream "The peer of ~A took too long." (stream-error-stream condition))))
  (:documentation "Reading or writing took longer than it may."))

(define-condition descriptor-broken (client-left stream-error)
  ()
  (:report (lambda (condition stream)
             (format stream "~A is closed, or broken." (stream-error-stream condition))))
  (:documentation "Signalled by reading and writing when the connection was closed, was reset, or
failed otherwise."))

(defun fail-as-broken (io)
  "Signals that the descriptor of IO is closed, or has failed."
  (error 'descriptor-broken :stream (io-stream io)))

(declaim (inline io-unsent io-open-p io-base open-descriptor))
(defun io-unsent (io)
  "The parts (see PART) that were written to IO and not accepted by its descriptor, a list."
  (send-queue-parts (io-queue io)))

(defun io-open-p (io)
  "True until IO is closed."
  (and (or (io-descriptor io) (io-source io)) t))

(defun io-base (io)
  "The buffered connection whose descriptor is beneath IO: IO itself unless a stream that was made
of another's carries it."
  (or (io-beneath io) io))

(defun open-descriptor (io)
  "The descriptor of IO, for a system call.  Signals DESCRIPTOR-BROKEN when it was closed."
  (or (io-descriptor io)
      (fail-as-broken io)))

(defun io-tls-handle (io)
  "The SSL object of OpenSSL by which the octets of IO are encrypted, a foreign pointer; NIL where
there is none, or it is closed."
  (cond ((io-tls io) (tls-session-pointer (io-tls io)))
        ((io-source io) (stream-tls-handle (io-source io)))))

;;; The stream that waits
;;;
;;; No octet of it is read before a reader wants it.  A program that has made the stream, or talks
;;; another protocol after the request, goes on reading from it; and a read of more octets than come
;;; would wait in vain.  The length of a head is unknown, so it is read line by line.

(defmacro or-broken ((stream) &body body)
  "The value of BODY, which reads or writes STREAM and returns a number; a negative error number
where that fails.  Signals STREAM-TIMEOUT where a wait was too long."
  `(handler-case (progn ,@body)
     (stream-timeout (condition) (error condition)) ; of the buffered connection beneath
     ;; The Lisp, or the program, may signal any error when the peer is gone.
     (error (condition)
       (if (wait-timed-out-p condition)
           (error 'stream-timeout :stream ,stream)
           (- +eio+)))))

(defun read-line-octets (stream octets start end)
  "Reads a line of STREAM, with its end, to OCTETS from START, up to END.  Returns how many octets;
after a failure, those that came before, if any."
  (let ((position start))
    (handler-case (loop for octet = (and (< position end) (read-byte stream nil))
                        while octet
                        do (setf (aref octets position) octet)
                           (incf position)
                        until (= octet (load-time-value (char-code #\Newline))))
      (error (condition)
        (when (= position start)
          (error condition))))
    (- position start)))

(defun source-ready-p (io)
  "True when a read of the stream that carries IO would return octets, or its end, at once."
  (or (io-source-ready-p io)
      ;; A stream may signal its end here already; the next read signals it again.
      (handler-case (listen (io-source io))
        (error () t))))

;;; Input

(defun receive (io octets start end &optional wanted)
  "Receives octets for IO into OCTETS from START, up to END.  A stream that waits is read for WANTED
octets, or up to the end of a line if that is NIL.  Returns :SOME and how many, :NONE or :END.
Signals DESCRIPTOR-BROKEN."
  (let* ((tls (io-tls io))
         (source (io-source io))
         (count (cond (source
                       (setf (io-source-ready-p io) nil)
                       (or-broken (source)
                         (if wanted
                             (read-stream-octets source octets start (min end (+ start wanted)))
                             (read-line-octets source octets start end))))
                      (tls (receive-tls tls octets start end))
                      ((io-receiver io) (funcall (io-receiver io) octets start end))
                      (t (receive-octets (open-descriptor io) octets start end)))))
    (declare (type fixnum count))
    (setf (io-drained-p io)
          (cond ((or source (io-lent io)) nil) ; a program may have taken some
                ((null tls) (< count (- end start)))
                ((would-block-p count) (eq :input (tls-awaits tls))) ; or it has read nothing
                (t (tls-session-drained-p tls))))
    (cond ((plusp count) (values :some count))
          ((zerop count) :end)
          ((would-block-p count) :none)
          (t (fail-as-broken io)))))

(defun fill-input (io &optional wanted)
  "Receives octets for IO unless it has some; in addition to them if WANTED is :MORE.  Returns :SOME
when there is input, :NONE when nothing has come, :END when nothing will come.  Waits only where a
stream carries IO: for the next line with :MORE, and for WANTED octets if that is a number.  Signals
DESCRIPTOR-BROKEN."
  (let ((buffer (io-input io)) (start (io-start io)) (end (io-end io)))
    (cond ((and (< start end) (not (eq :more wanted)))
           (return-from fill-input :some))
          ((not (io-open-p io))
           (return-from fill-input :end))
          ((and (io-source io) (null wanted) (not (source-ready-p io)))
           (return-from fill-input :none))
          ((= start end)
           (setf start 0 end 0)
           (unless (and buffer (>= (length buffer) +buffer-size+))
             (setf buffer (setf (io-input io) (take-buffer)))))
          ((= end (length buffer))      ; move the input, or make the buffer larger
           (setf buffer (replace (if (plusp start) buffer (make-octets (* 2 (length buffer))))
                                 buffer :start2 start :end2 end)
                 end (- end start)
                 start 0)))
    (setf (io-input io) buffer
          (io-start io) start
          (io-end io) end)
    (when (and wanted (io-source io))   ; the peer may be waiting for what was not sent
      (send-output io))
    (multiple-value-bind (outcome count)
        (receive io buffer end (length buffer) (if (eq :more wanted) nil (or wanted 1)))
      (when (eq :some outcome)
        (setf (io-end io) (+ end (the fixnum count))))
      outcome)))

(defun await-input-of (io &optional (wanted 1))
  "Waits until IO has input; returns NIL at its end.  Reads at most WANTED octets where another
reader may go on."
  (loop
    (ecase (fill-input io wanted)
      (:some (return t))
      (:end (return nil))
      (:none (await-peer io :input)))))

(defun input-waiting-p (io)
  "True when IO has input, an end or a failure that the poller will not report.  May receive octets
to find out."
  (cond ((< (io-start io) (io-end io)) t)
        ((io-source io) (source-ready-p io))
        ((io-drained-p io) nil)
        (t (handler-case (not (eq :none (fill-input io)))
             (descriptor-broken () t))))) ; the next read signals it again

(defun io-awaits-output-p (io)
  "True when the last read of IO got nothing because TLS has octets to send first."
  (and (io-tls io)
       (not (io-drained-p io))
       (eq :output (tls-awaits (io-tls io)))))

;;; Between requests, and at the end

(defun lend-no-buffers (io)
  "Returns the empty buffers of IO to the worker or the free list."
  ;; IO forgets a buffer before it is returned: if the thread is destroyed in between, the buffer is
  ;; lost, but never used by two connections.
  (when (and (io-input io) (= (io-start io) (io-end io)))
    (setf (io-start io) 0
          (io-end io) 0)
    (return-buffer (shiftf (io-input io) nil)))
  (when (and (io-output io) (zerop (io-fill io)))
    (return-buffer (shiftf (io-output io) nil))))

(defun keep-input (io more share)
  "Prepares IO to wait for its client without a worker: returns its empty buffers, and moves unread
input to a vector of at most twice its size.  Reserves memory for that vector and for MORE octets,
which the parsed request takes.  Returns NIL when more than SHARE of the budget, a rational, would
be in use, or when the heap has no room for MORE."
  (lend-no-buffers io)
  ;; A full vector is doubled.  So each octet is copied once or twice, however slowly they come:
  ;; a client may send one at a time.
  (let* ((input (io-input io))
         (size (- (io-end io) (io-start io)))
         (least (max 256 size)))
    (when (and input (> (length (the octets input)) (max 256 (* 2 size))))
      (setf (io-input io) (replace (make-octets least) (the octets input)
                                   :start2 (io-start io) :end2 (io-end io))
            (io-start io) 0
            (io-end io) size)
      (return-buffer input)))
  (and (change-reservation (io-reserved io) (+ more (length (io-input io))) :share share)
       ;; The replaced vector is garbage.  Once it has waited, it survives several minor
       ;; collections.
       (or (zerop more) (make-room-in-heap more))))

(defun release-input (io)
  "Releases the memory that is reserved for the input of IO."
  (when (plusp (io-reserved io))
    (change-reservation (io-reserved io) 0)))

(defun drop-descriptor (io)
  "Makes IO a closed one without closing its descriptor, which another party closes."
  (end-queue (io-queue io))
  (setf (io-descriptor io) nil
        (io-source io) nil
        (io-start io) (io-end io)
        (io-fill io) 0)
  (lend-no-buffers io))

;;; Waits for the peer

(defun await-peer (io direction &optional until)
  "Waits until the descriptor of IO is ready in DIRECTION, :INPUT or :OUTPUT.  Signals
STREAM-TIMEOUT when that takes too long, or when too many workers wait, and for this peer longest;
that does not apply to a program that has taken the connection.  Each wait has the whole limit, and
ends at UNTIL, in MILLISECONDS or NIL."
  (let* ((below (io-base io))
         (tls (io-tls below))
         (queue (io-queue below)))
    (labels ((wait ()
               (cond ((eq :input direction)
                      (let ((limit (if (io-lent below)
                                       (lisp-stream-milliseconds (io-lent below))
                                       (io-milliseconds below))))
                        (unless (await-descriptor
                                 (open-descriptor below) (if tls (tls-awaits tls) :input)
                                 :until (earlier until (and (not (minusp limit))
                                                            (+ (milliseconds) limit))))
                          (give-up))))
                     ((null (send-queue-descriptor (io-queue io)))) ; the sender waits
                     (t
                      (loop for now = (milliseconds)
                            when (taker-given-up-p queue now)
                              do (give-up)
                            do (open-descriptor below)
                            until (await-taker queue (+ now 250))))))
             (give-up ()
               ;; First of all, no later wait for output of this peer is possible.
               (when (and (eq :output direction) (eq :engine (io-owner below)))
                 (break-off-io below))
               (error 'stream-timeout :stream (io-stream below))))
      (declare (dynamic-extent #'wait))
      (cond ((or (io-talked-on-p io) (not (eq :engine (io-owner below))))
             (wait))
            ((not (wait-for-client (io-connection below) direction #'wait))
             (give-up))))))
