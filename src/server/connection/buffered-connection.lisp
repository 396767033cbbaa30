(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A buffered connection: a non-blocking descriptor with an input buffer (received, not yet read)
;;;; and an output buffer (written, not yet sent).
;;;;
;;;; The buffers belong to the worker, which lends them to the connection for a request.
;;;; Invariants:
;;;; - INPUT is NIL, or its octets from START to END were received and not read.
;;;; - OUTPUT is NIL, or its octets from 0 to FILL were written and not sent.
;;;; - QUEUE, the send queue of the connection (see send-queue.lisp of the engine), has what was
;;;;   written before the octets in OUTPUT, and the descriptor did not accept.
;;;; - DRAINED-P is true only if the last read of the descriptor returned fewer octets than there
;;;;   was room for, so that the poller will report the next ones.

(defstruct (io (:include opaque) (:copier nil)
               (:constructor make-io
                   (descriptor &optional transport (queue (make-send-queue descriptor)))))
  "A non-blocking descriptor and its buffers."
  ;; Octets go through DESCRIPTOR or TRANSPORT; both are NIL after closing.
  (descriptor nil :type (or null descriptor))
  (transport nil)
  (stream nil)                          ; the stream of octets on top of this
  ;; The buffered connection that carries TLS on this one, see ENCRYPT-IO.
  (encrypted nil)
  ;; The CONNECTION of the engine; NIL where there is none, or not yet.
  (connection nil)
  ;; The party that closes the descriptor.  :ENGINE: the engine, which watches it, so that CLOSE
  ;; only shuts it down.  :CLOSING: the engine is closing the connection, and CLOSE leaves it alone.
  ;; :STREAM: CLOSE closes it.  :LENT: the stream in LENT closes it.
  (owner :engine :type (member :engine :closing :stream :lent))
  (lent nil)                            ; the Lisp's own stream beside it, see lending.lisp
  (milliseconds -1 :type fixnum)        ; limit of one wait for input; -1 for none
  (input nil :type (or null octets))
  (start 0 :type index)
  (end 0 :type index)
  (received 0 :type fixnum)             ; octets, since the current request began
  (pace nil)                            ; the least rate of input, a PACE, or NIL
  ;; A program uses it for another protocol, and its waits have no share.
  (talked-on-p nil)
  (kept 0 :type index) ; this many octets from START were parsed, see READ-HEAD-AHEAD
  (drained-p nil)
  (reserved 0 :type index)              ; octets of the client memory budget, for INPUT that waits
  (queue nil :type send-queue)
  (output nil :type (or null octets))
  (fill 0 :type index))

(defmethod print-object ((io io) stream)
  (print-unreadable-object (io stream :type t :identity t)
    (princ (io-descriptor io) stream)))

(define-condition stream-timeout (client-left stream-error)
  ()
  (:report (lambda (condition stream)
             (format stream "The peer of ~A took too long." (stream-error-stream condition))))
  (:documentation "Reading or writing took longer than it may."))

(define-condition descriptor-broken (client-left stream-error)
  ((number :initarg :number :initform nil :reader broken-number))
  (:report (lambda (condition stream)
             (format stream "~A is ~:[closed~;broken: error number ~:*~D~]."
                     (stream-error-stream condition) (broken-number condition))))
  (:documentation "Signalled by reading and writing when the connection was closed, was reset, or
failed otherwise."))

(defun fail-as-broken (io number)
  "Signals that the descriptor of IO failed with the error NUMBER."
  (error 'descriptor-broken :stream (io-stream io) :number number))

(declaim (inline io-unsent io-open-p io-waits-p))
(defun io-unsent (io)
  "The parts (see PART) that were written to IO and not accepted by its descriptor, a list."
  (send-queue-parts (io-queue io)))

(defun io-open-p (io)
  "True until IO is closed."
  (and (or (io-descriptor io) (io-transport io)) t))

(defun io-waits-p (io)
  "True when reading IO waits for its peer."
  (let ((transport (io-transport io)))
    (and transport (transport-waits-p transport))))

(defun io-tls-handle (io)
  "The SSL object of OpenSSL by which the transport of IO encrypts, a foreign pointer; NIL where
there is none, or it is closed."
  (let ((transport (io-transport io)))
    (and transport (transport-tls-handle transport))))

(defun break-off-io (io)
  "Ends the connection of IO at once.  Later reads and writes fail, and do not wait for the peer."
  (close (io-stream io) :abort t))

(declaim (inline open-descriptor))
(defun open-descriptor (io)
  "The descriptor of IO, for a system call.  Signals DESCRIPTOR-BROKEN when it was closed."
  (or (io-descriptor io)
      (fail-as-broken io +ebadf+)))

(declaim (inline io-base))
(defun io-base (io)
  "The buffered connection whose descriptor is beneath IO: IO itself unless a transport with a
descriptor carries it."
  (let ((transport (io-transport io)))
    (or (and transport (transport-base transport))
        io)))

;;; Between requests, and at the end

(defun lend-no-buffers (io)
  "Returns the empty buffers of IO to the worker or the free list."
  ;; IO forgets a buffer before it is returned: if the thread is destroyed in between, the buffer is
  ;; lost, but never used by two connections.
  (when (and (io-input io) (= (io-start io) (io-end io)))
    (setf (io-start io) 0
          (io-end io) 0)
    (return-buffer :input (shiftf (io-input io) nil)))
  (when (and (io-output io) (zerop (io-fill io)))
    (return-buffer :output (shiftf (io-output io) nil))))

(defconstant +least-kept+ 256
  "The smallest vector, in octets, for input that waits: a client may send one octet at a time.")

(defun shrink-input (io)
  "Moves the unread input of IO to a vector of at most twice its size, unless it is small already.
A full vector is doubled.  So each octet is copied once or twice, however slowly the input comes."
  (let* ((input (io-input io))
         (start (io-start io))
         (size (- (io-end io) start)))
    (when (and input (> (length (the octets input)) (max +least-kept+ (* 2 size))))
      (let ((kept (replace (make-octets (max +least-kept+ size)) (the octets input)
                           :start2 start :end2 (io-end io))))
        (setf (io-input io) kept
              (io-start io) 0
              (io-end io) size))
      (return-buffer :input input))))

(defun input-memory (io)
  "How many octets of memory the input of IO takes."
  (let ((input (io-input io)))
    (if input (length (the octets input)) 0)))

(defun keep-input (io more share)
  "Prepares IO to wait for its client without a worker: returns its empty buffers, and shrinks the
vector with the unread input.  Reserves memory for that vector and for MORE octets, which the parsed
request takes.  Returns NIL when more than SHARE of the budget, a rational, would be in use, or when
the heap has no room for MORE."
  (lend-no-buffers io)
  (shrink-input io)
  (let ((size (+ more (input-memory io))))
    (cond ((<= size (io-reserved io))
           (release-input io size)
           t)
          (t
           (and (change-reservation (io-reserved io) size :share share)
                ;; The replaced vector is garbage.  Once it has waited, it survives several minor
                ;; collections.
                (or (zerop more) (make-room-in-heap more)))))))

(defun release-input (io &optional (size 0))
  "Reduces the reservation for the input of IO to SIZE octets."
  (when (< size (io-reserved io))
    (change-reservation (io-reserved io) size)))

(defun leave-end-to-engine (io)
  "Lets CLOSE on the stream of IO, or on one made of that, leave the descriptor open, in both
directions: the engine is closing the connection, and may still drain what the peer sends."
  (when (eq :engine (io-owner io))
    (setf (io-owner io) :closing)))

(defun drop-descriptor (io)
  "Makes IO a closed one without closing its descriptor, which another party closes."
  (end-queue (io-queue io))
  (setf (io-descriptor io) nil
        (io-transport io) nil
        (io-start io) (io-end io)
        (io-kept io) 0
        (io-fill io) 0)
  (release-input io)
  (lend-no-buffers io))
