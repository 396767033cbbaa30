(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The time limit of a handler: when it has passed, the sentinel answers 503 on the handler's
;;;; behalf.  The handler runs on, and so does its worker, which owns the connection.  A
;;;; HANDLER-WATCH decides which of the two may use the connection:
;;;;
;;;;   state        event                                  becomes      action
;;;;   :RUNNING     the worker begins to read content      :READING
;;;;                the handler's reply begins             :REPLYING
;;;;                the handler is left                    :OVER
;;;;                the limit has passed                   :ANSWERING   the sentinel sends 503
;;;;   :READING     that read has ended                    :RUNNING
;;;;                the handler's reply begins             :REPLYING
;;;;                the limit has passed                   -            none: reading does not count
;;;;   :REPLYING    the handler is left                    :OVER
;;;;                the limit has passed                   :CUTTING     the sentinel shuts it down
;;;;   :ANSWERING   the sentinel is done                   :ANSWERED
;;;;   :CUTTING     the sentinel is done                   :CUT
;;;;   :ANSWERED,   the handler's reply begins             -            DESCRIPTOR-BROKEN
;;;;   :CUT         the handler is left                    -            its reply is dropped
;;;;
;;;; In :ANSWERING and :CUTTING the worker waits for the sentinel, which never waits: so the
;;;; connection stays open meanwhile, and OpenSSL, which reads and writes, has one user at a time.
;;;;
;;;; The sentinel and no timer looks after the limit, because handlers that are late may have all
;;;; workers, and timers need one.

(defun handler-watch-limit (exchange)
  "How many seconds, a real, the handler of EXCHANGE may run; NIL for no limit."
  (limits-handler-seconds (application-limits (exchange-application exchange))))

;;; The worker

(defun handler-timed-out-p (exchange)
  "True when the limit of the handler of EXCHANGE has passed before the handler was left."
  (let ((watch (exchange-watch exchange)))
    (and watch
         (watch-late-p watch))))

(defun lift-handler-limit (exchange)
  "Ends the limit of the handler of EXCHANGE, if there is one.  NIL when it has passed, and the
handler's reply is not to be sent."
  (let ((watch (exchange-watch exchange)))
    (or (null watch)
        (progn (change-watch watch '(:running :over :reading :over :replying :over))
               (not (watch-late-p watch))))))

(defun begin-limited-reply (exchange)
  "Notes that the reply of EXCHANGE begins now.  Signals DESCRIPTOR-BROKEN where the client was
answered in place of the handler."
  (let ((watch (exchange-watch exchange)))
    (when watch
      (change-watch watch '(:running :replying :reading :replying))
      (when (watch-late-p watch)
        (fail-as-broken (http-io (exchange-http exchange)) +ebadf+)))))

(defvar *handler-watch* nil
  "The HANDLER-WATCH of the handler that the current thread runs, or NIL.")

(defun begin-watch (exchange seconds)
  "Has the sentinel watch the handler of EXCHANGE, which may run for SECONDS.  Returns its watch."
  (let ((watch (make-handler-watch exchange (end-after seconds))))
    (setf (exchange-watch exchange) watch
          (http-watch (exchange-http exchange)) watch)
    (limit-handler-at (exchange-engine exchange) (exchange-connection exchange)
                      (handler-watch-end watch))
    watch))

(defun end-watch (exchange watch)
  "Ends WATCH, of the handler of EXCHANGE: the sentinel does not use the connection any more."
  (lift-handler-limit exchange)
  (setf (http-watch (exchange-http exchange)) nil
        (handler-watch-function watch) nil
        (connection-deadline (exchange-connection exchange)) nil))

(defun call-watched (exchange seconds function)
  "Calls FUNCTION, the handler of EXCHANGE, which may run for SECONDS."
  (let ((*handler-watch* (begin-watch exchange seconds)))
    (unwind-protect (funcall function)
      (end-watch exchange *handler-watch*))))

(defun call-with-handler-limit (exchange function)
  "Calls FUNCTION, the handler of EXCHANGE, under the limit of its application.  Returns the values
of FUNCTION."
  (let ((seconds (handler-watch-limit exchange)))
    (if seconds
        (call-watched exchange seconds function)
        (funcall function))))

;;; The sentinel

(defun take-late-handler (watch)
  "Reserves the connection of the handler of WATCH for the sentinel, if the limit has passed.
Returns the state before, :RUNNING or :REPLYING; NIL where the sentinel has nothing to do."
  (with-lock-briefly ((handler-watch-lock watch))
    (let* ((state (handler-watch-state watch))
           (next (getf '(:running :answering :replying :cutting) state)))
      (when (and next (<= (handler-watch-end watch) (milliseconds)))
        (setf (handler-watch-state watch) next)
        state))))

(defun end-late-handler (watch)
  "Lets the worker of WATCH use the connection again."
  (with-lock-briefly ((handler-watch-lock watch))
    (setf (handler-watch-state watch)
          (getf '(:answering :answered :cutting :cut) (handler-watch-state watch)))
    (bt:condition-notify (handler-watch-changed watch))))

(defun answer-for-handler (application exchange)
  "Answers the request of EXCHANGE, whose handler is late, with 503, and ends our side of the
connection, since a client may wait for that."
  (let* ((head (exchange-head exchange))
         (http (exchange-http exchange))
         (refusal (make-refusal :handler-timeout)))
    (note-rejected-head application http refusal head)
    (setf (exchange-status exchange) (protocol-error-status refusal))
    (handler-case (send-refusal-at-once (http-io http) refusal (eq :head (head-method head)))
      (stream-error () nil))            ; the client is gone
    (shut-down (connection-handle (exchange-connection exchange)) :output)))

(defun end-for-handler (application exchange state)
  "Ends the reply of EXCHANGE to APPLICATION, whose handler is late and was in STATE."
  (let ((engine (exchange-engine exchange)))
    (count-late engine :handler)
    (if (eq :running state)
        (answer-for-handler application exchange)
        (wake-from-client engine (exchange-connection exchange) :output))))

(defun take-timeout-function (watch)
  "The function that a program has left for WATCH, if its handler is late; WATCH has none then.  NIL
where there is none."
  (with-lock-briefly ((handler-watch-lock watch))
    (when (watch-late-p watch)
      (shiftf (handler-watch-function watch) nil))))

(defun return-timeout-function (watch function)
  "Leaves FUNCTION, which TAKE-TIMEOUT-FUNCTION has taken, with WATCH again, unless that has
another."
  (with-lock-briefly ((handler-watch-lock watch))
    (unless (handler-watch-function watch)
      (setf (handler-watch-function watch) function))))

(defun call-timeout-function (application function)
  "Calls FUNCTION, of a program, for a handler of APPLICATION that is late."
  (handler-case (funcall function)
    (serious-condition (condition)
      (tell application :error
            "What was to be done when a handler took too long failed: ~A" condition))))

(defun have-timeout-function-called (application watch function)
  "Has a new thread call FUNCTION, which TAKE-TIMEOUT-FUNCTION has taken from WATCH, of a handler of
APPLICATION.  FUNCTION may wait, and all workers may be those that it is to free, so it is left for
the sentinel's next look where no thread can be made."
  (unless (call-in-thread (exchange-engine (handler-watch-exchange watch)) "handler timeout"
                          (lambda () (call-timeout-function application function)))
    (return-timeout-function watch function)))

(defmethod time-out-handler ((application http-service) connection)
  (let* ((http (connection-data connection))
         (watch (and http (http-watch http))))
    (when watch
      (let ((state (take-late-handler watch)))
        (when state
          (unwind-protect (end-for-handler application (handler-watch-exchange watch) state)
            (end-late-handler watch))))
      (let ((function (take-timeout-function watch)))
        (when function
          (have-timeout-function-called application watch function))))))

;;; For programs

(defgeneric watch-of (request)
  (:documentation "The HANDLER-WATCH of REQUEST, NIL where it has none; NIL stands for the request
whose handler the current thread runs.")
  (:method ((request null))
    *handler-watch*))

(defun request-timed-out-p (&optional request)
  "True when the handler of REQUEST has run for longer than :HANDLER-TIMEOUT.  Then its client was
answered 503, or its reply was cut if that had begun, and what the handler returns is dropped.
REQUEST is a HUNCHENTOOT:REQUEST, or an environment of Clack, a plist with :CLACK.IO; by default
that whose handler, or application, the current thread calls.  Any thread may call this.  NIL
without a request."
  (let ((watch (watch-of request)))
    (and watch
         (watch-late-p watch))))

(defun call-when-timed-out (function &optional request)
  "Has FUNCTION, without arguments, called once if the handler of REQUEST, as for
REQUEST-TIMED-OUT-P, runs into :HANDLER-TIMEOUT, as for canceling a query for which it waits.  It is
called in a thread of its own after the client was answered; at once, by the caller, if that has
happened before; and not at all when the handler has returned.  While no thread can be made, that is
tried again, until the handler returns.  FUNCTION takes the place of the last such function of the
request; NIL is for none.  An error in it is logged.  Returns NIL."
  (let ((watch (watch-of request)))
    (when (and watch
               (with-lock-briefly ((handler-watch-lock watch))
                 (case (handler-watch-state watch)
                   (:over nil)
                   ((:running :reading :replying)
                    (setf (handler-watch-function watch) function)
                    nil)
                   (t
                    ;; It takes the place of one for which no thread could be made yet.
                    (setf (handler-watch-function watch) nil)
                    function))))
      (funcall function))
    nil))
