(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Connections that a program takes away.

(defun give-away (application connection http)
  "Leaves the socket of CONNECTION, with HTTP, to a program under APPLICATION; returns what is to
become of the connection."
  (let ((base (http-base http)))
    (pace-io (http-io http) nil nil)
    (abandon-body-prefetch http)        ; who leaves a request by a non-local exit has not
    (cond ((null base)
           (setf (connection-outcome connection) :detached))
          ((null (io-descriptor base)) :close)
          ((encrypted-p application)
           (finish-output (http-stream http))
           ;; OpenSSL has the number of the descriptor, so it must be that.  Once it is the
           ;; program's, it may be another connection's at any moment.
           (uninterruptibly
             (detach (worker-engine *worker*) connection)
             (setf (connection-outcome connection) :detached)
             (if (hand-descriptor-over base)
                 (end-when-forgotten base)
                 ;; The program has just closed it.
                 (close-socket (connection-descriptor connection))))
           :detached)
          (t
           (usocket:socket-stream (connection-usocket connection)) ; lends that
           (if (lent-open-p base)
               (leave-to-program connection base)
               :close)))))

(defun end-when-forgotten (base)
  "Has the TLS connection on BASE, which a program has taken away, ended when that has forgotten
it."
  (let ((transport (and (io-encrypted base) (io-transport (io-encrypted base)))))
    (when transport
      (end-transport-when-forgotten transport (io-stream base)))))

(defun leave-to-program (connection io)
  "Leaves the streams of CONNECTION, with IO, to the program; returns what is to become of the
connection: its own descriptor is closed, but nobody says good-bye."
  ;; So it is also if what follows fails.
  (setf (connection-outcome connection) :broken)
  (leave-to-lent io)
  (setf (connection-data connection) nil
        (connection-socket connection) nil)
  :broken)
