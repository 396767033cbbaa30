(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Workers that wait for their clients, to send content or to take a reply.  A limit, by default
;;;; half of the threads, keeps slow clients from holding all threads.  When one worker more begins
;;;; to wait, the slowest of the clients that workers wait for is given up.
;;;;
;;;;   a worker begins to wait, and     then
;;;;   the limit allows it              it waits
;;;;   its own client is the slowest    it does not wait, and learns that its client was given up
;;;;   another client is the slowest    that one's connection is shut down; its worker wakes, and
;;;;                                    learns it
;;;;
;;;; Workers seldom wait for fast clients, which are never the slowest.  A connection between two
;;;; requests does not count: it is parked.  In the blocking engine it keeps its thread, and is
;;;; closed when other connections wait.

(defstruct (client-wait (:include opaque)
                        (:constructor make-client-wait (connection direction octets since))
                        (:copier nil))
  "A worker waits for the client of CONNECTION in DIRECTION, :INPUT or :OUTPUT.  The wait counts
as if it had begun at SINCE, in MILLISECONDS; OCTETS have come or were taken."
  (connection nil :read-only t)
  (direction :input :read-only t)
  (octets 0 :type (unsigned-byte 62) :read-only t)
  (since 0 :type fixnum :read-only t)
  (given-up-p nil))

(defconstant +octets-granted+ (* 64 1024)
  "The number of octets that count as moved, in the second that counts as waited, when a wait for
a client begins.")

(defun client-speed (wait now)
  "The number of octets a second that the client of WAIT has moved, as of NOW in MILLISECONDS,
while a worker waited; about 64 KiB when the wait begins."
  (floor (* 1000 (+ (client-wait-octets wait) +octets-granted+))
         (+ 1000 (max 0 (- now (client-wait-since wait))))))

(defun waiting-limit-of (engine)
  "The number of workers of ENGINE that may wait for clients at a time, or NIL."
  (let ((limit (client-waits-limit (engine-client-waits engine)))
        (threads (engine-thread-limit engine)))
    (if (eq :half limit)
        (and threads (max 1 (floor threads 2)))
        limit)))

(defun slowest-wait (waits now)
  "Of WAITS, that for the slowest client; among equally slow ones the oldest."
  (loop with slowest = nil and least = 0
        for wait in waits
        for speed = (client-speed wait now)
        when (or (null slowest) (<= speed least))
          do (setf slowest wait
                   least speed)
        finally (return slowest)))

(defun add-client-wait (engine wait now)
  "Adds WAIT to the waits of ENGINE.  Returns the wait to be given up, which is removed from
them; or NIL."
  (with-engine (engine)
    (let ((waits (push wait (client-waits-list (engine-client-waits engine))))
          (limit (waiting-limit-of engine)))
      (when (and limit (> (length waits) limit))
        (let ((slowest (slowest-wait waits now)))
          (remove-client-wait engine slowest)
          (count-expired engine (if (eq :input (client-wait-direction slowest)) :body :write))
          (setf (client-wait-given-up-p slowest) t)
          slowest)))))

(defun remove-client-wait (engine wait)
  "Removes WAIT from those of ENGINE.  Under the lock."
  (let ((waits (engine-client-waits engine)))
    (setf (client-waits-list waits) (delete wait (client-waits-list waits)))))

(defun end-client-wait (engine wait)
  (with-engine (engine)
    (remove-client-wait engine wait)))

(defgeneric wake-from-client (engine connection direction)
  (:documentation "Shuts down the connection CONNECTION of ENGINE if a worker still has it, so
that the worker wakes.  DIRECTION is :INPUT, so that the client can still be told why, or
:OUTPUT, which ends both halves.  The value does not matter."))

(defun wait-for-client (connection direction octets milliseconds function)
  "Calls FUNCTION, which waits for the client of CONNECTION in DIRECTION, :INPUT or :OUTPUT.
Returns true unless that client was given up, before or meanwhile, because workers wait for too
many.  OCTETS, an integer, have come from this client, or were taken by it, in the MILLISECONDS
of earlier waits.  Threads that are no workers wait without a limit, and so does a worker if
CONNECTION is NIL."
  (let ((worker *worker*))
    (cond ((or (null worker) (null connection))
           (funcall function)
           t)
          (t
           (let* ((engine (worker-engine worker))
                  (now (milliseconds))
                  (wait (make-client-wait connection direction octets (- now milliseconds))))
             (unwind-protect
                  (let ((slowest (add-client-wait engine wait now)))
                    (when slowest
                      (unless (eq slowest wait)
                        (wake-from-client engine (client-wait-connection slowest)
                                          (client-wait-direction slowest))))
                    (unless (eq slowest wait)
                      (funcall function)))
               (end-client-wait engine wait))
             (not (client-wait-given-up-p wait)))))))
