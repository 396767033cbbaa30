(in-package #:clack.handler.recycling)

;;;; The arguments of RUN, with the meanings that they have for Clack's handlers for Hunchentoot and
;;;; Woo.

(deftype count-of-threads ()
  "How many threads there may be."
  '(integer 1 #.most-positive-fixnum))

(defparameter *option-types*
  '((:address address "a string with an address or the name of a host, or NIL for all addresses")
    (:port port-number "an integer from 0, for any free port, to 65535")
    (:listen (or null string pathname) "a string or a pathname, or NIL")
    (:listen-mode (or null (integer 0 #o777)) "an integer from 0 to #o777, or NIL")
    (:fd (or null (unsigned-byte 31) (eql :systemd)) "the number of a descriptor, :SYSTEMD, or NIL")
    (:backlog (unsigned-byte 31) "an integer, not negative")
    (:worker-num (or null count-of-threads) "an integer above 0, or NIL")
    (:max-thread-count (or null count-of-threads) "an integer above 0, or NIL for no limit")
    (:max-accept-count (or (member nil :unlimited) count-of-threads)
     "an integer greater than MAX-THREAD-COUNT, :UNLIMITED, or NIL, to answer 503 at once")
    (:max-waiting-count (or (member nil :half) count-of-threads)
     "an integer above 0, :HALF of MAX-THREAD-COUNT, or NIL for no limit")
    (:read-timeout seconds "a number of seconds, or NIL for no limit")
    (:write-timeout seconds "a number of seconds, or NIL for no limit")
    (:response-timeout seconds "a number of seconds, or NIL for no limit")
    (:defer-accept (or null (integer 1 255)) "an integer of seconds from 1 to 255, or NIL")
    (:on-start (or null function symbol) "a function of one argument, or NIL"))
  "Arguments of RUN, as CHECK-ARGUMENT-TYPES has them.")

(defparameter *least-threads* 8
  "How many threads are made at start, and stay, where nobody says it.")

(defun thread-counts (arguments)
  "How many threads ARGUMENTS, a plist for RUN, want: a plist of the :LEAST, the :MOST, and what
becomes of connections when all serve, :ACCEPT; and how many may wait for clients, :WAITING."
  (let* ((least (or (getf arguments :worker-num) *least-threads*))
         (most (getf arguments :max-thread-count 100))
         (accept (getf arguments :max-accept-count :unlimited)))
    (when (and most (getf arguments :worker-num) (> least most))
      (setf most least))                ; Woo's number of workers is no limit on others
    (when (integerp accept)
      (unless (and most (> accept most))
        (unfit :max-accept-count ", ~D, must be greater than MAX-THREAD-COUNT, ~A" accept most)))
    (list :least (if most (min least most) least) :most most :accept accept
          :waiting (getf arguments :max-waiting-count :half))))

(defun check-place (arguments)
  "Checks where ARGUMENTS, a plist for RUN, say to listen."
  (let ((special (remove nil '(:listen :fd :reuse-port) :key (lambda (name) (getf arguments name)))))
    (when (and special (not (special-listeners-supported-p)))
      (unfit (first special) " needs SBCL under Linux"))
    (when (and (getf arguments :listen) (getf arguments :fd))
      (unfit :listen " and FD exclude each other"))))

(defun tls-wanted-p (arguments)
  "True when ARGUMENTS, a plist for RUN, want TLS: :SSL says it, or, where that was not given, as
for Woo, a file does."
  (getf arguments :ssl (or (getf arguments :ssl-cert-file)
                           (getf arguments :ssl-key-file))))

(defun tls-context-for (arguments)
  "The TLS-CONTEXT that ARGUMENTS, a plist for RUN, want; NIL where they want none."
  (cond ((not (tls-wanted-p arguments)) nil)
        ((fboundp 'clack-tls-context) (funcall 'clack-tls-context arguments))
        (t (unfit :ssl " cannot be had: this was built with the feature HUNCHENTOOT-NO-SSL"))))

(defun make-clack-server (app arguments)
  "A server of APP, as ARGUMENTS, a plist for RUN, want it.  Signals UNFIT-ARGUMENT."
  (check-argument-types arguments *option-types*)
  (check-place arguments)
  (make-instance 'clack-server
                 :app app
                 :debug-p (getf arguments :debug)
                 :limits (changed-limits (make-limits) arguments)
                 :read-timeout (getf arguments :read-timeout 20)
                 :write-timeout (getf arguments :write-timeout 20)
                 :response-timeout (getf arguments :response-timeout 60)
                 :persistent-p (getf arguments :persistent-connections-p t)
                 :batch-scheduling-p (getf arguments :batch-scheduling t)
                 :tls-context (tls-context-for arguments)
                 :place arguments
                 :threads (thread-counts arguments)))
