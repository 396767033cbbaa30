(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Platforms without pollers: the ready engine compiles, but cannot be made.  All listeners are
;;;; those of usocket.

(deftype descriptor () 'fixnum)
(deftype token () 'integer)

(defconstant +most-dropped+ 1
  "The maximum number of octets that DROP-OCTETS would drop, an integer.")

(defconstant +would-block+ -11
  "The value, an integer, of a read or write that would have to wait.")

(defun accepted-socket (socket)
  "The value of ACCEPT-CONNECTION for SOCKET, a socket of the Lisp: a usocket."
  (funcall 'stream-usocket socket))      ; not compiled for ABCL, which calls nothing of this

(defun defer-accepts (listener seconds)
  "Has no effect: on this platform LISTENER does not hold connections back."
  (declare (ignore listener seconds))
  0)

(macrolet ((none (&rest names)
             `(progn ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        "NIL: this platform has no such thing, or does not tell."
                                        (declare (ignore arguments))
                                        nil)))))
  (none readiness-supported-p would-block-p private-folder open-temporary-file
        fill-standard-descriptors
        special-listeners-supported-p take-variable take-number quiet-milliseconds
        heap-octets heap-used collection-seconds collect-garbage call-when-forgotten
        functions-can-be-wrapped-p call-in-saved-images))

(macrolet ((unsupported (&rest names)
             `(progn ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        (declare (ignore arguments))
                                        (error "~A needs SBCL under Linux." ',name))))))
  (unsupported error-text listener-descriptor descriptor-socket
               descriptor-peer-name descriptor-local-name token-hangup-p plain-token
               receive-octets first-octet drop-octets
               send-octets send-octets-before-more
               accept-descriptor close-descriptor shut-descriptor
               set-no-delay set-non-blocking set-blocking #-sbcl await-descriptor
               unsent-octets
               lisp-stream-descriptor lisp-stream-milliseconds
               (setf lisp-stream-milliseconds) take-read-ahead put-read-ahead
               process-number send-notification inherited-descriptor
               open-path-listener open-inherited-listener open-shared-port-listener
               native-name open-file file-facts read-file-octets write-file-octets send-file
               make-poller close-poller watch rearm unwatch wake-all wake-one
               await-ready make-timer-descriptor arm-timer-descriptor
               thread-identity thread-state thread-run-time processor-stall processor-idle-time
               #-sbcl online-processors
               schedule-as-batch let-timers-be-late nap))

;; No code needs these here.
(defmacro order-memory ())
(defmacro order-reads ())
(defmacro order-writes ())

(defmacro compare-and-set (place old new)
  "Sets PLACE to NEW if it is EQ to OLD; returns true if it was.  Not atomic, since no code needs
that here."
  `(when (eq ,place ,old)
     (setf ,place ,new)
     t))

(defstruct (counter (:include opaque) (:constructor make-counter ()))
  "A number that many threads add to."
  (value 0))

(defun counter-add (counter delta)
  "Adds DELTA, an integer, to COUNTER.  Not atomic, since no code needs that here."
  (incf (counter-value counter) delta))

(defun counter-add-up-to (counter delta most)
  "Adds DELTA to COUNTER, and returns true; NIL if the sum would be more than MOST.  These are
integers.  Not atomic, since no code needs that here."
  (when (<= (+ (counter-value counter) delta) most)
    (incf (counter-value counter) delta)
    t))

(defun counter-count (counter)
  "The value of COUNTER, an integer."
  (counter-value counter))

(defun process-figures ()
  "No values: nothing is known here of this process."
  (values))

(defun wrap-function (name wrapper)
  "Has no effect: the function NAME needs no WRAPPER here."
  (declare (ignore wrapper))
  name)

(defun call-for-backtrace (function length caller)
  "The backtrace, a string, that FUNCTION returns; LENGTH and CALLER have no effect here."
  (declare (ignore length caller))
  (funcall function))

(defun frames-of-thread (thread seconds)
  ":UNKNOWN: where THREAD is cannot be seen, however many SECONDS there are."
  (declare (ignore thread seconds))
  :unknown)
