(in-package #:clack.handler.recycling)

;;;; Timers for Clack applications.

(defun engine-for-timer (server)
  "The engine that runs timers of SERVER; if that is NIL, the engine of the current thread.  Signals
UNFIT-ARGUMENT."
  (let ((engine (if server
                    (and (typep server 'clack-server) (application-engine server))
                    (current-engine))))
    (when (or (null engine) (engine-stopped-p engine))
      (unfit :server ", ~S, must be a running CLACK-SERVER; threads of no server have to pass one"
             server))
    engine))

(defun run-after (seconds function &key server)
  "Schedules one call of FUNCTION, without arguments, after SECONDS.  The call comes no earlier, and
usually less than a millisecond later; for long waits, up to a thousandth of SECONDS later, but at
most four milliseconds.  Returns a timer, for CANCEL-TIMER, at once.  May be called in any thread.

  SECONDS   a real number, 0 or above
  FUNCTION  a function, or a symbol that names one at the time of the call
  SERVER    the CLACK-SERVER whose threads call it; by default the server whose request or timer
            the current thread runs

Where connections are parked, a worker calls FUNCTION; elsewhere one thread for each server calls
all functions, one after the other.  An error in FUNCTION is logged, and counted in the statistic
:TIMERS.  A stop drops pending timers.  Signals UNFIT-ARGUMENT."
  (check-timer seconds function)
  (schedule (engine-for-timer server) seconds function))

(defun cancel-timer (timer)
  "Cancels TIMER, a result of RUN-AFTER.  True when that prevents the call of its function; NIL when
the call has begun, and when TIMER was cancelled or dropped before.  Signals UNFIT-ARGUMENT."
  (check-is-timer timer)
  (cancel timer))
