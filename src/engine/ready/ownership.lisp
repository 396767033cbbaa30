(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Which thread may touch a connection of the ready engine.  One word of bits says so.  It changes
;;;; only by compare-and-set, and only as *OWNERSHIP-RULES* say.
;;;;
;;;;   bit            meaning
;;;;   :owned         one thread, the owner, may read, write and close it; otherwise it is parked
;;;;   :arrived       the kernel reported an event since the owner looked last
;;;;   :read-closed   the kernel reported the end of the peer's input; it reports that once
;;;;   :closed        it is gone
;;;;
;;;;   event          reported by
;;;;   :ready         a thread that got the kernel's event, or took the token off the event queue
;;;;   :ready-over    the same, if the kernel reported the end of the input as well
;;;;   :claim         a thread that wants to own it if it is parked
;;;;   :park          its owner, when it waits for the kernel's next event
;;;;   :end           its owner, to close it
;;;;   :leave         its owner, to give the open descriptor away
;;;;
;;;; Three invariants follow.  The test of this table searches all interleavings for a state in
;;;; which one of them does not hold.
;;;;
;;;; - No input waits unseen.  The poller is edge-triggered: it reports an arrival once.  A thread
;;;;   that gets the report and does not become the owner sets :ARRIVED, which makes the owner look
;;;;   again before it parks.  An owner that got no report has read until nothing was left.  If an
;;;;   owner parks without reading, it tells the service, which may have a request in a buffer and
;;;;   would not look for more.  Code that needs :ARRIVED and :READ-CLOSED reads both at once.
;;;; - No thread uses a descriptor number that belongs to another connection by then.  Only the
;;;;   owner reads from it and closes it, and only before :PARK, :END and :LEAVE.  Any thread writes
;;;;   to it, and shuts it down, under the lock of the send queue.  The owner holds that for :END
;;;;   and :LEAVE, after which nobody does so.
;;;; - A descriptor is closed once.
;;;;
;;;; No thread is interrupted while it owns a connection, except where functions of programs run: a
;;;; worker defers interrupts, and every other thread owns connections only within AS-OWNER.
;;;;
;;;; CONNECTION-OUTPUT and CONNECTION-LINGERING-P say what an owner has to do:
;;;;
;;;;   there are octets that the socket    send them
;;;;   did not take
;;;;   the last answer was sent            drop input until it ends
;;;;   otherwise                           serve the input

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *ownership-bits* '(:owned :arrived :read-closed :closed)
    "The bits of an ownership, the lowest first.")

  (defparameter *ownership-rules*
    '((:ready      ((:closed))
                   ((:owned) :set (:arrived))
                   (() :set (:owned)))
      (:ready-over ((:closed))
                   ((:owned) :set (:arrived :read-closed))
                   (() :set (:owned :read-closed)))
      (:claim      ((:closed))
                   ((:owned))
                   (() :set (:owned)))
      (:park       ((:owned :arrived) :clear (:arrived))
                   ((:owned) :clear (:owned)))
      (:end        ((:owned) :set (:closed) :clear (:owned :arrived)))
      (:leave      ((:owned) :set (:closed) :clear (:owned :arrived))))
    "The rules for each event.  The first rule whose bits are all set applies: it sets and clears
