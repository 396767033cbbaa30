(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Answers that a peer takes slowly: no worker waits for it.
;;;;
;;;;   the owner of a connection         and finds that               does this
;;;;   that has output left sends it,
;;;;
;;;;                                     all of it was taken, and     serves the input that came
;;;;                                     its outcome is :PARK or      meanwhile, and parks
;;;;                                     :DEFERRED
;;;;                                     all of it was taken          ends the connection gently
;;;;                                     the peer is gone, or the     drops the connection
;;;;                                     service wants nothing sent
;;;;                                     or has no memory for input
;;;;                                     the peer takes no more now   parks the connection until
;;;;                                                                  it takes more
;;;;
;;;; Input that comes meanwhile stays in the socket, so a peer that sends requests and reads no
;;;; answers blocks its own sending.  Input that was read before counts as memory of clients.  The
;;;; poller reports input and the peer's end once, perhaps to an owner that only tries to send.  So
;;;; after the last octet was taken the service reads everything again, as if an event had come.
;;;;
;;;; The sentinel ends a connection in this state if its peer is too slow (see slow-readers.lisp).
;;;; A hard stop ends it at once; a soft stop waits for it.

(defun send-pending-output (engine connection)
  "Sends the output that CONNECTION, which the caller owns, has left.  Returns :AGAIN if there is
more to do for it, else :PARKED, :CLOSE or :BROKEN."
  (if (output-unwanted-p (engine-service engine) connection)
      :broken
      (send-wanted-output engine connection)))

(defun send-wanted-output (engine connection)
  (let ((queue (connection-queue connection)))
    (multiple-value-bind (sent-p failure)
        (flush-queue queue (connection-descriptor connection))
      (cond (failure :broken)
            ((and (send-queue-parts queue) (not (unread-input-kept-p engine connection)))
             :broken)
            ((send-queue-parts queue)
             (when (or sent-p (null (connection-deadline connection)))
               (look-at-output connection (coarse-now (engine-pool-state engine)) sent-p))
             (let ((reserved (reserve-output engine connection)))
               (prog1 (park-until-writable engine connection)
                 (when reserved
                   (make-room-for-answers engine reserved)))))
            (t
             (release-output connection)
             (reset-taking queue)
             (if (and (member (connection-outcome connection) '(:park :deferred))
                      (serving-p engine))
                 :again
                 :close))))))

;;; Memory

(defun octets-held (parts)
  "How many octets of memory PARTS, a list, keep in use."
  (loop for part in parts
        when (octets-part-p part)
          sum (length (octets-part-octets part))))

(defun reserve-output (engine connection)
  "Reserves memory for the output of CONNECTION, which the caller owns, and whose peer takes no
more now; not for that of a stream, which has a mark of its own.  If there is no room, the
connections that would end first give way.  If there are none, CONNECTION keeps its
output all the same, since its service has it in memory already.  It then counts beyond the
budget, and is the next to give way.  Returns how many octets were reserved now; NIL for none, as
where only a file is left."
  (let ((queue (connection-queue connection)))
    (when (and (zerop (send-queue-reserved queue))
               (not (eq :deferred (connection-outcome connection))))
      (let ((octets (octets-held (send-queue-parts queue))))
        (flet ((reserved-p (share)
                 (change-reservation (send-queue-reserved queue) octets
                                     :share share)))
          (loop until (or (reserved-p *waiting-share*)
                          (and (not (evict-oldest engine))
                               (reserved-p nil)))))
        (and (plusp octets) octets)))))

(defun make-room-for-answers (engine octets)
  "Collects garbage if the heap may have no room for an answer of OCTETS by each worker of ENGINE:
others may want what the caller wanted.  Vectors that gave way are long, and survive collections of
the usual kind.  The caller has parked its own answer, so that it may give way meanwhile."
  (make-room-in-heap (* octets (worker-count engine :active :starting))))

(defun look-at-output (connection now &optional sent-p)
  "Looks at NOW how much of its output the peer of CONNECTION, which the caller owns, has taken,
and has the sentinel look again soon.  SENT-P is as in LOOK-AT-TAKER."
  (let ((queue (connection-queue connection)))
    (look-at-taker queue (connection-descriptor connection) now sent-p)
    (set-deadline-at connection :write (next-look-at-taker queue now))))

(defun taken-in-time-p (connection now)
  "True if the peer of CONNECTION, which the caller owns, has time NOW to take more of its
output.  The sentinel looks again then."
  (let ((queue (connection-queue connection)))
    (when (and (send-queue-parts queue) (waited-for-p queue))
      (look-at-output connection now)
      (not (taker-given-up-p queue now)))))

(defun output-in-time-p (connection now)
  "Answers like TAKEN-IN-TIME-P for CONNECTION, which another thread owns, and whose descriptor
stays open."
  (and (connection-output connection)
       (patience-left-p (connection-queue connection) (connection-descriptor connection) now)))

(defun park-until-writable (engine connection)
  "Parks CONNECTION, which takes no more octets now.  Its next owner sends on."
  (when (eq :input (connection-watched connection))
    (setf (connection-watched connection) :both)
    (rearm (engine-poller engine) (connection-descriptor connection)
           (connection-token connection) t)) ; an event comes if it takes more by now
  (leave-to-poller engine connection :both))
