(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; No pollers: the ready engine cannot be made, its code compiles all the same.  Nor are there
;;;; listeners of other kinds than usocket's.

(deftype descriptor () 'fixnum)
(deftype token () 'integer)

(defconstant +most-dropped+ 1
  "The most octets that DROP-OCTETS would drop.")

(defconstant +would-block+ -11
  "What a call that reads or writes nothing now would return.")

(defun readiness-supported-p ()
  "NIL: this platform has no pollers."
  nil)

(defun would-block-p (result)
  "NIL: who reads or writes waits."
  (declare (ignore result))
  nil)

(defun private-folder ()
  "NIL: folders are made as others are."
  nil)

(defun open-temporary-file ()
  "Minus an error number, ENOSYS: this platform has no files as descriptors."
  -38)

(defun fill-standard-descriptors ()
  "Does nothing: which numbers descriptors have is the Lisp's affair."
  nil)

(defun special-listeners-supported-p ()
  "NIL: this platform has no other listeners than usocket's."
  nil)

(defun accepted-socket (socket)
  "What ACCEPT-CONNECTION returns for SOCKET, one of the Lisp's own: a usocket."
  (stream-usocket socket))

(defun defer-accepts (listener seconds)
  "Has no effect: on this platform connections come when they are made."
  (declare (ignore listener seconds))
  0)

(macrolet ((unsupported (&rest names)
             `(progn ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        (declare (ignore arguments))
                                        (error "~A needs SBCL under Linux." ',name))))))
  (unsupported error-text listener-descriptor descriptor-socket
               descriptor-peer-name descriptor-local-name token-hangup-p plain-token
               receive-octets first-octet drop-octets send-octets send-octets-before-more send-held-octets
               accept-descriptor close-descriptor shut-descriptor
               set-no-delay set-non-blocking set-blocking #-sbcl await-descriptor
               unread-octets unsent-octets
               lisp-stream-descriptor lisp-stream-milliseconds
               (setf lisp-stream-milliseconds) take-read-ahead put-read-ahead
               systemd-descriptor open-path-listener open-inherited-listener
               open-shared-port-listener
               native-name open-file file-facts read-file-octets write-file-octets send-file
               make-poller close-poller watch rearm unwatch wake-all send-probe wake-one
               await-ready make-timer-descriptor arm-timer-descriptor
               thread-identity open-thread-status thread-state thread-run-time
               schedule-as-batch let-timers-be-late nap))

(defmacro order-memory ()
  "Has no effect: nobody needs it."
  nil)

(defmacro order-reads ()
  "Has no effect: nobody needs it."
  nil)

(defmacro order-writes ()
  "Has no effect: nobody needs it."
  nil)

(defmacro compare-and-set (place old new)
  "Sets PLACE to NEW if it is EQ to OLD; true when it was.  Atomic only where it is needed."
  `(when (eq ,place ,old)
     (setf ,place ,new)
     t))

(defstruct (counter (:include opaque) (:constructor make-counter ()))
  "A number that many threads add to."
  (value 0))

(setf (documentation 'make-counter 'function)
      "A new counter, of which COUNTER-COUNT is 0.")

(defun counter-add (counter delta)
  "Adds DELTA to COUNTER.  Atomic only where it is needed."
  (incf (counter-value counter) delta))

(defun counter-add-up-to (counter delta most)
  "Adds DELTA to COUNTER, and returns true; NIL where that would be more than MOST.  Atomic only
where it is needed."
  (when (<= (+ (counter-value counter) delta) most)
    (incf (counter-value counter) delta)
    t))

(defun counter-count (counter)
  "The value of COUNTER."
  (counter-value counter))

(defun heap-octets ()
  "NIL: how large the heap may be is not known."
  nil)

(defun heap-used ()
  "NIL: how much of the heap is in use is not known."
  nil)

(defun collect-garbage ()
  "Does nothing: the Lisp knows best."
  nil)

(defun call-when-forgotten (object function)
  "Does nothing: content has neither files nor memory of its own here."
  (declare (ignore object function))
  nil)

(defun functions-can-be-wrapped-p ()
  "NIL: WRAP-FUNCTION has no effect."
  nil)

(defun wrap-function (name wrapper)
  "Leaves the function NAME as it is: there is nothing here that WRAPPER could do better."
  (declare (ignore wrapper))
  name)

(defun call-for-backtrace (function length caller)
  "The backtrace that FUNCTION returns."
  (declare (ignore length caller))
  (funcall function))
