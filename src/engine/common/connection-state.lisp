(in-package #:hunchentoot-recycling-taskmaster.engine)

(defstruct (connection (:include opaque)
            (:constructor make-connection
                (socket &key (descriptor -1) (generation 0) (opened (milliseconds)) peer
                         parkable-p
                 &aux (queue (make-send-queue (if (minusp descriptor) nil descriptor))))))
  "One client.  Its owner alone writes the slots, save OWNERSHIP, which changes as ownership.lisp
says, and WATCHED, which changes under the lock of QUEUE.  The sentinel reads DEADLINE,
DEADLINE-KIND and UNTOUCHED, and who makes statistics reads them all: what these see may be of
different moments."
  (queued 0 :type fixnum)               ; for how many milliseconds it was in the engine's queue
  ;; The socket of CONNECTION, as the platform's functions take it; NIL where it has a descriptor
  ;; and nobody has wanted a socket yet.
  (socket nil)
  (opened 0 :type fixnum :read-only t)  ; in MILLISECONDS
  ;; How many requests of CONNECTION were answered, an integer; see COUNT-REQUEST.
  (served 0 :type fixnum)
  ;; What the layer above keeps for CONNECTION, any object; NIL at first.
  (data nil)
  ;; When the sentinel is to end CONNECTION, in MILLISECONDS; NIL for never. See SET-DEADLINE.
  (deadline nil :type (or null fixnum))
  ;; What the deadline of CONNECTION, or the last one, is for: a keyword, or NIL before the first.
  (deadline-kind nil :type symbol)
  ;; True when CONNECTION can wait for input without a worker.
  (parkable-p nil :read-only t)
  ;; The descriptor of CONNECTION, an integer; -1 where there is only the socket.
  (descriptor -1 :type fixnum :read-only t)
  (address nil :type (or null integer)) ; for which it is counted; see address-counts.lisp
  ;; The SEND-QUEUE of CONNECTION: what its socket did not take yet.
  (queue nil :type send-queue)
  ;; In the ready engine only:
  (generation 0 :type fixnum :read-only t) ; see connection-table.lisp
  ;; The peer of CONNECTION as ACCEPT-DESCRIPTOR returned it, for DESCRIPTOR-PEER-NAME; NIL where
  ;; it returned none.
  (peer nil :type (or null fixnum) :read-only t)
  (ownership 1 :type fixnum)            ; :OWNED; see ownership.lisp
  (watched nil :type (member nil :input :both)) ; for what the poller watches it, output besides
  ;; What is to become of CONNECTION, as SERVE returns it; NIL while SERVE has not decided. It
  ;; waits here until the output is sent, and for a worker where a resuming thread or the sentinel
  ;; may not end CONNECTION. A service that gives the socket away sets :DETACHED or :BROKEN at
  ;; once.
  (outcome nil :type symbol)
  ;; What is known of the input of CONNECTION between two calls of SERVE: :READ when its service,
  ;; which sets that, has read all that had come, save what the engine may have got an event of
  ;; since; :MISSED when the engine may have got events of input, or may get some before the next
  ;; call, that it does not report: then the service has to look at the socket; else NIL.
  (input nil :type (member nil :read :missed))
  ;; :ANSWER while it is parked, or about to be, until somebody has an answer for it; :TURN while it
  ;; is queued for a worker, with requests that may have come; else NIL.
  (awaiting nil :type (member nil :answer :turn))
  ;; :PARKED from when it is parked until a worker begins to look at what has come, and :LEFT when
  ;; the sentinel left that to the workers meanwhile; else NIL.  See connection-time-outs.lisp.
  (untouched nil :type (member nil :parked :left))
  (served-when-left nil :type (or null fixnum)) ; requests, when the sentinel did so last
  ;; Once it was answered for the last time, and waits for its peer's end: how many octets may still
  ;; come, and are dropped.
  (linger-octets nil :type (or null fixnum)))

(defun connection-handle (connection)
  "What the functions of the platform that take sockets take for CONNECTION: its descriptor, or its
socket."
  (let ((descriptor (connection-descriptor connection)))
    (if (minusp descriptor) (connection-socket connection) descriptor)))

(defun connection-peer-name (connection)
  "The address and the port of the peer of CONNECTION, as PEER-NAME returns them.  Signals PEER-GONE
if the peer has left."
  (if (connection-socket connection)
      (peer-name (connection-socket connection))
      (descriptor-peer-name (connection-descriptor connection) (connection-peer connection))))

(declaim (inline connection-output))
(defun connection-output (connection)
  "The parts of answers that CONNECTION has not sent, a list; see SEND-QUEUE-PARTS."
  (send-queue-parts (connection-queue connection)))

(defun connection-deferred-p (connection)
  "True if CONNECTION waits for an answer that comes later."
  (eq :answer (connection-awaiting connection)))

(defun connection-turn-over-p (connection)
  "True if CONNECTION is queued for a worker, and may have more requests."
  (eq :turn (connection-awaiting connection)))

(defun connection-lingering-p (connection)
  "True if CONNECTION was answered for the last time, and waits for its peer's end."
  (and (connection-linger-octets connection) t))

(defparameter *deadline-kinds*
  '(:handshake :first-byte :head :body :idle :handler :deferred :write :linger
    :queue :left :evicted)
  "The reasons for which the sentinel ends connections.  One of these took too long: a TLS
handshake, the first octet of a new connection, the rest of a request's head or of its content,
the next request, a handler, a reply that was to come later, the peer's taking of output, or its
end after the last reply.  Or a request waited too long for a worker, or its peer has left
meanwhile; or the connection waited while others needed its descriptor or memory.  The layer above
may use other kinds.")

(defun no-expirations ()
  "A plist of *DEADLINE-KINDS* and zeros."
  (loop for kind in *deadline-kinds* collect kind collect 0))

(defparameter *refusal-reasons* '(:threads :address :descriptors)
  "The reasons for which an engine refuses a connection that it has just accepted: all threads
serve; the address of its peer has as many as it may; or its descriptor is too large a number.")

(defun no-refusals ()
  "A plist of *REFUSAL-REASONS* and zeros."
  (loop for reason in *refusal-reasons* collect reason collect 0))

(defun set-deadline-in (connection kind delay now)
  "Like SET-DEADLINE, after DELAY, in milliseconds or NIL for never."
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) (and delay (+ now delay))))

