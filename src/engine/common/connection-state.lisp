(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; A connection: its state, its deadline, which thread may touch it, and how to find it.

(defstruct (connection (:include opaque)
            (:constructor make-connection
                (socket &key (descriptor -1) (opened (milliseconds)) peer parkable-p
                 &aux (queue (make-send-queue (if (minusp descriptor) nil descriptor))))))
  "One client.  Its owner alone writes the slots, save OWNERSHIP, and WATCHED, which changes under
the lock of QUEUE.  The sentinel and who makes statistics read them all: what these see may be of
different moments."
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
  (address nil :type (or null integer)) ; for which it is counted; see ENTER-ADDRESS
  ;; The SEND-QUEUE of CONNECTION: what its socket did not take yet.
  (queue nil :type send-queue)
  ;; In the ready engine only:
  (token 0 :type fixnum)                ; by which the poller and FIND-CONNECTION know it
  ;; The peer of CONNECTION as ACCEPT-DESCRIPTOR returned it, for DESCRIPTOR-PEER-NAME; NIL where
  ;; it returned none.
  (peer nil :type (or null fixnum) :read-only t)
  (ownership 1 :type fixnum)            ; :OWNED
  (watched nil :type (member nil :input :both)) ; for what the poller watches it, output besides
  ;; :CLOSE where CONNECTION is to end once its output is sent. A service that gives the socket away
  ;; sets :DETACHED or :BROKEN at once, so that it holds if what follows fails. Else NIL.
  (outcome nil :type symbol)
  ;; What is known of the input of CONNECTION between two calls of SERVE: :READ when its service,
  ;; which sets that, has read all that had come, save what the engine may have got an event of
  ;; since; :MISSED when the engine may have got events of input, or may get some before the next
  ;; call, that it does not report: then the service has to look at the socket; else NIL.
  (input nil :type (member nil :read :missed))
  ;; :ANSWER while it is parked, or about to be, until somebody has an answer for it; :TURN while it
  ;; is queued for a worker, with requests that may have come; else NIL.
  (awaiting nil :type (member nil :answer :turn))
  ;; The virtual connections over CONNECTION, and NIL in free places; without places, there will be
  ;; none.  See VIRTUAL-CONNECTION.
  (virtuals #() :type simple-vector))

(defstruct (virtual-connection (:include connection (descriptor +no-descriptor+) (parkable-p t)
                                (opened (milliseconds)) (watched :both) (ownership 0))
                               (:constructor nil)
                               (:copier nil))
  "A connection without a descriptor of its own, which the layer above makes over another one, and
enters in its VIRTUALS.  No poller watches it: that layer queues an event for it (QUEUE-EVENTS), and
takes what its QUEUE has."
  (over-p nil))                         ; its peer is gone

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

(defun awaited-p (connection)
  "True if CONNECTION is parked until somebody has an answer for it, or for its turn.  One that
carries virtual connections idles while there are none, unless its deadline is another."
  (and (connection-awaiting connection)
       (not (and (eq :answer (connection-awaiting connection))
                 (eq :idle (connection-deadline-kind connection))
                 (plusp (length (connection-virtuals connection)))
                 (notany #'identity (connection-virtuals connection))))))

(defun unfinished-p (connection)
  "True if the peer of CONNECTION may not have got its answer yet, or a worker is to look at it."
  (or (connection-output connection)
      (eq :linger (connection-deadline-kind connection)) ; it was answered for the last time
      (awaited-p connection)))

(defun given-away-outcome (connection)
  "The outcome of CONNECTION, :DETACHED or :BROKEN, if its service failed after it gave the
socket away; else NIL."
  (find (connection-outcome connection) '(:detached :broken)))

;;; Deadlines

(defparameter *deadline-kinds*
  '(:handshake :head :body :idle :handler :deferred :write :linger :evicted)
  "The reasons for which the sentinel ends connections.  One of these took too long: a TLS
handshake, the rest of a request's head or of its content, the next request, a handler, a reply that
was to come later, the peer's taking of output, or its end after the last reply.  Or others needed
the descriptor or the memory of the connection.  The layer above may use other kinds.")

(defparameter *refusal-reasons* '(:threads :address)
  "The reasons for which an engine refuses a connection that it has just accepted: all threads
serve; or the address of its peer has as many as it may.")

(defun zeros (names)
  "A plist of NAMES and zeros."
  (loop for name in names collect name collect 0))

(defun set-deadline-at (connection kind time)
  "Lets the sentinel end CONNECTION at TIME, in MILLISECONDS, or NIL for never.  KIND, a keyword,
says what the connection waits for.  With :PAUSE and :DEFERRED, a parked CONNECTION is served at
that time and not ended, and one that has a worker is left to that.  With :PAUSE and :BODY it
waits for the rest of a request: only the poller waits for its peer."
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) time))

(defun set-deadline (connection kind seconds now)
  "Lets the sentinel end CONNECTION when SECONDS, a real or NIL for never, have passed since
NOW, in MILLISECONDS.  KIND, a keyword, says what is waited for."
  (set-deadline-at connection kind (and seconds (+ now (as-milliseconds seconds)))))

(defun awaits-p (connection &rest kinds)
  "True if the last deadline of CONNECTION is of one of KINDS."
  (declare (dynamic-extent kinds))
  (and (member (connection-deadline-kind connection) kinds) t))

(defun direction-to-end (connection)
  "The direction in which CONNECTION is shut down when its last deadline has passed: only :INPUT
where its peer owes the beginning of a request, since an answer may still be on its way."
  (if (awaits-p connection :head :idle) :input :io))

(defun overdue-p (connection now)
  (let ((deadline (connection-deadline connection)))
    (and deadline (< deadline now))))

;;; Ownership: which thread may touch a connection of the ready engine.  One word of bits says so.
;;; It changes only by compare-and-set, and only as NEXT-OWNERSHIP says.
;;;
;;;   bit            meaning
;;;   :owned         one thread, the owner, may read and close it; otherwise it is parked
;;;   :arrived       the kernel reported an event since the owner looked last
;;;   :read-closed   the kernel reported the end of the peer's input; it reports that once
;;;   :closed        it was closed, or given away
;;;
;;;   event          reported by
;;;   :ready         a thread that got the kernel's event, or took the token off the event queue
;;;   :ready-over    the same, if the kernel reported the end of the input as well
;;;   :claim         a thread that wants to own it if it is parked
;;;   :park          its owner, when it waits for the kernel's next event
;;;   :end           its owner, to close the descriptor or to give it away
;;;
;;; Three invariants follow.  The test of this table searches all interleavings for a state in
;;; which one of them does not hold.
;;;
;;; - No input waits unseen.  The poller is edge-triggered: it reports an arrival once.  A thread
;;;   that gets the report and does not become the owner sets :ARRIVED, which makes the owner look
;;;   again before it parks.  An owner that got no report has read until nothing was left.  If an
;;;   owner parks without reading, it tells the service, which may have a request in a buffer and
;;;   would not look for more.  Code that needs :ARRIVED and :READ-CLOSED reads both at once.
;;; - No thread uses a descriptor number that belongs to another connection by then.  Only the
;;;   owner reads from it and closes it, and only before :PARK and :END.  Any thread writes to it,
;;;   and shuts it down, under the lock of the send queue.  The owner holds that for :END, after
;;;   which nobody does so.
;;; - A descriptor is closed once.
;;;
;;; No thread is interrupted while it owns a connection, except where functions of programs run: a
;;; worker defers interrupts, and every other thread owns connections only within AS-OWNER.

(deftype ownership ()
  '(unsigned-byte 4))

(defconstant +owned+ 1)
(defconstant +arrived+ 2)
(defconstant +read-closed+ 4)
(defconstant +closed+ 8)

(declaim (inline next-ownership))
(defun next-ownership (event ownership)
  "The ownership that follows OWNERSHIP after EVENT, a keyword."
  (declare (type ownership ownership))
  (let ((owned-p (logtest +owned+ ownership)))
    (cond ((eq event :park)
           (logandc2 ownership (if (logtest +arrived+ ownership) +arrived+ +owned+)))
          ((eq event :end)
           (if owned-p
               (logior +closed+ (logandc2 ownership (logior +owned+ +arrived+)))
               ownership))
          ((or (logtest +closed+ ownership)
               (and owned-p (eq event :claim)))
           ownership)
          (t
           (logior ownership
                   (if owned-p +arrived+ +owned+)
                   (if (eq event :ready-over) +read-closed+ 0))))))

(defmacro change-ownership (connection event)
  "Changes the ownership of CONNECTION atomically as EVENT, a keyword, demands.  Returns the
ownership from before."
  ;; Also where nothing changes.  The reporter of an event and the owner that reads the input must
  ;; not both miss the other's act; an atomic instruction orders the two.
  `(loop for before of-type ownership = (connection-ownership ,connection)
         until (compare-and-set (connection-ownership ,connection) before
                                (next-ownership ,event before))
         finally (return before)))

(declaim (inline parked-p owned-p gone-p))
(defun parked-p (connection)
  "True when nobody owns CONNECTION, and it is not closed."
  (not (logtest (logior +owned+ +closed+) (connection-ownership connection))))

(defun owned-p (connection)
  "True when somebody owns CONNECTION."
  (logtest +owned+ (connection-ownership connection)))

(defun gone-p (connection)
  "True when CONNECTION was closed or given away."
  (logtest +closed+ (connection-ownership connection)))

(defun peer-ended-p (connection)
  "True when the kernel has reported that the peer of CONNECTION will send no more, or is gone; only
where CONNECTION-PARKABLE-P is true."
  (logtest +read-closed+ (connection-ownership connection)))

(defun become-owner (connection over-p)
  "Records the kernel's report that CONNECTION is ready and, if OVER-P, that its input has ended.
True if the caller owns CONNECTION now; otherwise its owner will look again."
  (not (logtest (logior +owned+ +closed+)
                (change-ownership connection (if over-p :ready-over :ready)))))

(defun claim-parked (connection)
  "True when CONNECTION was parked, and the caller owns it now."
  (not (logtest (logior +owned+ +closed+) (change-ownership connection :claim))))

(defmacro as-owner (taking &body body)
  "Evaluates TAKING, a form that takes a connection by CLAIM-PARKED or BECOME-OWNER.  If that is
true, evaluates BODY, which parks the connection or ends it, and returns its value; else returns
NIL.  Interrupts wait until then, because no other thread could finish the work of BODY.  A
worker that handles an event defers interrupts already, and needs no AS-OWNER."
  `(uninterruptibly (when ,taking ,@body)))

(defun shut-if-owned (connection direction)
  "Shuts the descriptor of CONNECTION down in DIRECTION, if a thread owns CONNECTION."
  (let ((queue (connection-queue connection)))
    (with-send-queue (queue)            ; the descriptor stays open meanwhile
      (when (owned-p connection)
        (cond ((null (send-queue-shut queue))
               (shut-descriptor (connection-descriptor connection) direction))
              ((eq :io direction)
               (end-under-lock queue)
               (funcall (send-queue-shut queue))))
        t))))

;;; The table of the connections of a ready engine, by descriptor.  A token of the poller is a
;;; descriptor and the generation of its connection, a number that tells this connection from
;;; earlier ones with the same descriptor, for which a late event may still be under way.  All
;;; changes are under the lock; a reader may find the vector from before.

(defstruct (table (:include opaque) (:constructor make-table ()))
  "Connections by descriptor."
  (connections (make-array 1024 :initial-element nil) :type simple-vector)
  (generation 0 :type fixnum)           ; of the connection that came last
  (lock (bt:make-lock "table") :read-only t))

(defun enter-connection (table connection)
  "Enters CONNECTION in TABLE for its descriptor, and gives it a generation that no late event has."
  (with-lock-briefly ((table-lock table))
    (let ((descriptor (connection-descriptor connection)))
      (when (>= descriptor (length (table-connections table)))
        (set-published (table-connections table)
                       (replace (make-array (* 2 descriptor) :initial-element nil)
                                (table-connections table))))
      (setf (table-generation table) (ldb (byte 30 0) (1+ (table-generation table)))
            (connection-token connection) (logior descriptor (ash (table-generation table) 32)))
      (set-published (svref (table-connections table) descriptor) connection))))

(defun forget-connection (table connection)
  "Removes CONNECTION, whose descriptor is still open, from TABLE."
  (with-lock-briefly ((table-lock table))
    (setf (svref (table-connections table) (connection-descriptor connection)) nil)))

(defun find-connection (table token)
  "The connection that TOKEN was made for; NIL if it is gone."
  (declare (type table table) (type token token) #.*plain-policy*)
  (let* ((descriptor (ldb (byte 31 0) token))
         (connections (table-connections table))
         (connection (and (< descriptor (length connections)) (svref connections descriptor))))
    (and connection
         (= token (connection-token connection))
         connection)))

(defun map-connections (function table)
  "Calls FUNCTION with each connection in TABLE, and with each virtual one over it.  It may miss
some that come or go meanwhile."
  (loop for connection across (table-connections table)
        when connection
          do (loop for virtual across (connection-virtuals connection)
                   when virtual do (funcall function virtual))
             (funcall function connection)))
