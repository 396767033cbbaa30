(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The questions of an engine to the layer above it.

(defclass service ()
  ()
  (:documentation "The part of a program that serves the connections of an engine.  An abstract
class."))

(defgeneric serve (service connection)
  (:documentation "Reads one request of SERVICE from CONNECTION, answers it, and returns the
outcome:
  :CLOSE     close the connection;
  :PARK      another request may follow;
  :NEXT      another request was read already, at least in part: serve it at once;
  :DEFERRED  an answer comes later: the connection waits without a worker for RESUME-CONNECTION,
             an event, or the deadline that SERVICE has set with SET-DEADLINE-AT, and is served
             again then;
  :AGAIN     as :DEFERRED, but it has more input than is served at a time: it is served again after
             other events;
  :DETACHED  forget it: its socket belongs to another part of the program now;
  :BROKEN    close its descriptor at once: its peer is gone, or the socket has another descriptor.
CONNECTION-QUEUE holds the part of the answer that the socket did not take.  The engine sends it,
while no worker waits, before it acts on the outcome, unless that is :BROKEN or :DETACHED.  Through
CONNECTION-INPUT, SERVICE and the engine share what they know of unread octets.
A worker makes the call.  An error is counted and logged, and the connection closed."))

(defgeneric release (service connection)
  (:documentation "Releases everything that SERVICE keeps for CONNECTION, and flushes its output:
the engine is about to close the socket.  Returns true if the peer may send more, though no input
is there: it has not said that it would not, or part of an announced content is missing.  The
engine calls it once more after a non-local exit.  An error is counted."))

(defgeneric time-out-handler (service connection)
  (:documentation "Tells SERVICE that the deadline of CONNECTION has passed whose kind is :HANDLER,
while a worker serves that.  The sentinel calls it, at each look until the worker sets another
deadline, and does not own CONNECTION: SERVICE must see to it that the worker does not leave
CONNECTION meanwhile.  It must not wait.  Its value does not matter."))

(defgeneric give-notice (service connection)
  (:documentation "Tells the peer of CONNECTION why it is going to be closed: for the reason of
CONNECTION-DEADLINE-KIND.  With one of *REFUSAL-REASONS*, it was just accepted, and is refused;
otherwise it waited without a worker.  True if SERVICE had something to say.  The owner of
CONNECTION, which is a worker that accepts or the sentinel, calls it, so it must not wait: octets
that the system does not take at once are lost.  An error is counted."))

(defgeneric address-limit (service connection)
  (:documentation "How many connections of SERVICE, an integer above 0, may be open at a time from
the address of CONNECTION, which was just accepted; and the integer that stands for that address.
NIL for no limit.  The owner of CONNECTION calls it, so it must not wait.  An error is counted, and
means no limit."))

(defgeneric keep-unread-input (service engine connection)
  (:documentation "Reserves memory for the unserved input that SERVICE has read of CONNECTION, of
ENGINE, while CONNECTION waits for its next turn, or until its peer has taken its output.  NIL if
there is no memory: CONNECTION is closed then.  The owner of CONNECTION calls it."))

(defgeneric input-kept-p (service connection)
  (:documentation "True if SERVICE has memory of the budget of all clients for input of CONNECTION,
which is parked.  Any thread calls it; without owning CONNECTION it may get the answer of another
moment."))

(defgeneric make-engine-thread (service role thunk)
  (:documentation "Makes the thread of ROLE of the engine of SERVICE, which calls THUNK, a
function without arguments.  Returns the thread, or anything else if it is not known.  ROLE is
  an integer  the number of a worker;
  :SENTINEL   the thread that lives as long as the engine runs.
Signals an error if no thread can be made; the engine tries again later."))

(defgeneric call-as-worker (service thunk)
  (:documentation "Calls THUNK, a function without arguments, which is the whole life of a worker
of SERVICE, in its thread.  Its value does not matter."))

(defgeneric note (service level control &rest arguments)
  (:documentation "Reports an event to the people that run SERVICE.  LEVEL is :INFO, :WARNING or
:ERROR; CONTROL, a string, and ARGUMENTS are for FORMAT.  Any thread calls it.  An error is
counted."))
