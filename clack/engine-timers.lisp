(in-package #:clack.handler.recycling)

;;;; Timers, for Clack applications.

(defun engine-for-timer (server)
  "The engine that runs timers of SERVER, or, where that is NIL, of the server that the current
thread belongs to."
  (let ((engine (if server
                    (and (typep server 'clack-server) (application-engine server))
                    (current-engine))))
    (when (or (null engine) (engine-stopped-p engine))
      (unfit :server ", ~S, must be a CLACK-SERVER that runs; in a thread that is none of a server's it must be given"
             server))
    engine))

(defun run-after (seconds function &key server)
  "Has FUNCTION called once, without arguments, when SECONDS have passed: not before, and most often
less than a millisecond later, or a thousandth of SECONDS where that is more, but no more than four
milliseconds.  Returns at once; the result, a timer, is for CANCEL-TIMER.  May be called in any
thread.

  SECONDS   a real number, 0 or above
  FUNCTION  a function, or a symbol that names one then
  SERVER    the CLACK-SERVER whose threads call it; by default the one whose request is served in the current
            thread, or whose timer runs there

Where connections are parked, one of the threads that serve requests calls it; elsewhere one thread
for each server calls all of them, one after the other.  An error in it is told, and counted in the
statistic :TIMERS.  Timers that are pending when the server stops are dropped.  Signals
UNFIT-ARGUMENT."
  (check-timer seconds function)
  (schedule (engine-for-timer server) seconds function))

(defun cancel-timer (timer)
  "Cancels TIMER, a result of RUN-AFTER.  True when its function is never going to be called; NIL
when it has begun or run, and when TIMER was cancelled or dropped before.  Signals UNFIT-ARGUMENT."
  (check-is-timer timer)
  (cancel timer))