the bits that it lists.  If no rule applies, nothing changes.")

  (defun ownership-word (&rest bits)
    "The ownership in which BITS are set."
    (loop for bit in bits sum (ash 1 (position bit *ownership-bits*))))

  (defun next-ownership (event ownership)
    "The ownership that follows OWNERSHIP after EVENT."
    (loop for (condition . changes) in (rest (assoc event *ownership-rules*))
          for needed = (apply #'ownership-word condition)
          when (= needed (logand needed ownership))
            return (logior (logandc2 ownership (apply #'ownership-word (getf changes :clear)))
                           (apply #'ownership-word (getf changes :set)))
          finally (return ownership))))

(deftype ownership ()
  `(unsigned-byte ,(length *ownership-bits*)))

(deftype ownership-changes ()
  "For each ownership the next one."
  `(simple-array (unsigned-byte 8) (,(ash 1 (length *ownership-bits*)))))

(defun ownership-changes (event)
  "A vector: for each ownership, the one that follows after EVENT."
  (assert (assoc event *ownership-rules*))
  (let* ((size (ash 1 (length *ownership-bits*)))
         (changes (make-array size :element-type '(unsigned-byte 8))))
    (dotimes (ownership size changes)
      (setf (aref changes ownership) (next-ownership event ownership)))))

(defmacro change-ownership (connection event)
  "Changes the ownership of CONNECTION atomically as EVENT, a keyword, demands.  Returns the
ownership from before."
  (let ((changes (gensym "CHANGES")) (ownership (gensym "OWNERSHIP")))
    `(let ((,changes (load-time-value (ownership-changes ,event) t)))
       (declare (type ownership-changes ,changes))
       ;; Also where nothing changes.  The reporter of an event and the owner that reads the input
       ;; must not both miss the other's act; an atomic instruction orders the two.
       (loop for ,ownership of-type ownership = (connection-ownership ,connection)
             until (compare-and-set (connection-ownership ,connection) ,ownership
                                    (aref ,changes ,ownership))
             finally (return ,ownership)))))

(defmacro ownership-test (ownership &rest bits)
  "True when one of BITS, keywords, is set in OWNERSHIP."
  `(logtest ,(apply #'ownership-word bits) (the ownership ,ownership)))

;;; What the engine asks

(declaim (inline parked-p owned-p arrived-p read-closed-p gone-p))
(defun parked-p (connection)
  "True when nobody owns CONNECTION, and it is not closed."
  (not (ownership-test (connection-ownership connection) :owned :closed)))

(defun owned-p (connection)
  "True when somebody owns CONNECTION."
  (ownership-test (connection-ownership connection) :owned))

(defun arrived-p (connection)
  "True when the kernel reported an event of CONNECTION since its owner looked last."
  (ownership-test (connection-ownership connection) :arrived))

(defun read-closed-p (connection)
  "True when the kernel reported that the peer of CONNECTION will send no more."
  (ownership-test (connection-ownership connection) :read-closed))

(defun peer-ended-p (connection)
  "True when the kernel has reported that the peer of CONNECTION will send no more, or is gone; only
where CONNECTION-PARKABLE-P is true."
  (read-closed-p connection))

(defun gone-p (connection)
  "True when CONNECTION was closed or given away."
  (ownership-test (connection-ownership connection) :closed))

;;; What the engine does

(defun become-owner (connection over-p)
  "Records the kernel's report that CONNECTION is ready and, if OVER-P, that its input has ended.
True if the caller owns CONNECTION now; otherwise its owner will look again."
  (not (ownership-test (if over-p
                           (change-ownership connection :ready-over)
                           (change-ownership connection :ready))
                       :owned :closed)))

(defun claim-parked (connection)
  "True when CONNECTION was parked, and the caller owns it now."
  (not (ownership-test (change-ownership connection :claim) :owned :closed)))

(defmacro as-owner (taking &body body)
  "Evaluates TAKING, a form that takes a connection by CLAIM-PARKED or BECOME-OWNER.  If that is
true, evaluates BODY, which parks the connection or ends it, and returns its value; else returns
NIL.  Interrupts wait until then, because no other thread could finish the work of BODY.  A
worker that handles an event defers interrupts already, and needs no AS-OWNER."
  `(uninterruptibly (when ,taking ,@body)))

(defun give-up-ownership (connection)
  "Parks CONNECTION.  NIL if more input has come; the caller then still owns it."
  (not (ownership-test (change-ownership connection :park) :arrived)))

(defun end-ownership (connection)
  "Ends the caller's ownership of CONNECTION for ever, and the use of its descriptor by others."
  (end-queue (connection-queue connection))
  (with-send-queue ((connection-queue connection))
    (change-ownership connection :end)))

(defun leave-ownership (connection)
  "Ends the caller's ownership of CONNECTION for ever.  The descriptor can be given away then."
  (let ((queue (connection-queue connection)))
    (with-send-queue (queue)
      (setf (send-queue-arm queue) nil)
      (change-ownership connection :leave))))

(defun call-if-owned (connection function)
  "Calls FUNCTION, which shuts the descriptor of CONNECTION down, if a thread owns CONNECTION.  The
descriptor stays open meanwhile."
  (with-send-queue ((connection-queue connection))
    (when (owned-p connection)
      (funcall function))))
