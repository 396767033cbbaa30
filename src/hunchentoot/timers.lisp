(in-package #:hunchentoot-recycling-taskmaster)

;;;; Timers, for programs.

(defun engine-of (taskmaster)
  "The engine of TASKMASTER, or of the acceptor that a program gave in its place."
  (let ((engine (typecase taskmaster
                  (recycling-taskmaster (application-engine taskmaster))
                  (hunchentoot:acceptor (acceptor-engine taskmaster))
                  (t (hunchentoot:parameter-error
                      "TASKMASTER must be a RECYCLING-TASKMASTER, or an acceptor that has one, not ~S."
                      taskmaster)))))
    (if (or (null engine) (engine-stopped-p engine))
        (hunchentoot:parameter-error
         "~A has no threads of ours that could run a timer: HUNCHENTOOT:START the acceptor, whose ~
          taskmaster must be a RECYCLING-TASKMASTER, first." taskmaster)
        engine)))

(defun engine-at-hand ()
  "The engine that serves the current request, or whose thread this is."
  (or (and (boundp 'hunchentoot:*acceptor*)
           (acceptor-engine hunchentoot:*acceptor*))
      (current-engine)
      (hunchentoot:parameter-error
       "RUN-AFTER is called outside of requests and timers, or with another taskmaster than a ~
        RECYCLING-TASKMASTER: tell it whose threads are to run the timer, by :TASKMASTER and an acceptor ~
        that is started.")))

(defun run-after (seconds function &key taskmaster)
  "Has FUNCTION called once, without arguments, when SECONDS have passed: not before, and most often
less than a millisecond later, or a thousandth of SECONDS where that is more, but no more than four
milliseconds.  Returns at once; the result, a timer, is for CANCEL-TIMER.  May be called in any
thread.

  SECONDS     a real number, 0 or above
  FUNCTION    a function, or a symbol that names one then
  TASKMASTER  the RECYCLING-TASKMASTER whose threads call it, or a started acceptor that has one; by default
              that of the acceptor whose request is served, or of the timer whose function runs

Where connections are parked, a thread of the server calls it, one of those that serve requests, and
more are made when functions block, up to :MAX-THREAD-COUNT.  Elsewhere one thread for each started
acceptor calls all of them, one after the other: there one that takes long holds up the others.
There is no request around FUNCTION, and what it returns does not matter.  An error in it is logged
as a message, and counted in the statistic :TIMERS, see STATS.

A stop, soft or not, does not wait for timers that are pending: they are dropped, when the last
request was served, and counted; so is one that is scheduled then.  It waits for functions that run,
as for requests.

Signals HUNCHENTOOT:PARAMETER-ERROR for arguments that make no sense, for a TASKMASTER that is not
started, and without one where there is none by default."
  (with-parameter-errors
    (check-timer seconds function))
  (schedule (if taskmaster (engine-of taskmaster) (engine-at-hand))
            seconds function))

(defun cancel-timer (timer)
  "Cancels TIMER, a result of RUN-AFTER.  True when its function had not begun, and is never going
to be called; it is not held any longer.  NIL when it has begun, or has run, and when TIMER was
cancelled, or dropped by a stop, before.  May be called in any thread, and in functions of timers."
  (with-parameter-errors
    (check-is-timer timer))
  (cancel timer))
