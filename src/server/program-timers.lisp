(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Timers of programs, on Hunchentoot's or Clack's side.

(defgeneric server-engine (server)
  (:documentation "The engine of the last start of SERVER, an acceptor of Hunchentoot's or a
CLACK-SERVER; NIL where there is none.  Signals UNFIT-ARGUMENT for any other object.")
  (:method (server)
    (unfit :server " must be an acceptor or a CLACK-SERVER, not ~S" server)))

(defvar *engine-of-context* nil
  "In a thread that has no engine of its own, but the context of a request: the engine of that; else
NIL.")

(defun engine-for-timer (server)
  "The engine that runs timers of SERVER; if that is NIL, of the request or timer that the current
thread runs.  Signals UNFIT-ARGUMENT."
  (let ((engine (if server
                    (server-engine server)
                    (or (current-engine) *engine-of-context*))))
    (cond ((and engine (not (engine-stopped-p engine)))
           engine)
          (server
           (unfit :server ", ~A, has no threads of ours that could run a timer: START it first"
                  server))
          (t
           (unfit :server " must be passed outside of requests and timers: a started acceptor, ~
                           whose taskmaster is a RECYCLING-TASKMASTER, or a running ~
                           CLACK-SERVER")))))

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

A stop, soft or not, does not wait for pending timers: it drops and counts them when the last
request was served, and timers that are scheduled later too.  It waits for functions that run, as
for requests.

Signals UNFIT-ARGUMENT for arguments that make no sense, for a SERVER that does not run, and without
SERVER where there is no default."
  (unless (fits-p seconds '(real 0))
    (unfit :seconds " must be a real number, 0 or above, not ~S" seconds))
  (unless (typep function '(or function (and symbol (not null))))
    (unfit :function " must be a function or the name of one, not ~S" function))
  (schedule (engine-for-timer server) seconds function))

(defun cancel-timer (timer)
  "Cancels TIMER, a result of RUN-AFTER, and releases its function.  True when that prevents the
call; NIL when the call has begun, and when TIMER was cancelled, or dropped by a stop, before.  May
be called in any thread, also by the function of a timer.  Signals UNFIT-ARGUMENT where TIMER is not
a timer."
  (unless (typep timer 'timer)
    (unfit :timer " must be a result of RUN-AFTER, not ~S" timer))
  (cancel timer))
