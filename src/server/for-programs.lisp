(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What programs meet and call, with Hunchentoot as with Clack: conditions, timers, statistics.

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
  (unless (fits-p seconds '(real 0))
    (unfit :seconds " must be a real number, 0 or above, not ~S" seconds))
  (unless (typep function '(or function (and symbol (not null))))
    (unfit :function " must be a function or the name of one, not ~S" function))
  (let ((engine (if server
                    (server-engine server)
                    (or (current-engine) *engine-of-context*))))
    (cond ((and engine (not (engine-stopped-p engine)))
           (schedule engine seconds function))
          (server
           (unfit :server ", ~A, has no threads of ours that could run a timer: START it first"
                  server))
          (t
           (unfit :server " must be passed outside of requests and timers: a started acceptor, ~
                           whose taskmaster is a RECYCLING-TASKMASTER, or a running ~
                           CLACK-SERVER")))))

(defun cancel-timer (timer)
  "Cancels TIMER, a result of RUN-AFTER, and releases its function.  True when that prevents the
call; NIL when the call has begun, and when TIMER was cancelled, or dropped by a stop, before.  May
be called in any thread, also by the function of a timer.  Signals UNFIT-ARGUMENT where TIMER is not
a timer."
  (unless (typep timer 'timer)
    (unfit :timer " must be a result of RUN-AFTER, not ~S" timer))
  (cancel timer))

;;; For people who look after a server

(defgeneric stats (server)
  (:documentation "The statistics of SERVER, an acceptor or a CLACK-SERVER: a plist for people and
for monitors.  Counts begin at the last start.  A CLACK-SERVER does not count rejected requests and
failed handshakes.

Threads:
  :THREADS             how many there are
  :STANDBY             those that wait for something to do
  :SUSPENDED           those on standby that sleep until they are needed
  :BUSY                those that have a connection or run a timer
  :KEEP-ALIVE-WAITING  busy ones that wait for the next request of their connection
  :MADE, :ENDED        how many were made, and have ended

Connections:
  :ACCEPTED            how many were accepted
  :OPEN                how many are open
  :PARKED              open ones that wait for a request without a thread
  :DEFERRED            open ones that wait for a reply that comes later
  :WRITING             open ones without a thread whose clients are slow to take the reply
  :QUEUED              open ones that have a request and wait for a thread
  :REFUSED             those that were refused
  :REFUSED-BY          the same by reason, a plist: :THREADS, all of which served; :ADDRESS, which
                       had as many connections as it may
  :EXPIRED             those that were ended because they took too long or held up others
  :EXPIRED-BY          the same by kind, a plist: :HANDSHAKE of TLS, :FIRST-BYTE of a new one,
                       rest of a :HEAD, :IDLE between requests, :WRITE, of a reply that the client
                       did not take, :LINGER, of the client's close after the last reply, :EVICTED,
                       idle while others waited, and further kinds

  :TIMERS              timers of RUN-AFTER, a plist: how many are :PENDING, and how many were :RUN,
                       and have :FAILED by an error or the end of their thread

Requests:
  :SERVED              how many were served
  :DURATIONS           how long they took, from the whole head until the system had the whole reply,
                       or had taken what it could at once: a histogram.  It is a plist of their
                       :COUNT, their :SUM in seconds, and :BUCKETS, a list in which each bound, in
                       seconds, is followed by the number of those that took no longer
  :IN-PROGRESS         those that a thread serves, with that for this page, and those whose reply
                       comes later, with WebSockets
  :REPLIES             the same as :SERVED by method and class of status, a plist of plists: :GET
                       and others, :OTHER; and in it :1XX to :5XX, and :NONE where no reply began
  :ERRORS              those answered with 500 and above
  :OCTETS-SENT         how many octets the system has taken of replies and messages, before TLS
  :REJECTED            those that the server itself answered with an error: no HTTP, beyond a limit,
                       or too slow.  Connections that were :REFUSED do not count
  :REJECTED-BY-STATUS  the same, a plist of statuses and numbers
  :FAILED              errors outside of handlers

  :HANDSHAKES-FAILED   TLS handshakes that failed, without those that :EXPIRED
  :HANDSHAKES-FAILED-BY
                       the same by kind, a plist: :PLAIN-HTTP in place of TLS, no common :PROTOCOL,
                       no common :CIPHER, the server's :CERTIFICATE not trusted by the client, the
                       :CLIENT-CERTIFICATE missing or not trusted, no common :APPLICATION-PROTOCOL,
                       the client :GONE, and :OTHER
  :MEMORY              how many octets are reserved for what clients make this process keep, of all
                       its servers: unfinished requests, content, messages, replies not taken
  :MEMORY-LIMIT        how many may be; NIL where the size of the heap is not known
  :UPTIME              seconds since the start
  :LOG-DROPPED         lines of both logs, over all starts, that their destinations did not take.
                       Lines that were pending at the last stop count until the next start writes
                       them"))

(defgeneric list-connections (server)
  (:documentation "A list of plists, one for each open connection of SERVER, an acceptor or a
CLACK-SERVER.  It is empty where SERVER is not started.

  :PEER     the client's address and port, a string
  :STATE    :NEW before the first request; :ACTIVE while one is served; between two, :PARKED without
            a thread or :IDLE with one; :DEFERRED while the reply is to come later; :WRITING
            while the client is slow to take the reply; :QUEUED while a request waits for a thread;
            :DRAINING after the last reply
  :AGE      seconds since it was accepted
  :SERVED   how many requests were served
  :WORKER   the number of its thread, or NIL
  :SECONDS  for how many seconds that thread has been serving the request, or NIL"))
