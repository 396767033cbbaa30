(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Who may touch a connection of the ready engine.
;;;;
;;;;   state      means                                    becomes, by whom
;;;;   :parked    nobody's                                  :owned   who is told that it is ready
;;;;                                                        :owned   the sentinel, to end it
;;;;   :owned     a worker reads, writes or serves it       :parked  its owner
;;;;                                                        :arrived who is told that it is ready
;;;;                                                        :expiring the sentinel
;;;;                                                        :closed  its owner
;;;;   :arrived   owned, and octets came since the owner    :owned   its owner, who reads again
;;;;              was told last                             :closed  its owner
;;;;   :expiring  owned, and the sentinel is shutting its   :owned   the sentinel, at once
;;;;              descriptor down
;;;;   :closed    gone; the descriptor may be another's
;;;;
;;;; Every change is a compare-and-set.  The poller is edge-triggered: it tells once of octets
;;;; that came, so whoever is told and does not become the owner leaves a mark, :ARRIVED, that
;;;; makes parking fail; and an owner that was not told has read until nothing was left before
;;;; it parks.  Hence no octet waits unseen.  One-shot watching would need no mark, but a
;;;; system call for each parking.
;;;;
;;;; What an owner has to do, CONNECTION-OUTPUT and CONNECTION-LINGERING-P tell:
;;;;
;;;;   octets of an answer that    sends them: see writing.lisp
;;;;   the socket did not take
;;;;   the last answer was sent    drops what comes, until the end
;;;;   otherwise                   serves what has come
;;;;
;;;; A parked connection is in one of these states, too.  The poller tells when it takes octets
;;;; again only from the first time on that it did not, since each such watch costs a system
;;;; call, and most never need it.

(deftype ownership ()
  '(member :parked :owned :arrived :expiring :closed))

(defun become-owner (connection)
  "True when the caller, who was told that CONNECTION is ready, owns it now; otherwise its owner
will know that more has come."
  (loop
    (ecase (connection-ownership connection)
      (:parked
       (when (compare-and-set (connection-ownership connection) :parked :owned)
         (return t)))
      (:owned
       (when (compare-and-set (connection-ownership connection) :owned :arrived)
         (return nil)))
      ((:arrived :expiring :closed)
       (return nil)))))

(defun give-up-ownership (connection)
  "Parks CONNECTION; NIL when more has come, and the caller still owns it."
  (loop
    (when (compare-and-set (connection-ownership connection) :owned :parked)
      (return t))
    (when (compare-and-set (connection-ownership connection) :arrived :owned)
      (return nil))
    (bt:thread-yield)))                 ; the sentinel is about to be done with it

(defun end-ownership (connection)
  "Makes CONNECTION, which the caller owns, nobody's for ever."
  (loop until (or (compare-and-set (connection-ownership connection) :owned :closed)
                  (compare-and-set (connection-ownership connection) :arrived :closed))
        do (bt:thread-yield)))          ; the sentinel is about to be done with it

(defun call-while-expiring (connection function)
  "Calls FUNCTION, which ends the descriptor of CONNECTION, while its owner cannot close it.
Does nothing when it is not owned."
  (when (compare-and-set (connection-ownership connection) :owned :expiring)
    (unwind-protect (funcall function)
      (compare-and-set (connection-ownership connection) :expiring :owned))))
