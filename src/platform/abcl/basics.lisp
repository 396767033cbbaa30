(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; ABCL: the Java virtual machine's sockets and clock.  usocket's sockets have channels.

(defmacro jcall-method ((class method &rest argument-classes) object &rest arguments)
  "Calls METHOD of the Java CLASS on OBJECT.  It is looked up once, when this file is loaded."
  `(java:jcall (load-time-value (java:jmethod ,class ,method ,@argument-classes))
               ,object ,@arguments))

(defun nanoseconds ()
  (java:jstatic (load-time-value (java:jmethod "java.lang.System" "nanoTime"))
                "java.lang.System"))

(defun clear-stack ()
  "Does nothing: nobody can ask for that here."
  nil)

(defun milliseconds ()
  "Milliseconds, a fixnum, of a clock that never steps and has no epoch."
  (values (floor (nanoseconds) 1000000)))

(defun microseconds ()
  "Microseconds, a fixnum, of the clock of MILLISECONDS."
  (values (floor (nanoseconds) 1000)))

(defun processor-count ()
  "How many processors the virtual machine may use, at least 1."
  (java:jcall "availableProcessors" (java:jstatic "getRuntime" "java.lang.Runtime")))

(defun destroy-thread (thread)
  "Makes THREAD unwind and end, where it waits or evaluates: compiled code that computes goes on."
  ;; Bordeaux Threads only sets a mark, at which nothing but EVAL looks; so whoever waits is
  ;; interrupted and sent there.  An interrupted wait in a channel closes the channel.
  ;; EVAL looks at the mark under this lock: who sees it has been interrupted.
  (threads:synchronized-on thread
    (threads:destroy-thread thread)
    (threads:interrupt-thread thread (lambda () (eval nil)))))

(defun thread-method (name &rest argument-classes)
  "The Java method NAME of threads, with ARGUMENT-CLASSES, by their names, though it is not public."
  (let ((method (java:jcall "getDeclaredMethod" (java:jclass "org.armedbear.lisp.LispThread") name
                            (java:jnew-array-from-list "java.lang.Class"
                                                       (mapcar #'java:jclass argument-classes)))))
    (java:jcall "setAccessible" method java:+true+)
    method))

(defparameter *set-destroyed* (thread-method "setDestroyed" "boolean")
  "The Java method that marks a thread as destroyed, or no longer so.")

(defparameter *destroyed-p* (thread-method "isDestroyed")
  "The Java method that tells whether a thread is marked as destroyed.")

(defun heed-interrupt ()
  "Does what the current thread was interrupted for, if it was: until then no wait would last, and
a file would be closed when it is read or written."
  (when (jcall-method ("java.lang.Thread" "isInterrupted")
                      (java:jstatic (load-time-value
                                     (java:jmethod "java.lang.Thread" "currentThread"))
                                    "java.lang.Thread"))
    ;; A wait that is interrupted before it begins.
    (let ((thread (threads:current-thread)))
      (threads:synchronized-on thread
        (threads:object-wait thread 1/1000)))))

(defun survive-destruction ()
  "Lets the current thread go on though somebody has destroyed it; true where that is so."
  ;; The mark would end it at the next call of a generic function, many of which evaluate.
  (let ((thread (threads:current-thread)))
    (prog1 (threads:synchronized-on thread ; who destroys it marks it, and interrupts it
             (prog1 (java:jcall *destroyed-p* thread)
               (java:jcall *set-destroyed* thread java:+false+)))
      (heed-interrupt))))

(defun end-destroyed-thread ()
  "Ends the current thread, which SURVIVE-DESTRUCTION has let go on."
  (java:jcall *set-destroyed* (threads:current-thread) java:+true+)
  (heed-destruction))

(defmacro unwind-protect-whole (form &body cleanup)
  "Evaluates FORM, and then, however that was left, all of CLEANUP, though its thread was destroyed.
Returns the values of FORM; or ends a thread that was destroyed where nothing took heed of it before
CLEANUP."
  (let ((done-p (gensym "DONE-P")) (destroyed-p (gensym "DESTROYED-P")))
    `(let ((,done-p nil) (,destroyed-p nil))
       (unwind-protect (multiple-value-prog1 ,form
                         (setf ,done-p t))
         (setf ,destroyed-p (survive-destruction))
         ,@cleanup
         (when (and ,done-p ,destroyed-p)
           (end-destroyed-thread))))))

(defparameter *destruction-period* 1/4
  "How often, in seconds, a thread that waits has to call HEED-DESTRUCTION; NIL where that is not
needed.")

(defun heed-destruction ()
  "Ends the current thread if somebody has destroyed it by Bordeaux Threads, which ends no wait
here."
  (eval nil))                           ; see DESTROY-THREAD

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real or NIL for no limit, for a notification of
CONDITION-VARIABLE, and takes LOCK again.  May return early: call it in a loop around what is waited
for."
  ;; Bordeaux Threads takes LOCK again only where nobody interrupts the wait; whoever gives LOCK
  ;; back while the thread unwinds would fail then, and a handler of that error would keep the
  ;; thread from its end.
  (let ((lock-back-p nil))
    (unwind-protect
         (setf lock-back-p (bt:condition-wait condition-variable lock :timeout seconds))
      (unless lock-back-p
        (bt:acquire-lock lock)))))

(defun %closed-p (listener)
  (jcall-method ("java.net.ServerSocket" "isClosed") (usocket:socket listener)))

(defun %pending-connection-p (listener)
  ;; A selector would need the shared channel to be non-blocking under the feet of
  ;; those who accept, so nobody can tell: a connection may be there.
  (declare (ignore listener))
  t)

(defun %wake-listener (listener)
  (usocket:socket-close listener)
  t)

(defconstant +op-read+ 1 "SelectionKey.OP_READ.")

(defmacro with-selector ((selector channel) &body body)
  "Runs BODY with a SELECTOR that is ready when CHANNEL can be read, which does not block
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
  "Waits up to MILLISECONDS, or for ever when NIL, for what SELECTOR is for.  True when it is
ready."
  ;; To SELECT, zero means no limit.
  (plusp (cond ((null milliseconds)
                (jcall-method ("java.nio.channels.Selector" "select") selector))
               ((plusp milliseconds)
                (jcall-method ("java.nio.channels.Selector" "select" "long")
                              selector milliseconds))
               (t
                (jcall-method ("java.nio.channels.Selector" "selectNow") selector)))))

(defun %await-input (usocket until)
  ;; Not usocket's, whose wait of zero seconds, and every wait while octets are buffered
  ;; already, lasts for ever.
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
  "True when CONDITION, which reading or writing a socket's stream has signalled, tells that the
wait had its time: here it is Java's exception, as text."
  (and (search "timed out" (princ-to-string condition)) t))
