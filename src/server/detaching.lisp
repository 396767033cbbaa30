(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Connections that a program takes away.

(defun give-away (application connection link)
  "Leaves the socket of CONNECTION, with LINK, to a program under APPLICATION; returns what is to become of
the connection."
  (let ((base (link-base link)))
    (pace-wire (link-wire link) nil nil)
    (abandon-reception link)            ; who leaves a request by a non-local exit has not
    (cond ((null base)
           (setf (connection-outcome connection) :detached))
          ((null (wire-descriptor base)) :close)
          ((encrypted-p application)
           (finish-output (link-stream link))
           ;; OpenSSL has the number of the descriptor, so it must be that.  Once it is the program's, it
           ;; may be another connection's at any moment.
           (uninterruptibly
             (detach (worker-engine *worker*) connection)
             (setf (connection-outcome connection) :detached)
             (unless (hand-descriptor-over base) ; the program has just closed it
               (close-socket (connection-descriptor connection))))
           :detached)
          (t
           (usocket:socket-stream (connection-usocket connection)) ; lends that
           (if (lent-open-p base)
               (leave-to-program connection base)
               :close)))))

(defun leave-to-program (connection wire)
  "Leaves the streams of CONNECTION, with WIRE, to the program; returns what is to become of the
connection: its own descriptor is closed, but nobody says good-bye."
  ;; So it is also if what follows fails.
  (setf (connection-outcome connection) :broken)
  (leave-to-lent wire)
  (setf (connection-data connection) nil
        (connection-socket connection) nil)
  :broken)
