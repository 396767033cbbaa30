(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What an engine asks of the layer above it.

(defclass service ()
  ()
  (:documentation "What the workers of an engine do with a connection.  An abstract class."))

(defgeneric serve (service connection resuming-p)
  (:documentation "Reads one request of SERVICE from CONNECTION, answers it, and returns what is to
become of the connection:
  :CLOSE     close it;
  :PARK      another request may follow;
  :NEXT      another request was read already, at least in part: it is served at once;
  :DEFERRED  an answer comes later: it waits without a worker for RESUME-CONNECTION, an event, or its
             deadline, and is served again then;
  :AGAIN     as :DEFERRED, but more has come than is served at a time: it is served again when what
             else is ready was;
  :DETACHED  forget it, somebody else owns its socket now;
  :BROKEN    close its descriptor at once: its peer is gone, or somebody else has another one.
What the socket did not take of the answer is in CONNECTION-QUEUE: the engine sends it, without a
worker that waits, before the outcome counts, unless that is :BROKEN or :DETACHED.  SERVICE and the
engine tell each other in CONNECTION-INPUT what they know of octets that nobody has read.
When RESUMING-P is false, a worker calls it in its thread.  Else any thread does, without
interrupts, for what a resuming thread wants (see RESUME-CONNECTION): SERVICE reads nothing then,
and must not wait; it returns NIL where nobody wants anything of it, and a worker is to look.
An error that gets out is counted and noted, and the connection closed."))

(defgeneric output-unwanted-p (service connection)
  (:documentation "True when SERVICE wants CONNECTION ended at once, although its peer has not taken
all output.  Called by its owner, so it must not wait.")
  (:method ((service service) connection)
    (declare (ignore connection))
    nil))

(defgeneric refuse (service connection)
  (:documentation "Tells the peer of CONNECTION that SERVICE has no room for it.  Called by the
worker that accepts, so it must not wait for the peer.  What it returns does not matter; the engine
closes CONNECTION, also after an error, which is counted."))

(defgeneric release (service connection)
  (:documentation "Lets go of what SERVICE keeps for CONNECTION, flushing what is to be flushed: the
engine is about to close its socket.  Returns true when its peer, which SERVICE has served for the
last time, may send more, though nothing is there: it has not said that it would not, or not all has
come of what it did say.  Called once more where it was left by a non-local exit.  An error is
counted.")
  (:method ((service service) connection)
    (declare (ignore connection))
    nil))

(defgeneric give-notice (service connection)
  (:documentation "Tells the peer of CONNECTION, which waited without a worker until its deadline,
why it is going to be closed.  True when SERVICE had something to say.  Called by the sentinel, who
owns CONNECTION meanwhile, so it must not wait: what the system does not take at once is not said.")
  (:method ((service service) connection)
    (declare (ignore connection))
    nil))

(defgeneric keep-unread-input (service engine connection)
  (:documentation "Reserves memory for what SERVICE has read of CONNECTION, of ENGINE, and not
served, which waits for its next turn, or until its peer has taken what is sent to it.  NIL when
there is none: CONNECTION is closed then.  Called by the owner of CONNECTION.")
  (:method ((service service) engine connection)
    (declare (ignore engine connection))
    t))

(defgeneric input-kept-since (service connection)
  (:documentation "Since when SERVICE has memory of the budget of all clients for what has come over
CONNECTION, which is parked, in MILLISECONDS; NIL when it has none.  Called by any thread: where
that does not own CONNECTION, the answer may be of another moment.")
  (:method ((service service) connection)
    (declare (ignore connection))
    nil))

(defgeneric release-kept-input (service connection)
  (:documentation "Has SERVICE release the memory for which INPUT-KEPT-SINCE was true, since others
want it, now or when CONNECTION is closed.  Returns :PARK when CONNECTION goes on waiting, :CLOSE
when it is to be closed after GIVE-NOTICE, or :BROKEN.  Called by any thread, which owns CONNECTION
meanwhile and must not wait for its peer."))

(defgeneric make-engine-thread (service role thunk)
  (:documentation "Makes the thread of ROLE of the engine of SERVICE, in which THUNK, a function
without arguments, is called, and returns it, or anything else where it is not known.  ROLE is
  an integer  the number of a worker;
  :SENTINEL   the thread that lives as long as the engine runs, of which there is a new one if it dies;
  :TIMERS     the thread that sees to the timers of the engine, where that needs one.
Signals an error when no thread can be made: it is tried again.")
  (:method ((service service) role thunk)
    (bt:make-thread thunk :name (format nil "~:[~(~A~)~;worker-~D~]" (integerp role) role))))

(defgeneric call-as-worker (service thunk)
  (:documentation "Calls THUNK, a function without arguments, which is the whole life of a worker of
SERVICE, in its thread.  What it returns does not matter.")
  (:method ((service service) thunk)
    (funcall thunk)))

(defgeneric note (service level control &rest arguments)
  (:documentation "Tells the people who run SERVICE what happened: LEVEL is :INFO, :WARNING
or :ERROR; CONTROL, a string, and ARGUMENTS are for FORMAT.  Called in any thread.  An error is
counted."))

;;;; And what it may ask of an engine for a connection that has waited since SERVE returned
;;;; :DEFERRED.

(defgeneric resume-connection (engine connection)
  (:documentation "Has CONNECTION of ENGINE, which may be closed by now, served for the sake of a
resuming thread, who has something for it: see SERVE-RESUMPTION-OF.  By the current thread, which
may be any, if nobody owns CONNECTION; else by its owner, soon.  Does not wait, and does not signal;
what it returns does not matter.")
  (:method (engine connection)
    "Nothing: where a worker keeps each connection, the service lets that wait."
    (declare (ignore engine connection))
    nil))

(defgeneric serve-at (engine connection time)
  (:documentation "Has CONNECTION of ENGINE, which the caller owns, and for which SERVE returns
:DEFERRED next, served at TIME, in MILLISECONDS, or a little later; NIL for never.  What it returns
does not matter.")
  (:method (engine connection time)
    (declare (ignore engine))
    (set-deadline-at connection :deferred time)))