(defun set-deadline-at (connection kind time)
  "Lets the sentinel end CONNECTION at TIME, in MILLISECONDS, or NIL for never.  KIND, a keyword,
says what the connection waits for.  With :PAUSE and :DEFERRED, a parked CONNECTION is served at
that time and not ended, and one that has a worker is left to that.  With :PAUSE and :BODY it
waits for the rest of a request: only the poller waits for its peer, and it is the last to give
way when descriptors run out."
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) time))

(defun set-deadline (connection kind seconds now)
  "Lets the sentinel end CONNECTION when SECONDS, a real or NIL for never, have passed since
NOW, in MILLISECONDS.  KIND, a keyword, says what is waited for."
  (set-deadline-in connection kind (as-milliseconds seconds) now))

(defun call-with-deadline (connection kind seconds thunk)
  "Calls THUNK.  If that takes longer than SECONDS, a real or NIL for no limit, the sentinel ends
CONNECTION, so that reads and writes of it get an end of file or an error.  KIND, a keyword, says
what THUNK waits for."
  (set-deadline connection kind seconds (milliseconds))
  (unwind-protect (funcall thunk)
    (setf (connection-deadline connection) nil)))

(defun amid-request-p (connection)
  "True if the last deadline of CONNECTION was for the rest of a request for which no worker
waits."
  (and (member (connection-deadline-kind connection) '(:pause :body)) t))

(defun served-when-due-p (connection)
  "True if CONNECTION is to be served at its deadline, and not ended."
  (and (member (connection-deadline-kind connection) '(:pause :deferred)) t))

(defun handler-limited-p (connection)
  "True if the last deadline of CONNECTION was that of a handler."
  (eq :handler (connection-deadline-kind connection)))

(defun overdue-p (connection now)
  (let ((deadline (connection-deadline connection)))
    (and deadline (< deadline now))))

(defun given-away-outcome (connection)
  "The outcome of CONNECTION, :DETACHED or :BROKEN, if its service failed after it gave the
socket away; else NIL."
  (find (connection-outcome connection) '(:detached :broken)))

(defun end-left-to-worker (connection)
  "The end of CONNECTION, :CLOSE or :BROKEN, that a resuming thread or the sentinel has left to a
worker; else NIL."
  (case (connection-outcome connection)
    (:broken :broken)
    (:close (and (null (connection-output connection)) :close))))

(defun unfinished-p (connection)
  "True if the peer of CONNECTION may not have got its answer yet, or a worker is to end it."
  (or (connection-output connection)
      (end-left-to-worker connection)
      (connection-lingering-p connection)
      (connection-awaiting connection)))
