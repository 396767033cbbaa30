(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Workers that wait for their clients, to send content or to take a reply: no more than a limit
;;;; at a time, half of the threads by default, so that slow clients cannot hold all threads.  When
;;;; one worker more begins to wait, the slowest client of those that are waited for is given up.
;;;;
;;;;   a worker begins to wait, and             then
;;;;   no more wait than may                    it waits
;;;;   its own client is the slowest            it is told at once, and does not wait
;;;;   another client is the slowest            that one's connection is shut down, so that its worker wakes, and is told
;;;;
;;;; Fast clients are seldom waited for, and never the slowest.  A connection that idles between two
;;;; requests is not waited for here: it is parked, or, in the blocking engine, closed when others
;;;; wait.
;;;;
;;;; In the blocking engine the rule is the same; a connection between two requests keeps its thread
;;;; there.

(defstruct (client-wait (:include opaque)
                        (:constructor make-client-wait (connection direction octets since)) (:copier nil))
  "That a worker waits for the client of CONNECTION in DIRECTION, :INPUT or :OUTPUT: as if since
SINCE, in MILLISECONDS, for OCTETS that have come or were taken."
  (connection nil :read-only t)
  (direction :input :read-only t)
  (octets 0 :type (unsigned-byte 62) :read-only t)
  (since 0 :type fixnum :read-only t)
  (given-up-p nil))

(defconstant +octets-granted+ (* 64 1024)
  "So many octets count as moved when a client is waited for for the first time, in the second that
counts as waited for.")

(defun client-speed (wait now)
  "How many octets a second the client of WAIT has moved while it was waited for, NOW, in
MILLISECONDS; about 64 KiB when the wait begins."
  (floor (* 1000 (+ (client-wait-octets wait) +octets-granted+))
         (+ 1000 (max 0 (- now (client-wait-since wait))))))

(defun waiting-limit-of (engine)
  "How many workers of ENGINE may wait for clients at a time, or NIL."
  (let ((limit (engine-waiting-limit engine))
        (threads (engine-thread-limit engine)))
    (if (eq :half limit)
        (and threads (max 1 (floor threads 2)))
        limit)))

(defun waits-full-p (engine)
  "True when as many workers of ENGINE wait for clients as may: when one more does, a client is
given up."
  (with-engine (engine)
    (let ((limit (waiting-limit-of engine)))
      (and limit
           (>= (length (engine-client-waits engine)) limit)))))

(defun slowest-wait (engine now)
  "The wait for the slowest client of ENGINE; of equally slow ones the oldest."
  (loop with slowest = nil and least = 0
        for wait in (engine-client-waits engine)
        for speed = (client-speed wait now)
        when (or (null slowest) (<= speed least))
          do (setf slowest wait
                   least speed)
        finally (return slowest)))

(defun add-client-wait (engine wait now)
  "Adds WAIT to those of ENGINE.  Returns the one that is to be given up, which is none of them any
more; or NIL."
  (with-engine (engine)
    (push wait (engine-client-waits engine))
    (let ((limit (waiting-limit-of engine)))
      (when (and limit (> (length (engine-client-waits engine)) limit))
        (let ((slowest (slowest-wait engine now)))
          (setf (engine-client-waits engine) (delete slowest (engine-client-waits engine)))
          (count-expired engine (if (eq :input (client-wait-direction slowest)) :body :write))
          (setf (client-wait-given-up-p slowest) t)
          slowest)))))

(defun end-client-wait (engine wait)
  (with-engine (engine)
    (setf (engine-client-waits engine) (delete wait (engine-client-waits engine)))))

(defgeneric wake-from-client (engine connection direction)
  (:documentation "Shuts CONNECTION of ENGINE down, if a worker still has it, in DIRECTION, :INPUT,
so that the client can still be told why, or :OUTPUT, which ends both halves: who waits for it
wakes.  What it returns does not matter."))

(defun wait-for-client (connection direction octets milliseconds function)
  "Calls FUNCTION, which waits for the client of CONNECTION in DIRECTION, :INPUT or :OUTPUT, and
returns true unless that client was given up, before or meanwhile, since too many are waited for.
OCTETS, an integer, have come from this client, or were taken by it, in MILLISECONDS for which it
was waited for before.  Other threads than workers wait without a limit, and so does a worker where
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
