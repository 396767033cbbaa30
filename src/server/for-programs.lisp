(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What programs meet and call, with Hunchentoot as with Clack: conditions, identifiers, timers.

;;; Conditions of replies
;;;
;;;   CLIENT-LEFT          the client gets no more octets
;;;   REPLY-ALREADY-SENT   the program itself has given or closed the reply before
;;;   CANNOT-DEFER         the reply has begun, so it cannot come later
;;;   STREAM-FULL          the client is slow, and the program does not wait for it
;;;   CONTENT-TOO-LONG     the program writes more than it has announced

(define-condition client-left (recycling-error)
  ((source :initarg :source :initform nil :reader client-left-source))
  (:report "The client gets no more octets: it has left, or the reply has ended.")
  (:documentation "Signalled to the caller that reads or writes octets of a client that has left or
is too slow, also when the server was stopped; and to the caller that uses a reply, or writes to a
WebSocket, that has ended."))

(define-condition reply-already-sent (recycling-error)
  ()
  (:report "The reply was given or closed before.")
  (:documentation "Signalled to the caller that gives a reply, Clack's response, for the second
time, or writes to one that it has closed itself, also after the client has left."))

(define-condition cannot-defer (recycling-error)
  ((reason :initarg :reason :reader cannot-defer-reason))
  (:report (lambda (condition stream)
             (format stream "This reply cannot be deferred: ~A." (cannot-defer-reason condition))))
  (:documentation "Signalled where a reply cannot be deferred, or its connection not be taken over,
because there is no request, or the reply has begun or was deferred before."))

(define-condition stream-full (recycling-error)
  ()
  (:report "More than its high-water mark is on its way to the client already.")
  (:documentation "Signalled by a write to a stream when an earlier write has returned NIL and the
client has taken nothing since."))

(define-condition content-too-long (recycling-error stream-error)
  ()
  (:report "More was written than the Content-Length of the reply has announced.")
  (:documentation "Signalled when a program writes more than it has announced.  The stream of a
handler sends the announced octets first; others send nothing of that write."))

;;; Identifiers, by which the lines about one request are found in the logs of all programs that it
;;; has passed.  A trusted proxy may tell one in X-Request-Id.  The others are made when something
;;; asks for them: random numbers.

(defvar *request-ids-lock* (bt:make-lock "request identifiers")
  "Guards *REQUEST-IDS*, and identifiers that threads may give to one request at the same time.")

(defvar *request-ids* nil
  "The random state from which identifiers come, made at each start of a server: the Lisp may be an
image that was saved, and so several processes would make the same.")

(defun new-request-id ()
  "A new identifier, a string of 26 hexadecimal digits.  The caller has the lock."
  (format nil "~(~26,'0X~)" (random (ash 1 104) *request-ids*)))

(defmacro keep-request-id (place)
  "The identifier in PLACE, which is NIL before the first call, or else a new one that is stored
there.  All threads get the same."
  `(or ,place
       (with-lock-briefly (*request-ids-lock*)
         (or ,place (setf ,place (new-request-id))))))

(defgeneric identifier-of (request)
  (:documentation "The value of REQUEST-ID for REQUEST; NIL stands for the current request.")
  (:method ((request null))
    nil))

(defun request-id (&optional request)
  "The identifier of REQUEST, a string of visible ASCII characters, by which logs in JSON name it.
REQUEST is a HUNCHENTOOT:REQUEST, by default the current one; or an environment of Clack, a plist
with :CLACK.IO.  NIL where there is no current request.  The identifier is that in the header field
X-Request-Id if one of :TRUSTED-PROXIES has sent the request, and the field has at most 200
characters, all of them visible and of ASCII.  Otherwise the first call makes one that no other
request has, of 26 hexadecimal digits.  May be called in any thread."
  (identifier-of request))

;;; Traces, by which services that call each other tell of one request of a user

(defgeneric traceparent-of (request)
  (:documentation "The value of the header field traceparent of REQUEST, a string, or NIL where it
has none; NIL stands for the current request.")
  (:method ((request null))
    nil))

(defun request-trace (&optional request)
  "The trace to which REQUEST, as for REQUEST-ID, says that it belongs, by its header field
traceparent (W3C, Trace Context, section 3.2): the identifier of the trace, a string of 32
hexadecimal digits, by which logs in JSON name it; that of the part of it that has sent REQUEST, a
string of 16; and true if its sender has recorded that.  NIL where there is no such field, or none
that is valid.  Any client may send one.  May be called in any thread."
  (parse-traceparent (traceparent-of request)))

;;; Timers

(defgeneric server-engine (server)
  (:documentation "The engine of the last start of SERVER, an acceptor or a CLACK-SERVER; NIL where
there is none.  Signals UNFIT-ARGUMENT for any other object.")
  (:method (server)
    (unfit :server " must be an acceptor or a CLACK-SERVER, not ~S" server)))

(defvar *engine-of-context* nil
  "In a thread that has no engine of its own, but the context of a request: the engine of that; else
NIL.")

(defun run-after (seconds function &key server)
  "Schedules one call of FUNCTION, without arguments, after SECONDS.  The call comes no earlier, and
usually less than a millisecond later.  Returns a timer, for CANCEL-TIMER, at once.  May be called
in any thread.

  SECONDS   a real number, 0 or above
  FUNCTION  a function, or a symbol that names one at the time of the call
  SERVER    the server whose threads call it: a started acceptor with a RECYCLING-TASKMASTER, or a
            running CLACK-SERVER; by default that of the request or timer that the current thread
            runs

Where connections are parked, a worker calls FUNCTION; more workers are made when functions block,
up to the most threads that the server may have.  Elsewhere one thread for each server calls all
functions, one after the other, so a slow function delays the others.  FUNCTION runs outside of any
request, and its value does not matter.  An error in it is logged, and counted in the statistic
:TIMERS; see STATS.

A stop, soft or not, does not wait for pending timers: it drops them when the last
request was served, and timers that are scheduled later too.  It waits for functions that run, as
for requests.

Signals UNFIT-ARGUMENT for arguments that make no sense, for a SERVER that does not run, and without
SERVER where there is no default."
  (check-arguments (list :seconds seconds :function function)
                   '((:seconds (real 0) "a real number, 0 or above")
                     (:function (or function (and symbol (not null)))
                      "a function or the name of one")))
  (let ((engine (if server
                    (server-engine server)
                    (or (current-engine) *engine-of-context*))))
    (unless (and engine (not (engine-stopped-p engine)))
      (unfit :server " must be a started acceptor, whose taskmaster is a RECYCLING-TASKMASTER, or ~
                      a running CLACK-SERVER~:[, outside of requests and timers~;, and not ~:*~A~]"
             server))
    (schedule engine seconds function)))

(defun cancel-timer (timer)
  "Cancels TIMER, a result of RUN-AFTER, and releases its function.  True when that prevents the
call; NIL when the call has begun, and when TIMER was cancelled, or dropped by a stop, before.  May
be called in any thread, also by the function of a timer.  Signals UNFIT-ARGUMENT where TIMER is not
a timer."
  (unless (typep timer 'timer)
    (unfit :timer " must be a result of RUN-AFTER, not ~S" timer))
  (cancel timer))
