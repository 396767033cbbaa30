(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; ABCL: the sockets and the clock of the Java virtual machine.  The sockets of usocket have
;;;; channels.

(defmacro jcall-method ((class method &rest argument-classes) object &rest arguments)
  "Calls METHOD of the Java CLASS on OBJECT with ARGUMENTS.  The method is looked up once, when this
file is loaded."
  `(java:jcall (load-time-value (java:jmethod ,class ,method ,@argument-classes))
               ,object ,@arguments))

(defun nanoseconds ()
  (java:jstatic (load-time-value (java:jmethod "java.lang.System" "nanoTime"))
                "java.lang.System"))

(defun clear-stack ()
  "Has no effect: this Lisp cannot clear its stack."
  nil)

(defun milliseconds ()
  "The time in milliseconds, a fixnum, of a monotonic clock without an epoch."
  (values (floor (nanoseconds) 1000000)))

(defun universal-milliseconds ()
  "The universal time in milliseconds, an integer."
  (+ (* 1000 2208988800)                ; until 1970
     (java:jstatic "currentTimeMillis" "java.lang.System")))

(defun microseconds ()
  "The time in microseconds, a fixnum, of the clock of MILLISECONDS."
  (values (floor (nanoseconds) 1000)))

(defun processor-count ()
  "The number of processors that the virtual machine may use, an integer of at least 1."
  (java:jcall "availableProcessors" (java:jstatic "getRuntime" "java.lang.Runtime")))

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
  "Lets the current thread run its cleanup forms if another thread has destroyed it."
  ;; The mark would end the thread at its next call of a generic function, since many call EVAL.
  (let ((thread (threads:current-thread)))
    (threads:synchronized-on thread     ; see DESTROY-THREAD
      (java:jcall *set-destroyed* thread java:+false+))
    (heed-interrupt)))

(defmacro unwind-protect-whole (form &body cleanup)
  "Evaluates FORM, and then all of CLEANUP, also after a non-local exit from FORM or if the thread
is destroyed meanwhile.  Returns the values of FORM."
  `(unwind-protect ,form
     (survive-destruction)
     ,@cleanup))

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

(defun %closed-p (listener)
  (jcall-method ("java.net.ServerSocket" "isClosed") (usocket:socket listener)))

(defun %pending-connection-p (listener)
  ;; A selector would make the channel non-blocking for all threads that accept on it.  So this Lisp
  ;; cannot tell, and a connection may be there.
  (declare (ignore listener))
  t)

(defun %wake-listener (listener)
  (usocket:socket-close listener)
  t)

(defconstant +op-read+ 1
  "The value of SelectionKey.OP_READ.")

(defmacro with-selector ((selector channel) &body body)
  "Runs BODY with a SELECTOR that is ready when CHANNEL can be read.  CHANNEL is non-blocking
meanwhile."
  `(let ((,selector (java:jstatic "open" "java.nio.channels.Selector")))
     (unwind-protect
          (progn
            (jcall-method ("java.nio.channels.SelectableChannel" "configureBlocking" "boolean")
                          ,channel java:+false+)
            (jcall-method ("java.nio.channels.SelectableChannel" "register"
                           "java.nio.channels.Selector" "int")
                          ,channel ,selector +op-read+)
            ,@body)
       (jcall-method ("java.nio.channels.Selector" "close") ,selector)
       (jcall-method ("java.nio.channels.SelectableChannel" "configureBlocking" "boolean")
                     ,channel java:+true+))))

(defun select-once (selector milliseconds)
  "Waits up to MILLISECONDS, or NIL for no limit, until SELECTOR is ready.  True if it is."
  ;; For SELECT, zero means no limit.
  (plusp (cond ((null milliseconds)
                (jcall-method ("java.nio.channels.Selector" "select") selector))
               ((plusp milliseconds)
                (jcall-method ("java.nio.channels.Selector" "select" "long")
                              selector milliseconds))
               (t
                (jcall-method ("java.nio.channels.Selector" "selectNow") selector)))))

(defun %await-input (usocket until)
  ;; The wait of usocket would never end with a limit of zero seconds, or with buffered octets.
  (let ((channel (jcall-method ("java.net.Socket" "getChannel") (usocket:socket usocket))))
    (with-selector (selector channel)
      (loop for left = (milliseconds-left until)
            do (cond ((select-once selector left) (return t))
                     ((eql left 0) (return nil))
                     (t (heed-interrupt)))))))

(defun %limit-waits (usocket seconds)
  (jcall-method ("java.net.Socket" "setSoTimeout" "int")
                (usocket:socket usocket) (ceiling (* 1000 (or seconds 0)))))

(defun %shut-down (usocket direction)
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
