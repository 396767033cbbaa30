(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A wire: a non-blocking descriptor with what was received and not read, and what was written
;;;; and not sent.
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

(defstruct (wire (:include opaque) (:copier nil)
                 (:constructor make-wire
                     (descriptor &optional transport (queue (make-send-queue)))))
  "A non-blocking descriptor and its buffers."
  ;; What it reads and writes: the descriptor, or TRANSPORT; both NIL when it was closed.
  (descriptor nil :type (or null descriptor))
  (transport nil)
  (stream nil)                          ; of which this is the wire
  (encrypted nil)                       ; the wire that TLS carries on this one, see ENCRYPT-WIRE
  (connection nil)                      ; the engine's, whose client is the peer; NIL where there is none, or not yet
  ;; Who closes the descriptor: the :ENGINE, which watches it, so that CLOSE only ends it; the engine,
  ;; which is :CLOSING the connection, so that CLOSE leaves it alone; the :STREAM; or LENT, whose
  ;; descriptor it is then.
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
  (talked-on-p nil)                     ; a program has it for another protocol, and may wait as it likes
  (kept 0 :type index)                  ; so many octets from START were parsed, see READ-HEAD-AHEAD
  (drained-p nil)
  (reserved 0 :type index)              ; octets of the budget of all clients, for INPUT that waits
  (reserved-since 0 :type fixnum)       ; when there were none, in MILLISECONDS
  (queue nil :type send-queue)
  (output nil :type (or null octets))
  (fill 0 :type index))

(setf (documentation 'wire-descriptor 'function)
      "The descriptor of WIRE; NIL when it was closed, or something else carries WIRE."
      (documentation 'wire-stream 'function)
      "The stream of octets of which WIRE is the wire."
      (documentation 'wire-queue 'function)
      "The SEND-QUEUE of WIRE: what was written to it, and its descriptor did not take."
      (documentation 'wire-talked-on-p 'function)
      "True when a program talks another protocol over WIRE, so that its waits for the client have no share."
      (documentation 'wire-drained-p 'function)
      "True when WIRE had received all that had come when it was last read.")

(defmethod print-object ((wire wire) stream)
  (print-unreadable-object (wire stream :type t :identity t)
    (princ (wire-descriptor wire) stream)))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +vector-header-octets+ 16
    "How many octets of SBCL's heap a vector takes before its elements.  The heap consists of pages of 32 KiB; a
vector of 16 KiB with its header takes one by itself, and half of it is lost."))
(defconstant +input-size+ (- (* 16 1024) +vector-header-octets+))
(defconstant +output-size+ (- (* 32 1024) +vector-header-octets+))

;; A wire takes a buffer in one thread, and often gives it back in another.  So a kit has one of each kind at most, and all
;; others are on a rack that all threads share: wherever they flow, the number that exists stays about what is in use.

(defvar *input-buffers* (make-rack 32)
  "Buffers for input that neither a wire nor a kit has.")

(defvar *output-buffers* (make-rack 32)
  "Buffers for output that neither a wire nor a kit has.")

(defun take-buffer (kind)
  "A buffer of KIND, :INPUT or :OUTPUT."
  (ecase kind
    (:input (or (and *kit* (shiftf (kit-input *kit*) nil))
                (take-from-rack *input-buffers*)
                (make-octets +input-size+)))
    (:output (or (and *kit* (shiftf (kit-output *kit*) nil))
                 (take-from-rack *output-buffers*)
                 (make-octets +output-size+)))))

(defun return-buffer (kind buffer)
  "Keeps BUFFER, to which nothing refers any more, for the next wire that wants one of KIND."
  (ecase kind
    (:input (cond ((/= (length (the octets buffer)) +input-size+)) ; it had to grow for a long head, say
                  ((and *kit* (null (kit-input *kit*)))
                   (setf (kit-input *kit*) buffer))
                  (t (put-on-rack *input-buffers* buffer))))
    (:output (if (and *kit* (null (kit-output *kit*)))
                 (setf (kit-output *kit*) buffer)
                 (put-on-rack *output-buffers* buffer)))))

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

(defun fail-as-broken (wire number)
  "Signals that the descriptor of WIRE failed with the error NUMBER."
  (error 'descriptor-broken :stream (wire-stream wire) :number number))

(declaim (inline wire-unsent wire-open-p wire-waits-p))
(defun wire-unsent (wire)
  "The parts (see PART), a list, that were written to WIRE, and that its descriptor did not take."
  (send-queue-parts (wire-queue wire)))

(defun wire-open-p (wire)
  "True until WIRE is closed."
  (and (or (wire-descriptor wire) (wire-transport wire)) t))

(defun wire-waits-p (wire)
  "True when reading WIRE waits for its peer."
  (let ((transport (wire-transport wire)))
    (and transport (transport-waits-p transport))))

(defun wire-tls-handle (wire)
  "The SSL object of OpenSSL, a foreign pointer, by which what carries WIRE encrypts; NIL where there is none, or
it is closed."
  (let ((transport (wire-transport wire)))
    (and transport (transport-tls-handle transport))))

(declaim (inline open-descriptor))
(defun open-descriptor (wire)
  "The descriptor of WIRE for a call of the system; signals DESCRIPTOR-BROKEN when it was closed."
  (or (wire-descriptor wire)
      (fail-as-broken wire +ebadf+)))

(declaim (inline wire-base))
(defun wire-base (wire)
  "The wire whose descriptor is beneath WIRE: itself where nothing else carries it, or has no descriptor."
  (let ((transport (wire-transport wire)))
    (or (and transport (transport-base transport))
        wire)))

(defun wait-limit (wire)
  "How many milliseconds one wait for input of WIRE may take; -1 for no limit."
  (if (wire-lent wire) (lent-milliseconds wire) (wire-milliseconds wire)))

(defun await-peer (wire direction)
  "Waits until the descriptor of WIRE is ready in DIRECTION; signals STREAM-TIMEOUT when that takes
too long, or the peer is the slowest of too many for which workers wait.  The limit is one for each wait: who goes on
reading or writing gets it anew."
  (flet ((wait ()
           (cond ((eq :output direction) (await-taker wire))
                 ((wire-pace wire) (await-input-at-pace wire))
                 (t (await-input-within wire (wait-limit (wire-base wire)))))))
    (declare (dynamic-extent #'wait))
    (await-among-others wire direction #'wait)))

(defun await-among-others (wire direction wait)
  "Calls WAIT, a function that waits for the peer of WIRE in DIRECTION, unless too many wait for faster ones; see
WAIT-FOR-CLIENT.  A program that has the connection may wait as it likes."
  (let ((base (wire-base wire)))
    (if (or (wire-talked-on-p wire) (not (eq :engine (wire-owner base))))
        (funcall wait)
        (let ((began (milliseconds))
              (moved (+ (send-queue-taken (wire-queue base))
                        (max 0 (- (wire-received wire) (wire-received-before wire))))))
          (unless (wait-for-client (wire-connection base) direction moved (wire-waited base) wait)
            (if (eq :output direction)
                (give-up-taker base)
                (error 'stream-timeout :stream (wire-stream base))))
          (incf (wire-waited base) (- (milliseconds) began))))))

(defun begin-request-on (wire)
  "Notes that what is received and sent over WIRE from now on is of another request."
  (let ((base (wire-base wire)))
    (reset-taking (wire-queue base))
    (setf (wire-received-before wire) (wire-received wire)
          (wire-waited base) 0)))

(defun await-input-within (wire limit)
  "Waits until the descriptor beneath WIRE is ready for WIRE to be read; signals STREAM-TIMEOUT when that takes
more than LIMIT milliseconds, if that is not negative."
  (let ((base (wire-base wire))
        (transport (wire-transport wire)))
    (unless (await-descriptor (open-descriptor base) (if transport (transport-awaits transport) :input)
                              :until (unless (minusp limit) (+ (milliseconds) limit)))
      (error 'stream-timeout :stream (wire-stream base)))))

;;; The least rate
;;;
;;; Only the time counts in which somebody waits for the peer: who reads may be slow as well.

(defstruct (pace (:include opaque) (:constructor make-pace (rate left received)) (:copier nil))
  "The least RATE of a wire, in octets a second: LEFT milliseconds may be waited from when RECEIVED octets
had come, and a second more for as many as RATE."
  (rate nil :type (integer 1) :read-only t)
  (left 0 :type fixnum)
  (received 0 :type fixnum :read-only t))

(defun pace-wire (wire rate grace)
  "From now on, who waits for input of WIRE waits no longer than GRACE seconds, and as many as what has come
since takes at RATE octets a second.  With RATE NIL there is no such limit."
  (setf (wire-pace wire)
        (and rate (make-pace rate (* 1000 grace) (wire-received wire)))))

(defun pace-limit (wire)
  "How many milliseconds may be waited for input of WIRE, which has a pace."
  (let ((pace (wire-pace wire)))
    (max 0 (+ (pace-left pace)
              (floor (* 1000 (- (wire-received wire) (pace-received pace))) (pace-rate pace))))))

(defun await-input-at-pace (wire)
  "Like AWAIT-PEER for input of WIRE, which has a pace."
  (let* ((base (wire-base wire))
         (limit (wait-limit base))
         (most (pace-limit wire))
         (began (milliseconds)))
    (await-input-within wire (if (minusp limit) most (min limit most)))
    (decf (pace-left (wire-pace wire)) (- (milliseconds) began))))

;;; Between requests, and at the end

(defun lend-no-buffers (wire)
  "Gives the buffers of WIRE that hold nothing back."
  ;; WIRE forgets a buffer first: a thread that is destroyed in between loses it, and no other wire gets one that is in use.
  (when (and (wire-input wire) (= (wire-start wire) (wire-end wire)))
    (setf (wire-start wire) 0
          (wire-end wire) 0)
    (return-buffer :input (shiftf (wire-input wire) nil)))
  (when (and (wire-output wire) (zerop (wire-fill wire)))
    (return-buffer :output (shiftf (wire-output wire) nil))))

(defconstant +least-kept+ 256
  "The least octets that are allocated for input that waits: a client may send one at a time.")

(defun shrink-input (wire)
  "Lets what WIRE has received and not read be in a vector of no more than twice its size, save where it is small.  Since a
vector that is full is doubled, an octet is copied once or twice, however slowly all come."
  (let* ((input (wire-input wire))
         (start (wire-start wire))
         (size (- (wire-end wire) start)))
    (when (and input (> (length (the octets input)) (max +least-kept+ (* 2 size))))
      (let ((kept (replace (make-octets (max +least-kept+ size)) (the octets input)
                           :start2 start :end2 (wire-end wire))))
        (uninterruptibly
          (setf (wire-input wire) kept
                (wire-start wire) 0
                (wire-end wire) size)))
      (return-buffer :input input))))

(defun input-memory (wire)
  "How many octets of memory the input of WIRE takes."
  (let ((input (wire-input wire)))
    (if input (length (the octets input)) 0)))

(defun keep-input (wire more share)
  "Gives the buffers of WIRE back, whose connection waits for its client without a worker, save what was received and not
read: that is kept in memory of about its size, which is reserved, as are MORE octets, of what was made of what was read.
NIL where SHARE of the budget, a rational, is in use by then, or the heap has no room for MORE."
  (lend-no-buffers wire)
  (shrink-input wire)
  (let ((size (+ more (input-memory wire))))
    (cond ((<= size (wire-reserved wire))
           (release-input wire size)
           t)
          (t
           (when (zerop (wire-reserved wire))
             (setf (wire-reserved-since wire) (milliseconds)))
           (and (uninterruptibly
                  (when (reserve-client-memory (- size (wire-reserved wire))
                                               share)
                    (setf (wire-reserved wire) size)
                    t))
                ;; What gave way is garbage, which outlives several collections of the usual kind once it has waited.
                (or (zerop more) (make-room-in-heap more)))))))

(defun release-input (wire &optional (size 0))
  "Releases what is reserved for input of WIRE, but for SIZE octets."
  (let ((more (- (wire-reserved wire) size)))
    (when (plusp more)
      (uninterruptibly
        (setf (wire-reserved wire) size)
        (release-client-memory more)))))

(defun hand-descriptor-over (wire)
  "Makes the descriptor of WIRE its stream's own, to be closed with that, after what is unsent was
sent.  NIL when it was closed already."
  (send-unsent wire)
  (setf (wire-owner wire) :stream)
  (and (wire-descriptor wire) t))

(defun leave-end-to-engine (wire)
  "Lets who closes the stream of WIRE, or one made of that, leave the descriptor open and its both halves
as they are: the engine is closing the connection, and may still drop what its peer sends."
  (when (eq :engine (wire-owner wire))
    (setf (wire-owner wire) :closing)))

(defun drop-descriptor (wire)
  "Makes WIRE one that is closed; its descriptor is somebody else's to close."
  (clear-queue (wire-queue wire))
  (setf (wire-descriptor wire) nil
        (wire-transport wire) nil
        (wire-start wire) (wire-end wire)
        (wire-kept wire) 0
        (wire-fill wire) 0)
  (release-input wire)
  (lend-no-buffers wire))
