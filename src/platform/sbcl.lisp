(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What the Lisps do differently, for SBCL on Unix: interrupts, clocks, threads, atomics, the
;;;; heap, functions of other libraries, signals, classes.  ecl.lisp and abcl.lisp have the same for
;;;; their Lisps; what these lack is in portable.lisp.

;;; Interrupts and locks

(defmacro uninterruptibly (&body body)
  "Runs BODY.  Another thread's interrupt or BT:DESTROY-THREAD waits until BODY has ended, or until
an INTERRUPTIBLY in it.  An interrupt cuts a wait in the system short, as any signal does."
  `(sb-sys:without-interrupts ,@body))

(defmacro interruptibly (&body body)
  "Runs BODY so that the thread can be interrupted or destroyed even within UNINTERRUPTIBLY.
An interrupt that already waits runs before BODY."
  ;; With ALLOW-WITH-INTERRUPTS around all of UNINTERRUPTIBLY, the thread could be destroyed
  ;; wherever it takes a lock.
  `(let ((sb-sys:*allow-with-interrupts* t))
     (sb-sys:with-interrupts ,@body)))

(defmacro with-lock-briefly ((lock) &body body)
  "Evaluates BODY, which must be short and wait for nothing, while the current thread holds LOCK.
As far as UNINTERRUPTIBLY works in this Lisp, no interrupt ends BODY half done."
  ;; BT:WITH-LOCK-HELD takes twice the time, since it enables interrupts in between.
  (let ((mutex (gensym "MUTEX")))
    `(uninterruptibly
       (let ((,mutex ,lock))
         (sb-thread:grab-mutex ,mutex)
         (unwind-protect (progn ,@body)
           (sb-thread:release-mutex ,mutex))))))

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real or NIL for no limit, for a notification of
CONDITION-VARIABLE, and takes LOCK again.  The wait may end early, so the caller checks its
condition in a loop."
  (bt:condition-wait condition-variable lock :timeout seconds))

;;; Atomics

(defmacro set-published (place value)
  "Sets PLACE, which other threads read without a lock, to VALUE, a new object.  A thread that finds
VALUE in PLACE also sees its contents.  A reader that reads PLACE once needs no barrier: every
supported processor reads an object after the pointer to it."
  ;; On x86-64, other threads see stores in order, so that the barrier costs nothing.
  (let ((fresh (gensym "VALUE")))
    `(let ((,fresh ,value))
       (sb-thread:barrier (:write))
       (setf ,place ,fresh))))

(defmacro compare-and-set (place old new)
  "Atomically sets PLACE, a slot of a structure, to NEW if it is EQ to OLD; returns true if it was.
A thread that finds NEW also sees all earlier writes of the current thread.  Later reads come after
the change."
  (let ((expected (gensym "OLD")) (replacement (gensym "NEW")))
    `(let ((,expected ,old) (,replacement ,new))
       (eq ,expected (sb-ext:compare-and-swap ,place ,expected ,replacement)))))

(defstruct (counter (:include opaque) (:constructor make-counter ()))
  "A number that many threads add to."
  (value 0 :type sb-ext:word))

(declaim (inline counter-add counter-count))
(defun counter-add (counter delta)
  "Atomically adds DELTA, an integer, to COUNTER."
  (declare (type (signed-byte 62) delta))
  (sb-ext:atomic-incf (counter-value counter) delta)
  (values))

(defun counter-count (counter)
  "The value of COUNTER, an integer."
  (the (unsigned-byte 61) (counter-value counter)))

(defun counter-add-up-to (counter delta most)
  "Atomically adds DELTA, an integer of 0 or more, to COUNTER, and returns true.  If the sum would
be more than MOST, an integer, returns NIL and does not change COUNTER, not even for a moment."
  (declare (type (unsigned-byte 60) delta) (type (integer 0) most))
  (loop
    (let* ((old (counter-count counter))
           (new (+ old delta)))
      (declare (type (unsigned-byte 61) old))
      (cond ((> new most)
             (return nil))
            ((= old (sb-ext:compare-and-swap (counter-value counter) old new))
             (return t))))))

;;; The clock

(defconstant +clock-monotonic+ #+linux 1 #+darwin 6 #-(or linux darwin) 4
  "The CLOCK_MONOTONIC of the system's <time.h>.")

(defun microseconds ()
  "The time in microseconds, a fixnum, of the clock of MILLISECONDS."
  (multiple-value-bind (seconds nanoseconds) (sb-unix::clock-gettime +clock-monotonic+)
    (declare (type (unsigned-byte 40) seconds) (type (unsigned-byte 32) nanoseconds))
    (+ (* 1000000 seconds) (floor nanoseconds 1000))))

(defun universal-milliseconds ()
  "The universal time in milliseconds, an integer."
  (multiple-value-bind (seconds microseconds) (sb-ext:get-time-of-day)
    (+ (* 1000 (+ seconds 2208988800))  ; until 1970
       (floor microseconds 1000))))

;;; Threads

(defun clear-stack ()
  "Clears the unused part of the current thread's stack.  The garbage collector would keep objects
to which old frames there still point."
  (sb-sys:scrub-control-stack)
  ;; Once a stack was exhausted, SBCL protects its end again only when it grows once more.  A thread
  ;; that ends before would leave it to another one, whose growth would end the process.  A write to
  ;; the page above the guard, where nothing is kept, makes SBCL do so.
  #+x86-64
  (setf (sb-sys:sap-ref-8 (sb-vm::current-thread-offset-sap sb-vm::thread-control-stack-start-slot)
                          (* 2 sb-c:+backend-page-bytes+))
        0))

(defun join-thread (thread seconds)
  "Waits up to SECONDS, a real or NIL for no limit, for the end of THREAD, normal or not.  True if
it has ended."
  (when (or (null seconds) (plusp seconds))
    (sb-thread:join-thread thread :default nil :timeout seconds))
  (not (bt:thread-alive-p thread)))

(defun frames-of-thread (thread seconds)
  "The names of the functions that THREAD is in, a list of symbols, strings and lists, the innermost
first; no arguments, which may be secret, and print by functions of programs.  THREAD is interrupted
for that, and goes on.  Returns :BUSY if it allows no interrupt for SECONDS, a real; :ENDED if it
has ended; and :UNKNOWN where this Lisp cannot tell."
  (let ((answered (sb-thread:make-semaphore))
        (names '()))
    (flet ((answer ()
             (uninterruptibly
               (handler-case
                   (sb-debug::map-backtrace
                    (lambda (frame)
                      (push (sb-di:debug-fun-name (sb-di:frame-debug-fun frame)) names))
                    :count 200)
                 ((or error storage-condition) ()))
               (sb-thread:signal-semaphore answered))))
      (handler-case (sb-thread:interrupt-thread thread #'answer)
        (sb-thread:interrupt-thread-error ()
          (return-from frames-of-thread :ended)))
      (cond ((sb-thread:wait-on-semaphore answered :timeout seconds) (reverse names))
            ((bt:thread-alive-p thread) :busy)
            (t :ended)))))

;;; The heap

(defun heap-octets ()
  "The maximum size of the heap of this Lisp, in octets, an integer; NIL where that is unknown."
  (sb-ext:dynamic-space-size))

(defun heap-used ()
  "The number of octets of the heap in use, an integer, with garbage that was not collected yet."
  (sb-kernel:dynamic-usage))

(defun collection-seconds ()
  "For how many seconds of processor time garbage was collected since the start of this Lisp, a
rational."
  (/ sb-ext:*gc-run-time* internal-time-units-per-second))

(defun collect-garbage ()
  "Collects all garbage.  All threads stop meanwhile."
  (sb-ext:gc :full t))

;;; Functions of other libraries, and backtraces

(defun functions-can-be-wrapped-p ()
  "True if WRAP-FUNCTION has an effect."
  t)

(defun wrap-function (name wrapper)
  "Wraps the global function NAME: from now on, its calls call WRAPPER, a function designator, with
the original function and the arguments.  A redefinition of NAME does not undo that.  A second call
for NAME has no effect."
  (unless (sb-int:encapsulated-p name 'hunchentoot-recycling-taskmaster)
    (sb-int:encapsulate name 'hunchentoot-recycling-taskmaster
                        (lambda (function &rest arguments)
                          (declare (dynamic-extent arguments))
                          (apply wrapper function arguments)))))

(defun call-for-backtrace (function length caller)
  "A backtrace of the caller, a string.  It ends before the function named CALLER, a symbol, and has
at most LENGTH elements of each list and no elements of vectors other than strings.  FUNCTION, of
another library, which returns a backtrace with all of them, is not called here."
  (declare (ignore function))
  (let* ((text (with-output-to-string (stream)
                 (let ((sb-debug:*debug-print-variable-alist*
                         (list* (cons '*print-length* length) (cons '*print-array* nil)
                                sb-debug:*debug-print-variable-alist*)))
                   (sb-debug:print-backtrace :stream stream :emergency-best-effort t))))
         (end (search (format nil "~A " caller) text)))
    (subseq text 0 (and end (position #\Newline text :end end :from-end t)))))

;;; Signals
;;;
;;; Until its handler is replaced, SIGTERM calls SB-EXT:EXIT, in any thread.  In the finalizer's,
;;; which the system chooses when the main thread blocks signals, that ends this thread alone, and
;;; every later exit waits for the lock that it keeps.

(defun exit-begun-p ()
  "True if a thread has begun to end the process, and perhaps failed."
  (sb-thread:mutex-owner sb-impl::*exit-lock*))

(defun call-on-signal (name function)
  "Has FUNCTION, a function without arguments, called for each signal NAME that the process gets
from now on: :HANGUP, :INTERRUPT or :TERMINATE; also for a :TERMINATE that came before.  The call
may happen at any moment that allows interrupts, in any thread, so FUNCTION should only leave a
note."
  (sb-sys:enable-interrupt (ecase name
                             (:hangup sb-unix:sighup)
                             (:interrupt sb-unix:sigint)
                             (:terminate sb-unix:sigterm))
                           (lambda (&rest arguments)
                             (declare (ignore arguments))
                             (funcall function)))
  (when (and (eq name :terminate) (exit-begun-p))
    (funcall function)))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  Writes what the standard streams keep, runs exit hooks
and unwinds the other threads, and waits up to SECONDS, a real, for the first, and for the ends of
these; but not where a thread has begun that, and failed.  Call it in the main thread."
  (let ((writer (ignore-errors (sb-thread:make-thread #'sb-impl::flush-standard-output-streams))))
    ;; SBCL's exit would wait without limit for the reader of a pipe that has stopped.
    (unless (or (null writer) (join-thread writer seconds))
      (setf sb-sys:*stdout* (make-broadcast-stream)
            sb-sys:*stderr* sb-sys:*stdout*
            sb-sys:*tty* (make-two-way-stream sb-sys:*stdin* sb-sys:*stdout*))))
  (sb-ext:exit :code code :timeout seconds :abort (exit-begun-p)))

(defun call-at-exit (name)
  "Registers the function NAME, a symbol, as an exit hook without arguments.  It runs after the
hooks of programs, which may stop servers and need threads for that.  Does nothing except on SBCL."
  (unless (member name sb-ext:*exit-hooks*)
    (setf sb-ext:*exit-hooks* (append sb-ext:*exit-hooks* (list name)))))

;;; Classes

(defun finalize-classes ()
  "Finalizes standard classes, and gives subclasses the layouts that they need then.  SBCL does both
amid dispatch, and a thread that just compiles how to make an instance of a subclass fails then: the
first requests of a new process would meet that."
  (labels ((pcl (name class) (uiop:symbol-call '#:sb-pcl name class))
           (visit (class)
             (dolist (subclass (sb-mop:class-direct-subclasses class))
               (ignore-errors ; a superclass may be undefined, or SBCL another one
                (unless (or (sb-mop:class-finalized-p subclass)
                            (not (eq 'standard-class (type-of subclass))))
                  (sb-mop:finalize-inheritance subclass))
                (when (pcl '#:invalid-wrapper-p (pcl '#:class-wrapper subclass))
                  (pcl '#:%force-cache-flushes subclass)))
               (visit subclass))))      ; again where one of several superclasses is new
    (visit (find-class 'standard-object))))

;;; Streams of client libraries, see portable.lisp

(defvar *closes-sockets-p* nil
  "True where a socket that cannot be connected is closed.")

(defun connect-or-close (connect socket &rest peer)
  "Calls CONNECT, SBCL's function, with SOCKET and PEER; see CALL-WITHIN."
  (unless-returned (apply connect socket peer)
    (when *closes-sockets-p*
      (sb-bsd-sockets:socket-close socket))))

(wrap-function 'sb-bsd-sockets:socket-connect 'connect-or-close)

(defun call-within (seconds function &optional (give-up (constantly nil)))
  "Calls FUNCTION, a function without arguments, and returns its values.  On SBCL, if it still waits
for a socket or a lock once SECONDS, a real, are over, calls GIVE-UP, a function of a condition, and
signals an error.  GIVE-UP prevents cleanup forms in FUNCTION from waiting again.  A socket that
FUNCTION cannot connect is closed: libraries that leave it to the garbage collector, and try again
and again, might have all descriptors before there is a collection."
  (handler-case (handler-bind ((sb-sys:deadline-timeout give-up))
                  (sb-sys:with-deadline (:seconds seconds)
                    (let ((*closes-sockets-p* t))
                      (funcall function))))
    (sb-sys:deadline-timeout ()         ; which is no error
      (error "There was no answer within ~A second~:P." seconds))))

(defun await-stream-input (stream seconds)
  "Waits up to SECONDS, a real, until STREAM, an open stream of octets on a socket, has octets to
read, or its peer has ended it; returns true then, else NIL.  With TLS, what has come may be no
octet of the peer's."
  (or (listen stream)
      (sb-sys:wait-until-fd-usable (etypecase stream
                                     (sb-sys:fd-stream (sb-sys:fd-stream-fd stream))
                                     #-hunchentoot-no-ssl
                                     (cl+ssl::ssl-stream
                                      (cl+ssl::ssl-get-fd (cl+ssl::ssl-stream-handle stream))))
                                   :input seconds nil)))
