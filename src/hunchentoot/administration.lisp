(in-package #:hunchentoot-recycling-taskmaster)

(defgeneric stats (acceptor)
  (:documentation "A plist of what ACCEPTOR did since its last start, and does, for people and
for monitors.

Of threads: :THREADS in all, of which :STANDBY wait for something to do (:SUSPENDED of them until
they are needed) and :BUSY have a connection or run a timer (:KEEP-ALIVE-WAITING of them wait for
its next request); how many were :MADE and have :ENDED; how often one was suspended, :SUSPENDS, and
needed again, :RESUMES.

Of connections: :ACCEPTED so far; :OPEN, of which :PARKED wait for a request without a thread,
:DEFERRED for a reply that comes later,
:WRITING have none while their peers take their time to take the answer, and :QUEUED wait for a
thread with a request; :REFUSED; :EXPIRED, ended because they took too long or held up others, and
:EXPIRED-BY, the same by kind, a plist: :HANDSHAKE of TLS, :FIRST-BYTE of a new connection, the rest
of a request's :HEAD, :IDLE between requests, :WRITE, an answer of which nothing more was taken,
:LINGER, the client's end after the last answer, :EVICTED, idle while others waited, and what other
kinds there are.

How long a connection that is ready for a thread waits for one, in seconds, as samples tell that
are taken a few times a second: :READY-WAIT, the latest, or the one under way if that is longer;
:READY-WAIT-SUM and :READY-WAIT-COUNT of all.  NIL, 0 and 0 where connections are not parked.

:DECISIONS, a plist: how often each decision about the number of threads was made: to :RESUME or
to :LAUNCH some; to :SUSPEND one because too many ran, or to :LIMIT them because the maximum was
lowered; to accept connections without a thread, :ACCEPT-OVERFLOW; and how the housekeeping thread
rested, :SHORT-NAP, :LONG-NAP or :IDLE-WAIT.  NIL where connections are not parked.

:TIMERS of RUN-AFTER, a plist: how many are :PENDING; and since the start, how many were :RUN, of
which some :FAILED, because of an error or the end of their thread; :CANCELLED; and :DROPPED by a
stop.

:SERVED requests; :REJECTED, those that were answered with an error for what they are, and not by a
program: no HTTP, beyond a limit, too slow; :REJECTED-BY-STATUS, the same as a plist of statuses and
numbers, in which connections that were :REFUSED do not count; :HANDSHAKES-FAILED, TLS handshakes
that failed but for those that were :EXPIRED, and :HANDSHAKES-FAILED-BY, the same by kind, a plist:
:PLAIN-HTTP in place of TLS, no common :PROTOCOL, no common :CIPHER, the server's :CERTIFICATE not
trusted by the client, the :CLIENT-CERTIFICATE not there or not trusted, no common
:APPLICATION-PROTOCOL, the client :GONE, and :OTHER; :FAILED counts errors outside of handlers;
:STALLS, how often a connection was parked because serving it made no progress, which is a defect of
ours; :UPTIME in seconds; :LOG-DROPPED lines of both logs, of all starts, that their destinations
did not take.  (Lines that it did not take at the last stop are among them, and tried again after
the next start.)  What an acceptor with another taskmaster than ours cannot tell is NIL.")
  (:method ((acceptor hunchentoot:acceptor))
    (let ((engine (acceptor-engine acceptor))
          (taskmaster (acceptor-taskmaster* acceptor)))
      (append
       (cond (engine
              (engine-statistics engine))
             ((typep taskmaster 'recycling-taskmaster)
              (no-statistics))
             (t
              (loop for name in *statistics*
                    collect name
                    collect (case name
                              (:threads (hunchentoot:taskmaster-thread-count taskmaster))
                              (:busy (requests-in-progress acceptor))))))
       (rejection-statistics acceptor)
       (handshake-statistics acceptor)
       (list :log-dropped (lines-lost acceptor))))))

(defgeneric list-connections (acceptor)
  (:documentation "A list of plists, one for each open connection of ACCEPTOR: :PEER, a string of
address and port; :STATE, which is :NEW before the first request, :ACTIVE while one is served,
:PARKED or :IDLE between two, without a thread or with it, :DEFERRED while its reply is to come
later, and :WRITING while its peer takes its time to take the answer, which needs no thread, :QUEUED
for a thread, :DRAINING after the last answer; :AGE in seconds; how many requests were :SERVED; the
number of its :WORKER, and for how many :SECONDS that has been at the request, or NIL.  Empty for an
acceptor with another taskmaster than ours, or one that is not started.")
  (:method ((acceptor hunchentoot:acceptor))
    (let ((engine (and (hunchentoot:started-p acceptor) (acceptor-engine acceptor))))
      (and engine (list-engine-connections engine)))))

(define-condition recycling-taskmaster-corrupted-error (recycling-error)
  ((acceptor :initarg :acceptor :reader corrupted-acceptor)
   (problems :initarg :problems :reader corruption-problems))
  (:report (lambda (condition stream)
             (format stream "~A cannot account for its threads and connections:~{~%  ~A~}"
                     (corrupted-acceptor condition) (corruption-problems condition))))
  (:documentation "Signalled by ABANDON-ACCEPTOR when threads outlived their destruction or
counts do not add up.  Established restarts: RETRY destroys once more, IGNORE goes on."))

(defun check-accounts (acceptor engine)
  (let ((problems (accounting-problems engine)))
    (when problems
      (error 'recycling-taskmaster-corrupted-error :acceptor acceptor :problems problems))))

(defun check-abandonable (acceptor engine)
  "Checks that it was ENGINE which started ACCEPTOR, or nobody."
  (when (and (null engine) (hunchentoot:started-p acceptor))
    (hunchentoot:parameter-error
     "ABANDON-ACCEPTOR cannot destroy the threads of ~A: only its taskmaster, ~A, which is no ~
      RECYCLING-TASKMASTER, knows them.  HUNCHENTOOT:STOP it."
     acceptor (acceptor-taskmaster* acceptor))))

(defun abandon-acceptor (acceptor)
  "The last resort when STOP does not help: destroys every thread of ACCEPTOR, whatever it
does, frees the port, and returns ACCEPTOR, which can be started again.  Requests that run
are cut off where they are; use it at the REPL, not in a program.
Signals RECYCLING-TASKMASTER-CORRUPTED-ERROR, with restarts RETRY and IGNORE, when threads
outlive that or the counts of threads and connections do not add up; STOP-FROM-WORKER in a
request handler of ACCEPTOR; HUNCHENTOOT:PARAMETER-ERROR when another taskmaster than a
RECYCLING-TASKMASTER has started ACCEPTOR, whose threads only that knows."
  (let ((engine (acceptor-engine acceptor)))
    (check-abandonable acceptor engine)
    (loop
      (when engine
        (abandon-engine engine))
      (stop-listening acceptor (and engine (engine-listener engine)))
      (settle-logs acceptor)
      (restart-case (progn
                      (when engine (check-accounts acceptor engine))
                      (return acceptor))
        (retry ()
          :report "Destroy the threads once more.")
        (ignore ()
          :report "Go on as if the counts added up."
          (return acceptor))))))
