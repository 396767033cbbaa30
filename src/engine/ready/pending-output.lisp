(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Answers for which a peer takes its time: no worker waits for it.
;;;;
;;;;   the owner of a connection     and finds that                 does
;;;;   with output left sends it
;;;;
;;;;                                 all of it was taken, and its   serves what has come
;;;;                                 outcome is :PARK or            meanwhile, and parks
;;;;                                 :DEFERRED
;;;;                                 all of it was taken            ends the connection gently
;;;;                                 the peer is gone, the service  drops the connection
;;;;                                 wants none of it sent, or has
;;;;                                 no memory for what was read
;;;;                                 the peer takes no more now     parks the connection, until
;;;;                                                                it takes more
;;;;
;;;; Input that comes meanwhile stays in the socket, so a peer that sends requests and reads no
;;;; answers is held up by its own; what was read before counts as memory of clients.  The poller
;;;; reports it once, and perhaps the peer's end, to an owner who only tries to send; that is why
;;;; all is read again after the last octet was taken, as if its event had come then.
;;;;
;;;; A connection in this state is ended by the sentinel when its peer is too slow (see
;;;; slow-readers.lisp), and by a hard stop at once.  A soft stop waits for it.

(defun send-pending-output (engine connection)
  "Sends what CONNECTION, which the caller owns, has left of its output.  Returns :AGAIN when
there is more to be done for it, else what became of it: :PARKED, :CLOSE or :BROKEN."
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
             (reserve-output engine connection)
             (park-until-writable engine connection))
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
  "Reserves memory for the output of CONNECTION, which the caller owns, and whose peer takes no more
now; but not for that of a stream, which has a mark of its own.  Where there is no room, others that
have memory for longest give way.  If there are no others, CONNECTION keeps its output all the same,
since its service has it in memory already; it counts beyond the budget then, and is the one to be
ended for the next."
  (let ((queue (connection-queue connection)))
    (when (and (zerop (send-queue-reserved queue))
               (not (eq :deferred (connection-outcome connection))))
      (let ((octets (octets-held (send-queue-parts queue))))
        (flet ((reserved-p (share)
                 (change-reservation (send-queue-reserved queue) octets
                                     :share share :since (send-queue-reserved-since queue))))
          (loop until (or (reserved-p *waiting-share*)
                          (and (not (evict-oldest engine))
                               (reserved-p nil)))))
        (make-room-in-heap 0)))))       ; what others have left is long, and gets old

(defun look-at-output (connection now &optional sent-p)
  "Looks at NOW what the peer of CONNECTION, which the caller owns, has taken of its output, and
has the sentinel look soon whether it takes more.  SENT-P is as in LOOK-AT-TAKER."
  (let ((queue (connection-queue connection)))
    (look-at-taker queue (connection-descriptor connection) now sent-p)
    (set-deadline-at connection :write (next-look-at-taker queue now))))

(defun taken-in-time-p (connection now)
  "True when the peer of CONNECTION, which the caller owns, has time NOW to take more of its
output; the sentinel looks again then."
  (let ((queue (connection-queue connection)))
    (when (and (send-queue-parts queue) (send-queue-looked queue))
      (look-at-output connection now)
      (not (taker-given-up-p queue now)))))

(defun output-in-time-p (connection now)
  "What TAKEN-IN-TIME-P tells of CONNECTION, which another thread owns, and whose descriptor stays
open."
  (and (connection-output connection)
       (patience-left-p (connection-queue connection) (connection-descriptor connection) now)))

(defun park-until-writable (engine connection)
  "Like LEAVE-TO-POLLER, for CONNECTION that takes no more octets now: whoever owns it next sends
on."
  (when (eq :input (connection-watched connection))
    (setf (connection-watched connection) :both)
    (rearm (engine-poller engine) (connection-descriptor connection)
           (connection-token connection) t)) ; an event comes if it takes more by now
  (leave-to-poller engine connection :both))

;;; How many are in which state

(defun count-connections (predicate engine)
  (let ((count 0))
    (map-connections (lambda (connection)
                       (when (funcall predicate connection)
                         (incf count)))
                     (engine-table engine))
    count))
