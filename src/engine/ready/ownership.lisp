(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Who may touch a connection of the ready engine: one word of bits, which changes only by
;;;; compare-and-set, and only as *OWNERSHIP-RULES* say.
;;;;
;;;;   bit            means
;;;;   :owned         one thread, the owner, may read, write and close it; otherwise it is parked
;;;;   :arrived       the kernel reported an event since the owner looked last
;;;;   :read-closed   the kernel reported that the peer's input has ended; it will not do so again
;;;;   :expiring      a thread that is not the owner shuts the descriptor down
;;;;   :closed        it is gone
;;;;
;;;;   event          who reports it
;;;;   :ready         a thread to which the kernel reported it, or which found it in the shared queue
;;;;   :ready-over    the same, and the kernel reported the end of the input as well
;;;;   :claim         a thread that has something to do for it, if it is parked
;;;;   :park          its owner, who wants nothing of it until the kernel reports more
;;;;   :expire        a thread that is going to shut its descriptor down although somebody owns it
;;;;   :expired       the same thread, afterwards
;;;;   :end           its owner, who closes it
;;;;   :leave         its owner, who gives the open descriptor away
;;;;
;;;; Three invariants follow.  The test of this table searches all interleavings for a state in
;;;; which one of them does not hold.
;;;;
;;;; - Nothing that came waits unseen.  The poller is edge-triggered: it reports once what came.  A
;;;;   thread that gets the report and does not become the owner leaves :ARRIVED, which makes the owner
;;;;   look again before it parks; and an owner that got no report has read until nothing was left.  Who
;;;;   gives it up without reading tells its service, which may have a request in a buffer, and would not
;;;;   look for more; and who looks for :ARRIVED and :READ-CLOSED, looks once for both.
;;;; - Nobody uses a descriptor number that is somebody else's by then.  Only the owner uses it, and
;;;;   only before :PARK, :END and :LEAVE; the one exception shuts it down between :EXPIRE and
;;;;   :EXPIRED.  If the owner ends the connection meanwhile, the descriptor stays open until :EXPIRED,
;;;;   and is closed there.
;;;; - A descriptor is closed once.
;;;;
;;;; A thread can be interrupted or destroyed at any moment, by an application or by a person at a
;;;; REPL.  That costs one connection at most, by one rule: no thread can be interrupted while it owns
;;;; a connection, save while the service has it.  A worker defers interrupts (see worker-loop.lisp),
;;;; and every other thread owns connections within AS-OWNER only.
;;;;
;;;;   an interrupt that comes to              takes effect           and costs        cleaned up by
;;;;   a worker that waits for an event        when it looks around   nothing          RUN-WORKER
;;;;   a worker that is suspended              at once                nothing          END-SUSPENSION
;;;;   a worker while its service serves       at once                the connection   END-SERVICE
;;;;   a worker while its service releases     at once                the connection   RELEASE-OWNED
;;;;   a worker that calls a timer's function  at once                that call        ATTEND-TIMERS-IN
;;;;   a worker elsewhere                      at one of these        nothing
;;;;   any other thread within AS-OWNER        when it owns none      nothing
;;;;   the sentinel elsewhere                  at once                nothing          RUN-SENTINEL
;;;;   a worker that dies without unwinding                           its connection   REAP-WORKER
;;;;
;;;; What an owner has to do, CONNECTION-OUTPUT and CONNECTION-LINGERING-P say:
;;;;
;;;;   octets of an answer that    sends them: see pending-output.lisp
;;;;   the socket did not take
;;;;   the last answer was sent    drops what comes, until the end
;;;;   otherwise                   serves what has come

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *ownership-bits* '(:owned :arrived :read-closed :expiring :closed)
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
      (:expire     ((:expiring))
                   ((:owned) :set (:expiring)))
      (:expired    ((:expiring) :clear (:expiring)))
      (:end        ((:owned) :set (:closed) :clear (:owned :arrived)))
      (:leave      ((:expiring))
                   ((:owned) :set (:closed) :clear (:owned :arrived))))
    "For each event, rules of which the first counts whose bits are all set: the bits that it sets
and clears.  Where none counts, or one that says neither, nothing changes.")

  (defun ownership-word (&rest bits)
    "The ownership in which BITS are set."
    (loop for bit in bits sum (ash 1 (position bit *ownership-bits*))))

  (defun next-ownership (event ownership)
    "What EVENT makes of OWNERSHIP."
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
  "What EVENT makes of each ownership."
  (assert (assoc event *ownership-rules*))
  (let* ((size (ash 1 (length *ownership-bits*)))
         (changes (make-array size :element-type '(unsigned-byte 8))))
    (dotimes (ownership size changes)
      (setf (aref changes ownership) (next-ownership event ownership)))))

(defmacro change-ownership (connection event)
  "Changes the ownership of CONNECTION, at once, as EVENT, a keyword, demands.  Returns what it
was."
  (let ((changes (gensym "CHANGES")) (ownership (gensym "OWNERSHIP")))
    `(let ((,changes (load-time-value (ownership-changes ,event) t)))
       (declare (type ownership-changes ,changes))
       ;; Also where nothing changes: the reporter of an event and the owner that reads the input must
       ;; not both miss what the other did, and an atomic instruction orders the two.
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
  "Takes note of the kernel's report that CONNECTION is ready, and if OVER-P that its input has
ended.  True when the caller owns it now; otherwise its owner will look again."
  (not (ownership-test (if over-p
                           (change-ownership connection :ready-over)
                           (change-ownership connection :ready))
                       :owned :closed)))

(defun claim-parked (connection)
  "True when CONNECTION was parked, and the caller owns it now."
  (not (ownership-test (change-ownership connection :claim) :owned :closed)))

(defmacro as-owner (taking &body body)
  "When TAKING, a form that takes a connection by CLAIM-PARKED or BECOME-OWNER, is true, evaluates
BODY, which parks that connection or ends it; returns the value of BODY, else NIL.  The current
thread cannot be interrupted meanwhile: nobody else could do for the connection what BODY leaves
undone.  A worker that has got an event needs none of this."
  `(uninterruptibly
     (when ,taking
       ,@body)))

(defun give-up-ownership (connection)
  "Parks CONNECTION; NIL when more has come, and the caller still owns it."
  (not (ownership-test (change-ownership connection :park) :arrived)))

(defun end-ownership (connection)
  "Makes CONNECTION, which the caller owns, nobody's for ever.  True when the caller is to close its
descriptor; otherwise another thread, which uses it, will."
  (not (ownership-test (change-ownership connection :end) :expiring)))

(defun leave-ownership (connection)
  "Makes CONNECTION, which the caller owns, nobody's for ever, and its descriptor free to be given
away."
  ;; A thread that shuts it down makes one call of the system, which does not wait, in between.
  (loop while (ownership-test (change-ownership connection :leave) :expiring)
        do (bt:thread-yield)))

(defun call-while-expiring (connection function)
  "Calls FUNCTION, which shuts the descriptor of CONNECTION down, if somebody else owns it.  The
descriptor stays open meanwhile.  True when FUNCTION was called."
  (uninterruptibly
    (let ((before (change-ownership connection :expire)))
      (when (and (ownership-test before :owned)
                 (not (ownership-test before :expiring)))
        (unwind-protect (funcall function)
          (when (ownership-test (change-ownership connection :expired) :closed)
            (close-descriptor (connection-descriptor connection))))
        t))))
