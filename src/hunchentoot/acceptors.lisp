(in-package #:hunchentoot-recycling-taskmaster)

(defclass parallel-acceptor (listening-acceptor)
  ((limits
    :initform (make-limits)
    :accessor acceptor-limits
    :documentation "How much one request may ask of us; see limits.lisp.")
   (engine
    :initform nil
    :documentation "The engine of the last start; NIL where another taskmaster than ours started.
It is kept here, since the taskmaster may be replaced while it runs.")
   (successor
    :initform nil
    :documentation "The taskmaster for the next start; see changing.lisp.")
   (starter
    :initform nil
    :documentation "The thread that is in START, or NIL.")
   (start-lock
    :initform (bt:make-lock "start")
    :documentation "Guards STARTER.")
   (start-ended
    :initform (bt:make-condition-variable)
    :documentation "Notified when STARTER is done.")
   (access-log-format
    :initarg :access-log-format
    :reader access-log-format
    :documentation "How the access log tells of a request: :COMBINED, :JSON or a function.")
   (journal
    :initform nil
    :accessor acceptor-journal
    :documentation "What writes the access log, or wrote it last; see journals.lisp.")
   (message-journal
    :initform nil
    :accessor acceptor-message-journal
    :documentation "What writes the message log, or wrote it last; often the same.")
   (journal-lock
    :initform (bt:make-lock "logs")
    :reader journal-lock
    :documentation "Held while a journal is replaced.")
   (lines-lost
    :initform 0
    :accessor acceptor-lines-lost
    :documentation "How many lines were lost by journals that have a successor.")
   (departures
    :initform (make-log-throttle)
    :reader acceptor-departures
    :documentation "Clients that have left, of which no message has told.")
   (throttle
    :initform (make-throttle)
    :reader acceptor-throttle
    :documentation "What was told lately of what clients cause.")
   (user-methods
    :initform nil
    :accessor acceptor-user-methods
    :documentation "What methods the program has beside ours; see user-methods.lisp."))
  (:default-initargs
   :access-log-format :combined
   :taskmaster (make-instance 'recycling-taskmaster))
  (:documentation "HUNCHENTOOT:ACCEPTOR on recycled threads: takes the same initargs, runs the
same handlers.  Its default :TASKMASTER is a RECYCLING-TASKMASTER, whose :PARKING it takes
too.  Where it listens, :ADDRESS and :PORT say as with Hunchentoot, or on SBCL under Linux

  :LISTEN-PATH  a string or pathname: on a Unix-domain socket with that file, which is made at
                start, in the place of one on which nobody answers, and removed at stop
  :LISTEN-MODE  the mode of that file, an integer such as #o660; NIL, the default: as the
                process's umask has it
  :LISTEN-FD    a descriptor number: on a socket, TCP or Unix-domain, that listens already and
                was inherited; :SYSTEMD: on the first that the service manager handed over, see
                sd_listen_fds(3).  A duplicate is used; stopping closes that, and leaves the
                socket open and listening, for others and for the next start.  Not to be mixed with
                classes that mean something else by an initarg of this name
  :REUSE-PORT   true: on a port that other processes of the same user may have too, if they want
                to; the system spreads connections over them (SO_REUSEPORT)

  :DEFER-ACCEPT after how many seconds, an integer from 1 to 255, about, a connection on which
                nothing has come yet is accepted; default 1.  Until then only the kernel knows it
                (TCP_DEFER_ACCEPT, see tcp(7)), so that most connections come together with their
                first request.  NIL: each is accepted at once.  Means nothing for :LISTEN-PATH
                and :LISTEN-FD, and elsewhere than on SBCL under Linux

While it is started, HUNCHENTOOT:ACCEPTOR-ADDRESS and HUNCHENTOOT:ACCEPTOR-PORT tell where an
inherited socket listens; of a Unix-domain socket, \"unix:\" before its path and 0.  For requests
over one, HUNCHENTOOT:REMOTE-ADDR is \"unix:\" and HUNCHENTOOT:REMOTE-PORT 0.

How it keeps its access log:

  :ACCESS-LOG-FORMAT  how the access log tells of a request: :COMBINED, the default, as
                      Hunchentoot does; :JSON, an object in a line (RFC 8259); or a function of
                      one argument, a plist of what :JSON tells, that returns a string, or NIL
                      for no line.  Requests that were rejected before there was an object for
                      them, and connections that were refused, have a line too; what is not known
                      of them is a dash, or NIL

How much one request may have, in octets save the count of header lines; more is answered with the
status in parentheses, and the connection closed:

  :MAX-BODY-OCTETS             content, or NIL, the default, for no limit (413)
  :MAX-REQUEST-LINE-OCTETS     the request line; default 16 KiB (414; 501 where the method is longer)
  :MAX-HEADER-OCTETS           the whole head: request line and header lines; default 32 KiB
                               (431)
  :MAX-HEADER-COUNT            the number of header lines; default 128 (431)
  :MAX-CHUNK-EXTENSION-OCTETS  chunk extensions of one body; default 16 KiB (413)
  :MAX-TRAILER-OCTETS          trailer lines of one body; default 8 KiB (431)
  :MAX-RAW-OCTETS              content that HUNCHENTOOT:RAW-POST-DATA returns whole; default 64
                               MiB, NIL for no limit (413)
  :MAX-FORM-OCTETS             a form, without the files in it; default 2 MiB, NIL for no limit
                               (413)
  :MAX-FIELD-COUNT             the number of fields of a form, files among them; default 10,000,
                               NIL for no limit (413)

How content comes:

  :MAX-EARLY-OCTETS   where connections are parked, content is received before its request is
                      served, in memory or, where many wait, a temporary file, so that a slow client
                      holds no thread: so many octets of it; default 1 MiB; 0: none.  Of content
                      that is announced to be larger, 64 KiB at most.  See CONTENT-RECEIVED-EARLY-P
  :MIN-CONTENT-RATE   how many octets a second a client has to send on average; default 1024, NIL
                      for no limit (408).  Where a thread reads content, only the time counts in
                      which it waits; not where a handler has asked for a stream, nor elsewhere than
                      on SBCL under Linux
  :CONTENT-GRACE      after how many seconds that rate counts; default 10
  :CONTENT-TIMEOUT    how many seconds all content that is received early may take; default 600,
                      NIL for no limit (408)

What the content of all requests together takes in memory is limited too, on SBCL under Linux, to
a quarter of the heap; who would take more is answered 503, or 413 when it could never have that.

These limits hold over TLS, and where connections are not parked, too (:MAX-RAW-OCTETS only on SBCL
under Linux); under another taskmaster than ours none does.  REINITIALIZE-INSTANCE takes these too;
requests that have begun keep the old ones.

:LISTEN-BACKLOG, how many connections may wait in the kernel, is 1024 by default; the kernel cuts
it to its own maximum, on Linux net.core.somaxconn.

Signals HUNCHENTOOT:PARAMETER-ERROR when an argument, of Hunchentoot's too, makes no sense, or not
with another; START does so when :ACCESS-LOG-FORMAT names no function then."))

(defclass parallel-easy-acceptor (parallel-acceptor hunchentoot:easy-acceptor)
  ()
  (:documentation "HUNCHENTOOT:EASY-ACCEPTOR on recycled threads: takes the same initargs, runs
the same handlers.  Its default :TASKMASTER is a RECYCLING-TASKMASTER."))

(defmethod parks-connections-p ((acceptor parallel-acceptor))
  t)

(defmethod connection-kind ((acceptor parallel-acceptor))
  (user-methods-kind (user-methods-of acceptor)))

(defmethod hunchentoot:accept-connections ((acceptor parallel-acceptor))
  "In a worker's thread, does its work; otherwise what Hunchentoot does."
  (in-place-of-hunchentoots ((call-next-method)
                             (primaries-after-ours #'hunchentoot:accept-connections (list acceptor))
                             #'hunchentoot:accept-connections (acceptor))
    (if *work*
        (funcall *work*)
        (hunchentoots))))

(defmethod hunchentoot:acceptor-persistent-connections-p :around ((acceptor parallel-acceptor))
  "False for the request at hand when its connection should not be kept: asked by Hunchentoot
when it writes the head of a reply, which then says so."
  (and (call-next-method)
       (not (and *exchange*
                 (or (not (persists-p (exchange-protocol *exchange*)))
                     (winding-down-p (exchange-engine *exchange*)))))))

;;; A stock taskmaster is taken, since an acceptor must do with any, but it is most often there for
;;; its numbers.

(defun stock-p (taskmaster)
  "True when TASKMASTER is one of Hunchentoot's own."
  (member (class-name (class-of taskmaster))
          '(hunchentoot:one-thread-per-connection-taskmaster
            hunchentoot:single-threaded-taskmaster)))

(defun numbers-of (taskmaster)
  "The arguments, a plist, that give a RECYCLING-TASKMASTER the numbers of TASKMASTER, one of
Hunchentoot's."
  (if (typep taskmaster 'hunchentoot:multi-threaded-taskmaster)
      (loop for name in '(:max-thread-count :max-accept-count)
            for value in (list (hunchentoot:taskmaster-max-thread-count taskmaster)
                               (hunchentoot:taskmaster-max-accept-count taskmaster))
            when value append (list name value))
      '(:max-thread-count 1)))

(defun warn-of-stock-taskmaster (acceptor taskmaster)
  "Warns that with TASKMASTER, one of Hunchentoot's, ACCEPTOR works as Hunchentoot's do."
  (warn "With ~A, which is Hunchentoot's own, ~A has no recycled threads, no parked connections ~
         and no statistics.  For these, make it with :taskmaster (make-instance ~
         'hunchentoot-recycling-taskmaster:recycling-taskmaster~{ ~(~S~) ~D~})."
        taskmaster acceptor (numbers-of taskmaster)))

;;; :PARKING, which is the taskmaster's, is taken by the acceptor too: to change it should not
;;; need a taskmaster.

(defmethod initialize-instance :after
    ((acceptor parallel-acceptor) &key taskmaster (parking nil parking-supplied-p))
  (when (and taskmaster (stock-p taskmaster))
    (warn-of-stock-taskmaster acceptor taskmaster))
  (when parking-supplied-p
    (let ((taskmaster (acceptor-taskmaster* acceptor)))
      (unless (typep taskmaster 'recycling-taskmaster)
        (hunchentoot:parameter-error "PARKING needs a RECYCLING-TASKMASTER, not ~A." taskmaster))
      (setf (taskmaster-parking-p taskmaster) parking))))

;;; Start and stop

(defgeneric acceptor-engine (acceptor)
  (:documentation "The engine of the last start of ACCEPTOR, or NIL.")
  (:method ((acceptor hunchentoot:acceptor))
    (let ((taskmaster (acceptor-taskmaster* acceptor)))
      (and (typep taskmaster 'recycling-taskmaster)
           (application-engine taskmaster)
           (eq acceptor (hunchentoot:taskmaster-acceptor taskmaster))
           (application-engine taskmaster))))
  (:method ((acceptor parallel-acceptor))
    (slot-value acceptor 'engine)))

(defun note-engine (acceptor engine)
  "Remembers that ENGINE, or NIL for another taskmaster's way, is that of the last start of
ACCEPTOR."
  (when (typep acceptor 'parallel-acceptor)
    (setf (slot-value acceptor 'engine) engine)))

(defun place-of (acceptor)
  "Where ACCEPTOR listens, a string for people."
  (format nil "~A:~A" (or (hunchentoot:acceptor-address acceptor) "*")
          (hunchentoot:acceptor-port acceptor)))

(defun stop-listening (acceptor listener)
  "Frees the port of ACCEPTOR, if that listens on LISTENER, or NIL, still: otherwise somebody else
has done so, and it may have been started since."
  (uninterruptibly                      ; a listener that was taken is nobody else's to close
    (when (and (take-listener acceptor listener) listener)
      (close-listener listener))))

;;; One thread at a time starts an acceptor: another one would take what this one has opened for
;;; what it has to clear away.

(defun starting-p (acceptor)
  "True while a thread is in START of ACCEPTOR.  Under the lock."
  (let ((starter (slot-value acceptor 'starter)))
    (and starter (bt:thread-alive-p starter)))) ; on some Lisps threads die without unwinding

(defun begin-start (acceptor)
  "Makes the current thread the one that starts ACCEPTOR; NIL where another one does."
  (with-slots (starter start-lock) acceptor
    (with-lock-briefly (start-lock)
      (unless (starting-p acceptor)
        (setf starter (bt:current-thread))))))

(defun end-start (acceptor)
  "Lets other threads start ACCEPTOR."
  (with-slots (starter start-lock start-ended) acceptor
    (with-lock-briefly (start-lock)
      (setf starter nil)
      (bt:condition-notify start-ended))))

(defun await-engine (acceptor)
  "Waits while another thread starts ACCEPTOR and has no engine for it yet, which takes it a moment.
Returns the engine of ACCEPTOR, or NIL."
  (with-slots (starter start-lock start-ended) acceptor
    (wait-until (lambda ()
                  (or (acceptor-engine acceptor)
                      (not (starting-p acceptor))
                      (eq starter (bt:current-thread))))
                start-ended start-lock 5 1/100))
  (acceptor-engine acceptor))

(defmethod hunchentoot:start ((acceptor parallel-acceptor))
  "Returns ACCEPTOR once it accepts connections.  When it cannot, signals why and leaves it
stopped.  Signals HUNCHENTOOT:PARAMETER-ERROR while another thread starts it."
  (with-acquired (starter-p (begin-start acceptor) (when starter-p (end-start acceptor)))
    (unless starter-p
      (hunchentoot:parameter-error "~A is being started by another thread." acceptor))
    (let ((was-listening (hunchentoot:started-p acceptor)))
      (unless was-listening
        (check-access-log-function acceptor)
        (take-successor acceptor)
        (note-engine acceptor nil)
        ;; Where redefinitions cannot be watched, they count from here on.
        (setf (acceptor-user-methods acceptor) nil))
      (unless-returned (multiple-value-prog1 (call-next-method)
                         (settle-logs acceptor))
        (unless was-listening
          (let ((engine (acceptor-engine acceptor)))
            (when engine                ; it may have started before
              (stop-engine engine :timeout 0)))
          (stop-listening acceptor (acceptor-listener acceptor))
          (settle-logs acceptor))))))

(defmethod hunchentoot:stop ((acceptor parallel-acceptor) &key soft (timeout (if soft nil 1)))
  "Stops ACCEPTOR and frees its port.  When SOFT, waits for every request that runs, otherwise
only for those that end soon; in either case up to TIMEOUT seconds, a real, or NIL for no
limit.  What has no request ends at once; for that, too, and for the last lines of the logs,
it waits when it must, up to five seconds each.  Returns ACCEPTOR and a list of plists, one for
each thread that had to be left to finish its request by itself and, when SOFT, one for each
connection without a thread, as LIST-CONNECTIONS has them, whose client was left without a reply or
without all of it.  Does nothing when ACCEPTOR is not started.
Signals STOP-FROM-WORKER in a request handler of ACCEPTOR."
  (in-place-of-hunchentoots ((call-next-method)
                             (primaries-after-ours #'hunchentoot:stop (list acceptor))
                             #'hunchentoot:stop (acceptor) :soft soft :timeout timeout)
    (let ((engine (await-engine acceptor))) ; by its end there may be another
      (cond ((not (hunchentoot:started-p acceptor))
             (values acceptor '()))
            ((not engine)               ; some other taskmaster started it
             (multiple-value-prog1 (hunchentoots)
               (settle-logs acceptor)))
            (t
             (let ((left (stop-engine engine :soft soft :timeout timeout)))
               (stop-listening acceptor (engine-listener engine))
               (settle-logs acceptor)
               (values acceptor left)))))))
