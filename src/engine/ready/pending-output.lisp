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
;;;;                                 the peer is gone, or the       drops the connection
;;;;                                 service wants none of it sent
;;;;                                 the peer takes no more now     parks the connection, until
;;;;                                                                it takes more
;;;;
;;;; Input that comes meanwhile stays in the socket, so a peer that sends requests and reads no
;;;; answers is held up by its own.  The poller reports it once, and perhaps the peer's end,
;;;; to an owner who only tries to send; that is why all is read again after the last octet
;;;; was taken, as if its event had come then.
;;;;
;;;; A connection in this state is ended by the sentinel when nothing was taken for
;;;; WRITE-SECONDS, and by a hard stop at once.  A soft stop waits for it.
;;;;
;;;; A peer may take octets long before the socket takes more of ours: the kernel waits until a third
;;;; of its buffer, which may have megabytes, is free.  So the kernel is asked how much of what it holds is
;;;; unsent, and a peer that took some of that since has as much time again.  What is on its way when the
;;;; time begins arrives at once, and is taken by nobody yet: therefore it is asked often.

(defun send-pending-output (engine connection)
  "Sends what CONNECTION, which the caller owns, has left of its output.  Returns :AGAIN when
there is more to be done for it, else what became of it: :PARKED, :CLOSE or :BROKEN."
  (if (output-unwanted-p (engine-service engine) connection)
      :broken
      (send-wanted-output engine connection)))

(defun send-wanted-output (engine connection)
  (multiple-value-bind (left sent-p error)
      (send-connection-output connection)
    (setf (connection-output connection) left)
    (unless left
      (release-output connection)
      (setf (connection-write-began connection) nil))
    (cond (error :broken)
          (left
           (when (or sent-p (null (connection-deadline connection)))
             (renew-write-deadline engine connection (coarse-now (engine-pool-state engine))))
           (reserve-output engine connection)
           (park-until-writable engine connection))
          ((and (member (connection-outcome connection) '(:park :deferred)) (serving-p engine))
           :again)
          (t :close))))

;;; Memory

(defun octets-held (parts)
  "How many octets of memory PARTS, a list, keep in use."
  (loop for part in parts
        when (octets-part-p part)
          sum (length (octets-part-octets part))))

(defun reserve-output (engine connection)
  "Reserves memory for the output of CONNECTION, which the caller owns, and whose peer takes no more now; but not for that of a
stream, which has a mark of its own.  Where there is no room, others that have memory for longest give way.  If there are no
others, CONNECTION keeps its output all the same, since its service has it in memory already; it counts beyond the
budget then, and is the one to be ended for the next."
  (when (and (zerop (connection-reserved connection))
             (not (eq :deferred (connection-outcome connection))))
    (let ((octets (octets-held (connection-output connection))))
      (flet ((reserved-p (share)
               (uninterruptibly
                 (when (reserve-client-memory octets share)
                   (setf (connection-reserved connection) octets
                         (connection-reserved-since connection) (milliseconds))
                   t))))
        (loop until (or (reserved-p *waiting-share*)
                        (and (not (evict-oldest engine))
                             (reserved-p nil))))))))

(defun release-output (connection)
  "Releases what is reserved for output of CONNECTION, which the caller owns."
  (when (plusp (connection-reserved connection))
    (uninterruptibly
      (release-client-memory (shiftf (connection-reserved connection) 0)))))

(defconstant +write-looks+ 16
  "How often within the time that a peer has to take octets it is looked whether it does.")

(defun octets-owed (connection)
  "How many octets of its output the peer of CONNECTION has yet to take, as far as the system tells."
  (+ (max 0 (connection-unsent connection))
     (loop for part in (connection-output connection)
           sum (- (part-end part) (part-position part)))))

(defun write-rate-end (engine connection now)
  "Until when the peer of CONNECTION, whose output waits for it NOW, was fast enough to have the rest of that wait, in
MILLISECONDS, or NIL for ever."
  (multiple-value-bind (rate grace) (write-rate (engine-service engine))
    (when (and rate (<= 0 (connection-unsent connection)))
      (let ((owed (octets-owed connection)))
        (when (or (null (connection-write-began connection))
                  (> owed (connection-write-owed connection))) ; more came meanwhile
          (setf (connection-write-began connection) now
                (connection-write-owed connection) owed))
        (+ (connection-write-began connection)
           (* 1000 grace)
           (floor (* 1000 (- (connection-write-owed connection) owed)) rate))))))

(defun renew-write-deadline (engine connection now)
  "Gives the peer of CONNECTION, which the caller owns, the time that it has to take more: none where it has taken too few
octets all in all."
  (setf (connection-unsent connection) (unsent-octets (connection-descriptor connection)))
  (let ((milliseconds (as-milliseconds (write-seconds (engine-service engine))))
        (rate-end (write-rate-end engine connection now)))
    (setf (connection-write-end connection)
          (if (and milliseconds rate-end)
              (min (+ now milliseconds) rate-end)
              (or rate-end (and milliseconds (+ now milliseconds)))))
    (set-next-look engine connection now)))

(defun set-next-look (engine connection now)
  "Has the sentinel look soon, and by the end of its time, whether the peer of CONNECTION, which the caller
owns, takes octets."
  (let ((milliseconds (as-milliseconds (write-seconds (engine-service engine))))
        (end (connection-write-end connection)))
    (set-deadline-in connection :write
                     (and end
                          (min (- end now)
                               (if milliseconds (ceiling milliseconds +write-looks+) 1000)))
                     now)))

(defun still-fast-enough-p (engine connection now)
  "True when the peer of CONNECTION, which has output left and is the caller's, took octets since its time was renewed, and
has time to take more; that is renewed then."
  (when (peer-took-some-p connection)
    (renew-write-deadline engine connection now)
    (or (null (connection-write-end connection))
        (< now (connection-write-end connection)))))

(defun time-left-to-take-p (connection now)
  "True when the peer of CONNECTION, which has output left, has taken octets since it was looked, or has time
left for that."
  (or (peer-took-some-p connection)
      (let ((end (connection-write-end connection)))
        (and end (<= now end)))))

(defun peer-took-some-p (connection)
  "True when the peer of CONNECTION, which has output left and is not closed meanwhile, took octets since
its time was renewed."
  (let ((unsent (connection-unsent connection)))
    (and unsent
         (< -1 (unsent-octets (connection-descriptor connection)) unsent))))

(defun park-until-writable (engine connection)
  "Like LEAVE-TO-POLLER, for CONNECTION that takes no more octets now: whoever owns it next sends on."
  (unless (shiftf (connection-output-watched-p connection) t)
    (when (connection-watched-p connection)
      (rearm-connection engine connection)))
  (leave-to-poller engine connection))

(defun rearm-connection (engine connection)
  "Makes an event of CONNECTION, which is watched, if it is ready now."
  (rearm (engine-poller engine) (connection-descriptor connection)
         (connection-token connection) (connection-output-watched-p connection)))

;;; How many are in which state

(defun count-connections (predicate engine)
  (let ((count 0))
    (map-connections (lambda (connection)
                       (when (funcall predicate connection)
                         (incf count)))
                     (engine-table engine))
    count))
