(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A buffered connection: a non-blocking descriptor with what was received and not read, and what
;;;; was written and not sent.
;;;;
;;;; It has buffers only while it is in use: they belong to the worker, who lends them for a
;;;; request.  Invariants:
;;;; - INPUT is NIL, or its octets from START to END were received and not read.
;;;; - OUTPUT is NIL, or its octets from 0 to FILL were written and not sent.
;;;; - QUEUE, that of its connection, has the parts (see the engine's send-queue.lisp) of a reply
;;;;   that was given whole, or that a handler streams (see keeping.lisp), and that the descriptor
;;;;   did not take.  They leave before what OUTPUT has.  At the end of the request the engine
;;;;   goes on with them; only a program that writes or waits otherwise before that waits for
;;;;   them.
;;;; - DRAINED-P is true only if the last time the descriptor was read, less came than could
;;;;   have, so that the poller will tell of what comes next.

(defstruct (io (:include opaque) (:copier nil)
               (:constructor make-io
                   (descriptor &optional transport (queue (make-send-queue)))))
  "A non-blocking descriptor and its buffers."
  ;; What it reads and writes: the descriptor, or TRANSPORT; both NIL when it was closed.
  (descriptor nil :type (or null descriptor))
  (transport nil)
  (stream nil)                          ; of which this is the buffered connection
  ;; The buffered connection that TLS carries on this one, see ENCRYPT-IO.
  (encrypted nil)
  ;; The engine's, whose client is the peer; NIL where there is none, or not yet.
  (connection nil)
  ;; The party that closes the descriptor: the :ENGINE, which watches it, so that CLOSE only ends
  ;; it; the engine that is :CLOSING the connection, so that CLOSE leaves it alone; the :STREAM; or
  ;; LENT, which has the descriptor then.
  (owner :engine :type (member :engine :closing :stream :lent))
  (lent nil)                            ; the Lisp's own stream beside it, see lending.lisp
  (milliseconds -1 :type fixnum)        ; how long one wait for input may take; -1 for no limit
  (input nil :type (or null octets))
  (start 0 :type index)
  (end 0 :type index)
  (received 0 :type fixnum)             ; octets in all
  (pace nil)                            ; the least rate at which octets have to come, or NIL
  ;; Of the current request, to know how fast its client is: octets RECEIVED before it, and for
  ;; how many milliseconds a worker has waited.  What was taken of the reply QUEUE knows.
  (received-before 0 :type fixnum)
  (waited 0 :type fixnum)
  ;; A program has it for another protocol, and may wait as it likes.
  (talked-on-p nil)
  (kept 0 :type index)                  ; so many octets from START were parsed, see READ-HEAD-AHEAD
  (drained-p nil)
  (reserved 0 :type index)              ; octets of the budget of all clients, for INPUT that waits
  (reserved-since 0 :type fixnum)       ; when there were none, in MILLISECONDS
  (queue nil :type send-queue)
  (output nil :type (or null octets))
  (fill 0 :type index))

(setf (documentation 'io-descriptor 'function)
      "The descriptor of IO; NIL when it was closed, or something else carries IO."
      (documentation 'io-stream 'function)
      "The stream of octets of which IO is the buffered connection."
      (documentation 'io-queue 'function)
      "The SEND-QUEUE of IO: what was written to it, and its descriptor did not take."
      (documentation 'io-talked-on-p 'function)
      "True when a program talks another protocol over IO, so that its waits for the client have no
share."
      (documentation 'io-drained-p 'function)
      "True when IO had received all that had come when it was last read.")

(defmethod print-object ((io io) stream)
  (print-unreadable-object (io stream :type t :identity t)
    (princ (io-descriptor io) stream)))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +vector-header-octets+ 16
    "How many octets of SBCL's heap a vector takes before its elements.  The heap consists of pages
of 32 KiB; a vector of 16 KiB with its header takes one by itself, and half of it is lost."))
(defconstant +input-size+ (- (* 16 1024) +vector-header-octets+))
(defconstant +output-size+ (- (* 32 1024) +vector-header-octets+))

;; A buffered connection takes a buffer in one thread, and often gives it back in another.  So
;; worker buffers has one of each kind at most, and all others are on a free list that all threads
;; share: wherever they flow, the number that exists stays about what is in use.

(defvar *input-buffers* (make-free-list 32)
  "Buffers for input that neither a buffered connection nor worker buffers has.")

(defvar *output-buffers* (make-free-list 32)
  "Buffers for output that neither a buffered connection nor worker buffers has.")

(defun take-buffer (kind)
  "A buffer of KIND, :INPUT or :OUTPUT."
  (ecase kind
    (:input (or (and *worker-buffers* (shiftf (worker-buffers-input *worker-buffers*) nil))
                (take-from-free-list *input-buffers*)
                (make-octets +input-size+)))
    (:output (or (and *worker-buffers* (shiftf (worker-buffers-output *worker-buffers*) nil))
                 (take-from-free-list *output-buffers*)
                 (make-octets +output-size+)))))

(defun return-buffer (kind buffer)
  "Keeps BUFFER, to which nothing refers any more, for the next buffered connection that wants one
of KIND."
  (ecase kind
    ;; It had to grow for a long head, say.
    (:input (cond ((/= (length (the octets buffer)) +input-size+))
                  ((and *worker-buffers* (null (worker-buffers-input *worker-buffers*)))
                   (setf (worker-buffers-input *worker-buffers*) buffer))
                  (t (put-on-free-list *input-buffers* buffer))))
    (:output (if (and *worker-buffers* (null (worker-buffers-output *worker-buffers*)))
                 (setf (worker-buffers-output *worker-buffers*) buffer)
                 (put-on-free-list *output-buffers* buffer)))))

(define-condition stream-timeout (stream-error)
  ()
  (:report (lambda (condition stream)
             (format stream "The peer of ~A took too long." (stream-error-stream condition))))
  (:documentation "Reading or writing took longer than it may."))

(define-condition descriptor-broken (stream-error)
  ((number :initarg :number :initform nil :reader broken-number))
  (:report (lambda (condition stream)
             (format stream "~A is ~:[closed~;broken: error number ~:*~D~]."
                     (stream-error-stream condition) (broken-number condition))))
  (:documentation "The connection was reset, or the like."))

(defun fail-as-broken (io number)
  "Signals that the descriptor of IO failed with the error NUMBER."
  (error 'descriptor-broken :stream (io-stream io) :number number))

(declaim (inline io-unsent io-open-p io-waits-p))
(defun io-unsent (io)
  "The parts (see PART), a list, that were written to IO, and that its descriptor did not take."
  (send-queue-parts (io-queue io)))

(defun io-open-p (io)
  "True until IO is closed."
  (and (or (io-descriptor io) (io-transport io)) t))

(defun io-waits-p (io)
  "True when reading IO waits for its peer."
  (let ((transport (io-transport io)))
    (and transport (transport-waits-p transport))))

(defun io-tls-handle (io)
  "The SSL object of OpenSSL, a foreign pointer, by which what carries IO encrypts; NIL where there
is none, or it is closed."
  (let ((transport (io-transport io)))
    (and transport (transport-tls-handle transport))))

(declaim (inline open-descriptor))
(defun open-descriptor (io)
  "The descriptor of IO for a call of the system; signals DESCRIPTOR-BROKEN when it was closed."
  (or (io-descriptor io)
      (fail-as-broken io +ebadf+)))

(declaim (inline io-base))
(defun io-base (io)
  "The buffered connection whose descriptor is beneath IO: itself where nothing else carries it, or
has no descriptor."
  (let ((transport (io-transport io)))
    (or (and transport (transport-base transport))
        io)))

(defun wait-limit (io)
  "How many milliseconds one wait for input of IO may take; -1 for no limit."
  (if (io-lent io) (lent-milliseconds io) (io-milliseconds io)))

(defun await-peer (io direction)
  "Waits until the descriptor of IO is ready in DIRECTION; signals STREAM-TIMEOUT when that takes
too long, or the peer is the slowest of too many for which workers wait.  The limit is one for each
wait: who goes on reading or writing gets it anew."
  (flet ((wait ()
           (cond ((eq :output direction) (await-taker io))
                 ((io-pace io) (await-input-at-pace io))
                 (t (await-input-within io (wait-limit (io-base io)))))))
    (declare (dynamic-extent #'wait))
    (await-among-others io direction #'wait)))

(defun await-among-others (io direction wait)
  "Calls WAIT, a function that waits for the peer of IO in DIRECTION, unless too many wait for
faster ones; see WAIT-FOR-CLIENT.  A program that has the connection may wait as it likes."
  (let ((base (io-base io)))
    (if (or (io-talked-on-p io) (not (eq :engine (io-owner base))))
        (funcall wait)
        (let ((began (milliseconds))
              (moved (+ (send-queue-taken (io-queue base))
                        (max 0 (- (io-received io) (io-received-before io))))))
          (unless (wait-for-client (io-connection base) direction moved (io-waited base) wait)
            (if (eq :output direction)
                (give-up-taker base)
                (error 'stream-timeout :stream (io-stream base))))
          (incf (io-waited base) (- (milliseconds) began))))))

(defun begin-request-on (io)
  "Notes that what is received and sent over IO from now on is of another request."
  (let ((base (io-base io)))
    (reset-taking (io-queue base))
    (setf (io-received-before io) (io-received io)
          (io-waited base) 0)))

(defun await-input-within (io limit)
  "Waits until the descriptor beneath IO is ready for IO to be read; signals STREAM-TIMEOUT when
that takes more than LIMIT milliseconds, if that is not negative."
  (let ((base (io-base io))
        (transport (io-transport io)))
    (unless (await-descriptor (open-descriptor base) (if transport (transport-awaits transport) :input)
                              :until (unless (minusp limit) (+ (milliseconds) limit)))
      (error 'stream-timeout :stream (io-stream base)))))

;;; The least rate
;;;
;;; Only the time counts in which somebody waits for the peer: who reads may be slow as well.

(defstruct (pace (:include opaque) (:constructor make-pace (rate left received)) (:copier nil))
  "The least RATE of a buffered connection, in octets a second: LEFT milliseconds may be waited from
when RECEIVED octets had come, and a second more for as many as RATE."
  (rate nil :type (integer 1) :read-only t)
  (left 0 :type fixnum)
  (received 0 :type fixnum :read-only t))

(defun pace-io (io rate grace)
  "From now on, who waits for input of IO waits no longer than GRACE seconds, and as many as what
has come since takes at RATE octets a second.  With RATE NIL there is no such limit."
  (setf (io-pace io)
        (and rate (make-pace rate (* 1000 grace) (io-received io)))))

(defun pace-limit (io)
  "How many milliseconds may be waited for input of IO, which has a pace."
  (let ((pace (io-pace io)))
    (max 0 (+ (pace-left pace)
              (floor (* 1000 (- (io-received io) (pace-received pace))) (pace-rate pace))))))

(defun await-input-at-pace (io)
  "Like AWAIT-PEER for input of IO, which has a pace."
  (let* ((base (io-base io))
         (limit (wait-limit base))
         (most (pace-limit io))
         (began (milliseconds)))
    (await-input-within io (if (minusp limit) most (min limit most)))
    (decf (pace-left (io-pace io)) (- (milliseconds) began))))

;;; Between requests, and at the end

(defun lend-no-buffers (io)
  "Gives the buffers of IO that hold nothing back."
  ;; IO forgets a buffer first: a thread that is destroyed in between loses it, and no other
  ;; buffered connection gets one that is in use.
  (when (and (io-input io) (= (io-start io) (io-end io)))
    (setf (io-start io) 0
          (io-end io) 0)
    (return-buffer :input (shiftf (io-input io) nil)))
  (when (and (io-output io) (zerop (io-fill io)))
    (return-buffer :output (shiftf (io-output io) nil))))

(defconstant +least-kept+ 256
  "The least octets that are allocated for input that waits: a client may send one at a time.")

(defun shrink-input (io)
  "Lets what IO has received and not read be in a vector of no more than twice its size, save where
it is small.  Since a vector that is full is doubled, an octet is copied once or twice, however
slowly all come."
  (let* ((input (io-input io))
         (start (io-start io))
         (size (- (io-end io) start)))
    (when (and input (> (length (the octets input)) (max +least-kept+ (* 2 size))))
      (let ((kept (replace (make-octets (max +least-kept+ size)) (the octets input)
                           :start2 start :end2 (io-end io))))
        (uninterruptibly
          (setf (io-input io) kept
                (io-start io) 0
                (io-end io) size)))
      (return-buffer :input input))))

(defun input-memory (io)
  "How many octets of memory the input of IO takes."
  (let ((input (io-input io)))
    (if input (length (the octets input)) 0)))

(defun keep-input (io more share)
  "Gives the buffers of IO back, whose connection waits for its client without a worker, save what
was received and not read: that is kept in memory of about its size, which is reserved, as are MORE
octets, of what was made of what was read.  NIL where SHARE of the budget, a rational, is in use by
then, or the heap has no room for MORE."
  (lend-no-buffers io)
  (shrink-input io)
  (let ((size (+ more (input-memory io))))
    (cond ((<= size (io-reserved io))
           (release-input io size)
           t)
          (t
           (and (change-reservation (io-reserved io) size
                                    :share share :since (io-reserved-since io))
                ;; Octets that gave way are garbage, which outlives several minor collections
                ;; once it has waited.
                (or (zerop more) (make-room-in-heap more)))))))

(defun release-input (io &optional (size 0))
  "Releases what is reserved for input of IO, but for SIZE octets."
  (when (< size (io-reserved io))
    (change-reservation (io-reserved io) size)))

(defun hand-descriptor-over (io)
  "Makes the descriptor of IO its stream's own, to be closed with that, after what is unsent was
sent.  NIL when it was closed already."
  (send-unsent io)
  (setf (io-owner io) :stream)
  (and (io-descriptor io) t))

(defun leave-end-to-engine (io)
  "Lets who closes the stream of IO, or one made of that, leave the descriptor open and its both
halves as they are: the engine is closing the connection, and may still drop what its peer sends."
  (when (eq :engine (io-owner io))
    (setf (io-owner io) :closing)))

(defun drop-descriptor (io)
  "Makes IO one that is closed; its descriptor is somebody else's to close."
  (clear-queue (io-queue io))
  (setf (io-descriptor io) nil
        (io-transport io) nil
        (io-start io) (io-end io)
        (io-kept io) 0
        (io-fill io) 0)
  (release-input io)
  (lend-no-buffers io))
