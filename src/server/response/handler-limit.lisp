(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The time limit of a handler: when it has passed, the sentinel answers 503 on the handler's
;;;; behalf.  The handler runs on, and so does its worker, which owns the connection.  Whoever
;;;; changes the state of a HANDLER-WATCH first, by compare-and-set, has the reply:
;;;;
;;;;   state       event                                  becomes      action
;;;;   :RUNNING    the handler's reply begins             :REPLYING
;;;;               the handler is left                    :OVER
;;;;               the limit has passed                   :ANSWERED    the sentinel sends 503, and
;;;;                                                                   shuts the connection down
;;;;   :REPLYING   the handler is left                    :OVER
;;;;               the limit has passed                   :CUT         the sentinel shuts it down
;;;;   :ANSWERED,  the handler's reply begins             -            DESCRIPTOR-BROKEN
;;;;   :CUT        the handler is left                    -            its reply is dropped
;;;;
;;;; While the handler reads content, END is NIL: reading has limits of its own.
;;;;
;;;; The sentinel and no timer looks after the limit, because handlers that are late may have all
;;;; workers, and timers need one.

(defmacro change-state (place &rest states)
  "Changes PLACE by compare-and-set to the state that follows its state in STATES, if there is one.
Returns the state before."
  `(loop for state = ,place
         for next = (getf ',states state)
         when (or (null next) (compare-and-set ,place state next))
           return state))

(defstruct (handler-watch (:include opaque) (:constructor make-handler-watch (exchange end))
                          (:copier nil))
  "The handler of EXCHANGE may run until END, in MILLISECONDS, or NIL for now."
  (exchange nil :read-only t)
  (end nil :type (or null fixnum))
  (state :running)
  (function nil))                       ; of the program, called when END has passed; or NIL

(defun watch-late-p (watch)
  "True when the sentinel has acted in place of the handler of WATCH."
  (and (member (handler-watch-state watch) '(:answered :cut)) t))

;;; The worker

(defvar *handler-watch* nil
  "The HANDLER-WATCH of the handler that the current thread runs, or NIL.")

(defun call-with-handler-limit (exchange function)
  "Calls FUNCTION, the handler of EXCHANGE, under the limit of its application.  Returns the values
of FUNCTION."
  (let ((seconds (limits-handler-seconds
                  (application-limits (exchange-application exchange))))
        (http (exchange-http exchange)))
    (if (null seconds)
        (funcall function)
        (let ((*handler-watch* (make-handler-watch exchange (end-after seconds))))
          (setf (exchange-watch exchange) *handler-watch*
                (http-watch http) *handler-watch*)
          (set-deadline-at (exchange-connection exchange) :handler
                           (handler-watch-end *handler-watch*))
          (unwind-protect (funcall function)
            (lift-handler-limit exchange)
            (setf (http-watch http) nil
                  (handler-watch-function *handler-watch*) nil
                  (connection-deadline (exchange-connection exchange)) nil))))))

(defun call-reading-in-time (io function)
  "Calls FUNCTION, which reads content over IO.  That time does not count for the limit of the
handler."
  (let* ((connection (io-connection (io-base io)))
         (http (and connection (connection-data connection)))
         (watch (and http (http-watch http)))
         (end (and watch (handler-watch-end watch)))
         (began (milliseconds)))
    (if (null end)
        (funcall function)
        (unwind-protect (progn (setf (handler-watch-end watch) nil)
                               (funcall function))
          (setf (handler-watch-end watch) (+ end (- (milliseconds) began)))))))

(defun begin-limited-reply (exchange)
  "Notes that the reply of EXCHANGE begins now.  Signals DESCRIPTOR-BROKEN where the client was
answered in place of the handler."
  (let ((watch (exchange-watch exchange)))
    (when (and watch
               (member (change-state (handler-watch-state watch) :running :replying)
                       '(:answered :cut)))
      (fail-as-broken (http-io (exchange-http exchange)) +ebadf+))))

(defun handler-timed-out-p (exchange)
  "True when the limit of the handler of EXCHANGE has passed before the handler was left."
  (let ((watch (exchange-watch exchange)))
    (and watch
         (watch-late-p watch))))

(defun lift-handler-limit (exchange)
  "Ends the limit of the handler of EXCHANGE, if there is one.  NIL when it has passed, and the
handler's reply is not to be sent."
  (let ((watch (exchange-watch exchange)))
    (not (and watch
              (member (change-state (handler-watch-state watch) :running :over :replying :over)
                      '(:answered :cut))))))

;;; The sentinel

(defun take-timeout-function (watch)
  "Takes the function that a program has left for WATCH, if the handler of that is late; else NIL."
  (let ((function (and (watch-late-p watch) (handler-watch-function watch))))
    (and function
         (compare-and-set (handler-watch-function watch) function nil)
         function)))

(defmethod time-out-handler ((application http-service) connection)
  (let* ((http (connection-data connection))
         (watch (and http (http-watch http)))
         (end (and watch (handler-watch-end watch))))
    (when (and end (<= end (milliseconds)))
      (let* ((exchange (handler-watch-exchange watch))
             (engine (exchange-engine exchange))
             (head (exchange-head exchange))
             (state (change-state (handler-watch-state watch)
                      :running :answered :replying :cut)))
        (when (eq :running state)
          (let ((refusal (make-refusal :handler-timeout)))
            (note-rejected-head application http refusal head)
            (setf (exchange-status exchange) (protocol-error-status refusal))
            (handler-case (send-refusal-at-once (http-io http) refusal
                                                (eq :head (head-method head)))
              (stream-error () nil)))) ; the client is gone
        (when (member state '(:running :replying))
          (count-late engine :handler)
          (wake-from-client engine connection :output)))
      (let ((function (take-timeout-function watch)))
        ;; FUNCTION may wait, and all workers may be those that it is to free.
        (unless (or (null function)
                    (call-in-thread (exchange-engine (handler-watch-exchange watch))
                                    "handler timeout"
                                    (lambda ()
                                      (handler-case (funcall function)
                                        (serious-condition (condition)
                                          (tell application :error
                                                "What was to be done when a handler took too ~
                                                 long failed: ~A"
                                                condition))))))
          ;; No thread can be made.  At its next look the sentinel tries again.
          (compare-and-set (handler-watch-function watch) nil function))))))

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
    (when (and watch (not (eq :over (handler-watch-state watch))))
      ;; Not by SETF: the state is to be read afterwards.
      (loop for other = (handler-watch-function watch)
            until (compare-and-set (handler-watch-function watch) other function))
      (let ((function (take-timeout-function watch)))
        (when function
          (funcall function))))
    nil))
