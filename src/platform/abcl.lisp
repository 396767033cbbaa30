(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What the Lisps do differently, for ABCL: the threads, sockets and clock of the Java virtual
;;;; machine.  The sockets of usocket have channels.

(defmacro jcall-method ((class method &rest argument-classes) object &rest arguments)
  "Calls METHOD of the Java CLASS on OBJECT with ARGUMENTS.  The method is looked up once, when this
file is loaded."
  `(java:jcall (load-time-value (java:jmethod ,class ,method ,@argument-classes))
               ,object ,@arguments))

;;; Interrupts: threads cannot defer them

(defmacro uninterruptibly (&body body)
  "Runs BODY.  BT:DESTROY-THREAD can still end BODY while it waits or calls EVAL."
  `(progn ,@body))

(defmacro interruptibly (&body body)
  "Runs BODY: interrupts were not deferred."
  `(progn ,@body))

(defun destroy-thread (thread)
  "Makes THREAD unwind and end when it waits or calls EVAL.  Compiled code that computes is not
interrupted."
  ;; Bordeaux Threads only sets a mark, which only EVAL checks.  So this function also interrupts
  ;; the thread, and makes it call EVAL.  The interrupt of a wait in a channel closes the channel.
  ;; EVAL checks the mark with this lock held, so a thread that sees the mark was interrupted, too.
  (threads:synchronized-on thread
    (threads:destroy-thread thread)
    (threads:interrupt-thread thread (lambda () (eval nil)))))

(defparameter *set-destroyed*
  (let ((method (java:jcall "getDeclaredMethod" (java:jclass "org.armedbear.lisp.LispThread")
                            "setDestroyed"
                            (java:jnew-array-from-list "java.lang.Class"
                                                       (list (java:jclass "boolean"))))))
    (java:jcall "setAccessible" method java:+true+)
    method)
  "The Java method, not public, that sets or clears the mark of a destroyed thread.")

(defun heed-interrupt ()
  "Runs the pending interrupt of the current thread, if there is one.  While an interrupt is
pending, every wait ends at once, and a read or write closes its file."
  (when (jcall-method ("java.lang.Thread" "isInterrupted")
                      (java:jstatic (load-time-value
                                     (java:jmethod "java.lang.Thread" "currentThread"))
                                    "java.lang.Thread"))
    ;; A wait runs the pending interrupt before it begins.
    (let ((thread (threads:current-thread)))
      (threads:synchronized-on thread
        (threads:object-wait thread 1/1000)))))

(defun survive-destruction ()
  "Lets the current thread run its cleanup forms if it was destroyed."
  ;; The mark would end the thread at its next call of a generic function, since many call EVAL.
  (let ((thread (threads:current-thread)))
    (threads:synchronized-on thread     ; see DESTROY-THREAD
      (java:jcall *set-destroyed* thread java:+false+))
    (heed-interrupt)))

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real or NIL for no limit, for a notification of
CONDITION-VARIABLE, and takes LOCK again.  The wait may end early, so the caller checks its
condition in a loop.  Ends the current thread if BT:DESTROY-THREAD has destroyed it, which does not
end waits on ABCL."
  ;; After an interrupt of the wait, Bordeaux Threads does not take LOCK again.  A cleanup form that
  ;; releases LOCK would then signal an error, and a handler for it might keep the thread alive.
  (let ((lock-back-p nil))
    (unwind-protect
         (setf lock-back-p (bt:condition-wait condition-variable lock
                                              :timeout (min 1/4 (or seconds 1))))
      (unless lock-back-p
        (bt:acquire-lock lock))))
  (eval nil))                           ; see DESTROY-THREAD

;;; The clock

(defun microseconds ()
  "The time in microseconds, a fixnum, of the clock of MILLISECONDS."
  (values (floor (java:jstatic (load-time-value (java:jmethod "java.lang.System" "nanoTime"))
                               "java.lang.System")
                 1000)))

(defun universal-milliseconds ()
  "The universal time in milliseconds, an integer."
  (+ (* 1000 2208988800)                ; until 1970
     (java:jstatic "currentTimeMillis" "java.lang.System")))

;;; Signals

(defun call-on-signal (name function)
  "Has FUNCTION, a function without arguments, called for each signal NAME that the process gets
from now on: :HANGUP, :INTERRUPT or :TERMINATE.  Java makes a thread for each call."
  (java:jstatic "handle" "sun.misc.Signal"
                (java:jnew "sun.misc.Signal" (ecase name
                                               (:hangup "HUP")
                                               (:interrupt "INT")
                                               (:terminate "TERM")))
                (java:jinterface-implementation "sun.misc.SignalHandler" "handle"
                                                (lambda (signal)
                                                  (declare (ignore signal))
                                                  (funcall function)))))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  SECONDS is ignored, since Java waits for no thread."
  (declare (ignore seconds))
  (finish-output *standard-output*)
  (finish-output *error-output*)
  (ext:quit :status code))

;;; Sockets, see usockets.lisp

(defun pending-connection-p (listener)
  "True: this Lisp cannot tell whether a connection waits on LISTENER to be accepted."
  ;; A selector would make the channel non-blocking for all threads that accept on it.
  (declare (ignore listener))
  t)

(defun wake-usocket (listener)
  (usocket:socket-close listener)
  t)

(defun await-usocket (usocket until)
  ;; The wait of usocket would never end with a limit of zero seconds, or with buffered octets.  A
  ;; channel with a selector is non-blocking.
  (let ((channel (jcall-method ("java.net.Socket" "getChannel") (usocket:socket usocket)))
        (selector (java:jstatic "open" "java.nio.channels.Selector"))
        (op-read 1))                    ; the value of SelectionKey.OP_READ
    (flet ((make-blocking (value)
             (jcall-method ("java.nio.channels.SelectableChannel" "configureBlocking" "boolean")
                           channel value)))
      (unwind-protect
           (progn
             (make-blocking java:+false+)
             (jcall-method ("java.nio.channels.SelectableChannel" "register"
                            "java.nio.channels.Selector" "int")
                           channel selector op-read)
             (loop for left = (milliseconds-left until)
                   ;; Zero would mean no limit.
                   for limit = (max 1 (min 60000 (or left 60000)))
                   for count = (jcall-method ("java.nio.channels.Selector" "select" "long")
                                             selector limit)
                   do (cond ((plusp count) (return t))
                            ((eql left 0) (return nil))
                            (t (heed-interrupt)))))
        (jcall-method ("java.nio.channels.Selector" "close") selector)
        (make-blocking java:+true+)))))

(defun limit-usocket (usocket seconds)
  (jcall-method ("java.net.Socket" "setSoTimeout" "int")
                (usocket:socket usocket) (ceiling (* 1000 (or seconds 0)))))

(defun shut-usocket (usocket direction)
  (let ((socket (usocket:socket usocket)))
    (unless (eq direction :output)
      (jcall-method ("java.net.Socket" "shutdownInput") socket))
    (unless (eq direction :input)
      (jcall-method ("java.net.Socket" "shutdownOutput") socket))
    t))

(defun wait-timed-out-p (condition)
  "True if CONDITION, signalled by a read or write of a socket's stream, means that the wait has
timed out.  On ABCL it has the text of a Java exception."
  (and (search "timed out" (princ-to-string condition)) t))
