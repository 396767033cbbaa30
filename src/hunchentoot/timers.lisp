(in-package #:hunchentoot-recycling-taskmaster)

;;;; Timers for programs.

(defun engine-of (server)
  "The engine of SERVER, an acceptor.  Signals HUNCHENTOOT:PARAMETER-ERROR."
  (let ((engine (if (typep server 'hunchentoot:acceptor)
                    (acceptor-engine server)
                    (hunchentoot:parameter-error "SERVER must be an acceptor, not ~S." server))))
    (if (or (null engine) (engine-stopped-p engine))
        (hunchentoot:parameter-error
         "~A has no threads of ours that could run a timer: HUNCHENTOOT:START it first; its ~
          taskmaster must be a RECYCLING-TASKMASTER." server)
        engine)))

(defun engine-at-hand ()
  "The engine that serves the current request, or that owns the current thread."
  (or (and (boundp 'hunchentoot:*acceptor*)
           (acceptor-engine hunchentoot:*acceptor*))
      (current-engine)
      (hunchentoot:parameter-error
       "RUN-AFTER is called outside of requests and timers, or with another taskmaster than a ~
        RECYCLING-TASKMASTER: pass it a started acceptor as :SERVER, whose threads run the timer.")))

(defun run-after (seconds function &key server)
  "Schedules one call of FUNCTION, without arguments, after SECONDS.  The call comes no earlier, and
usually less than a millisecond later; for long waits, up to a thousandth of SECONDS later, but at
most four milliseconds.  Returns a timer, for CANCEL-TIMER, at once.  May be called in any thread.

  SECONDS   a real number, 0 or above
  FUNCTION  a function, or a symbol that names one at the time of the call
  SERVER    a started acceptor whose threads call it, with a RECYCLING-TASKMASTER; by default that
            of the request or timer that the current thread runs

Where connections are parked, a worker calls FUNCTION; more workers are made when functions block,
up to :MAX-THREAD-COUNT.  Elsewhere one thread for each started acceptor calls all functions, one
after the other, so a slow function delays the others.  FUNCTION runs outside of any request, and
its value does not matter.  An error in it is logged, and counted in the statistic :TIMERS; see
STATS.

A stop, soft or not, does not wait for pending timers: it drops and counts them when the last
request was served, and timers that are scheduled later too.  It waits for functions that run, as
for requests.

Signals HUNCHENTOOT:PARAMETER-ERROR for arguments that make no sense, for a SERVER that is not
started, and without SERVER where there is no default."
  (with-parameter-errors
    (check-timer seconds function))
  (schedule (if server (engine-of server) (engine-at-hand))
            seconds function))

(defun cancel-timer (timer)
  "Cancels TIMER, a result of RUN-AFTER, and releases its function.  True when that prevents the
call; NIL when the call has begun, and when TIMER was cancelled, or dropped by a stop, before.  May
be called in any thread, also by the function of a timer.  Signals HUNCHENTOOT:PARAMETER-ERROR where
TIMER is not a timer."
  (with-parameter-errors
    (check-is-timer timer))
  (cancel timer))
