(in-package #:hunchentoot-recycling-taskmaster.engine)

(defstruct (connection (:include opaque)
            (:constructor make-connection
                (socket &key (descriptor -1) (generation 0) (opened (milliseconds)) peer)))
  "One client.  Its owner alone writes the slots, save OWNERSHIP, which changes as ownership.lisp says.
The sentinel reads DEADLINE, DEADLINE-KIND and UNTOUCHED, and who makes statistics reads them all: what
these see may be of different moments."
  (socket nil)                          ; NIL until somebody wants one, see DESCRIPTOR
  (opened 0 :type fixnum :read-only t)  ; in MILLISECONDS
  (served 0 :type fixnum)               ; requests answered
  (data nil)                            ; the storey above keeps what it wants here
  ;; When the sentinel is to end the connection, in MILLISECONDS, or NIL; and what for.
  (deadline nil :type (or null fixnum))
  (deadline-kind nil :type symbol)
  ;; In the ready engine only:
  (descriptor -1 :type fixnum :read-only t)
  (generation 0 :type fixnum :read-only t) ; see table.lisp
  (peer nil :type (or null fixnum) :read-only t) ; what ACCEPT-DESCRIPTOR told of it
  (ownership 1 :type fixnum)            ; :OWNED; see ownership.lisp
  (watched-p nil)                       ; the poller knows it
  (output '() :type list)               ; parts that the socket did not take: see output.lisp
  ;; What is to become of it when these are sent; :DETACHED or :BROKEN already, when a service gave it
  ;; away.
  (outcome :park :type keyword)
  (output-watched-p nil)                ; the poller tells, too, when it takes octets again
  ;; :PARKED from when it is parked until a worker begins to look at what has come, and :LEFT when the
  ;; sentinel left that to the workers meanwhile; else NIL.  See sweeping.lisp.
  (untouched nil :type (member nil :parked :left))
  (served-when-left nil :type (or null fixnum)) ; requests, when the sentinel did so last
  (unsent nil :type (or null fixnum))   ; octets that the kernel held, when last asked: see writing.lisp
  ;; Once it was answered for the last time, and waits for its peer's end: how many octets may still
  ;; come, and are dropped.
  (linger-octets nil :type (or null fixnum)))

(defun connection-lingering-p (connection)
  "True when CONNECTION was answered for the last time, and waits for its peer's end."
  (and (connection-linger-octets connection) t))

(defparameter *deadline-kinds* '(:handshake :first-byte :head :idle :write :linger :crowd)
  "What the sentinel ends connections for: a TLS handshake, the first octet of a new connection,
the rest of a request's head, the next request, the peer's taking more of an answer, its end after
the last one took too long; or the connection idled in a crowd.  Other kinds may come, as the
storey above likes.")

(defun no-expirations ()
  "A plist of *DEADLINE-KINDS* and zeros."
  (loop for kind in *deadline-kinds* collect kind collect 0))

(defun set-deadline-in (connection kind delay now)
  "Like SET-DEADLINE, after DELAY, in milliseconds or NIL for never."
  (setf (connection-deadline-kind connection) kind
        (connection-deadline connection) (and delay (+ now delay))))

(defun set-deadline (connection kind seconds now)
  "Lets the sentinel end CONNECTION when SECONDS, a real or NIL for never, have passed since
NOW, in MILLISECONDS.  KIND, a keyword, says what is waited for."
  (set-deadline-in connection kind (as-milliseconds seconds) now))

(defun call-with-deadline (connection kind seconds thunk)
  "Calls THUNK; if it takes longer than SECONDS, a real or NIL for no limit, the sentinel ends
CONNECTION, so that whoever reads or writes it gets an end of file or an error.  KIND, a
keyword, says what was waited for."
  (set-deadline connection kind seconds (milliseconds))
  (unwind-protect (funcall thunk)
    (setf (connection-deadline connection) nil)))

(defun overdue-p (connection now)
  (let ((deadline (connection-deadline connection)))
    (and deadline (< deadline now))))

(defun given-away-outcome (connection)
  "What is to become of CONNECTION, :DETACHED or :BROKEN, though its service failed, when that had given
its socket away before; else NIL."
  (find (connection-outcome connection) '(:detached :broken)))

(defun unfinished-p (connection)
  "True when the peer of CONNECTION may not have got its answer yet."
  (or (connection-output connection) (connection-lingering-p connection)))
