(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Platforms without pollers: the ready engine compiles, but cannot be made.  All listeners are
;;;; those of usocket.

(deftype descriptor () 'fixnum)
(deftype token () 'integer)

(defconstant +most-dropped+ 1
  "The maximum number of octets that DROP-OCTETS would drop, an integer.")

(defconstant +would-block+ -11
  "The value, an integer, of a read or write that would have to wait.")

(defvar *file-names* (make-random-state t)
  "From which temporary files get their names.")

(defun readiness-supported-p ()
  "NIL: this platform has no pollers."
  nil)

(defun would-block-p (result)
  "NIL: reads and writes wait."
  (declare (ignore result))
  nil)

(defun private-folder ()
  "NIL: there are no private folders here."
  nil)

(defun open-temporary-file ()
  "A stream of a new, empty file without a name, which CLOSE-TEMPORARY-FILE deletes, for
READ-FILE-OCTETS and WRITE-FILE-OCTETS; NIL where none can be made."
  (ignore-errors
    (loop for name = (merge-pathnames (format nil "hunchentoot-~36R" (random (expt 36 12)
                                                                             *file-names*))
                                      (uiop:temporary-directory))
          for file = (open name :direction :io :element-type 'octet
                                :if-exists nil :if-does-not-exist :create)
          when file do (delete-file name) (return file))))

(defun close-temporary-file (file)
  "Closes FILE, which OPEN-TEMPORARY-FILE has made."
  (close file))

(defun read-file-octets (file position octets start end)
  "Reads FILE from POSITION into OCTETS from START to END.  True if FILE had that many octets."
  (finish-output file)
  (file-position file position)
  (= end (read-sequence octets file :start start :end end)))

(defun write-file-octets (file position octets start end)
  "Writes OCTETS from START to END to FILE at POSITION.  True if all were written."
  (ignore-errors
    (file-position file position)
    (write-sequence octets file :start start :end end)
    (finish-output file)
    t))

(defun fill-standard-descriptors ()
  "Has no effect: the Lisp manages the descriptors."
  nil)

(defun special-listeners-supported-p ()
  "NIL: this platform has only the listeners of usocket."
  nil)

(defun accepted-socket (socket)
  "The value of ACCEPT-CONNECTION for SOCKET, a socket of the Lisp: a usocket."
  (funcall 'stream-usocket socket))      ; not compiled for ABCL, which calls nothing of this

(defun take-variable (name)
  "NIL: on this platform NAME, an environment variable, makes no difference."
  (declare (ignore name))
  nil)

(defun take-number (name)
  "NIL: on this platform NAME, an environment variable, makes no difference."
  (declare (ignore name))
  nil)

(defun quiet-milliseconds (descriptor)
  "NIL: on this platform nobody knows since when no octets have come to DESCRIPTOR."
  (declare (ignore descriptor))
  nil)

(defun defer-accepts (listener seconds)
  "Has no effect: on this platform LISTENER does not hold connections back."
  (declare (ignore listener seconds))
  0)

(macrolet ((unsupported (&rest names)
             `(progn ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        (declare (ignore arguments))
                                        (error "~A needs SBCL under Linux." ',name))))))
  (unsupported error-text listener-descriptor descriptor-socket
               descriptor-peer-name descriptor-local-name token-hangup-p plain-token
               receive-octets first-octet drop-octets
               send-octets send-octets-before-more send-held-octets
               accept-descriptor close-descriptor shut-descriptor
               set-no-delay set-non-blocking set-blocking #-sbcl await-descriptor
               unsent-octets
               lisp-stream-descriptor lisp-stream-milliseconds
               (setf lisp-stream-milliseconds) take-read-ahead put-read-ahead
               process-number send-notification inherited-descriptor
               open-path-listener open-inherited-listener open-shared-port-listener
               native-name open-file file-facts send-file
               make-poller close-poller watch rearm unwatch wake-all send-probe wake-one
               await-ready make-timer-descriptor arm-timer-descriptor
               thread-identity thread-state thread-run-time processor-stall processor-idle-time
               #-sbcl online-processors
               schedule-as-batch let-timers-be-late nap))

(defmacro order-memory ()
  "Has no effect: no code needs it here."
  nil)

(defmacro order-reads ()
  "Has no effect: no code needs it here."
  nil)

(defmacro order-writes ()
  "Has no effect: no code needs it here."
  nil)

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

(defun heap-octets ()
  "NIL: the maximum size of the heap is unknown."
  nil)

(defun heap-used ()
  "NIL: the size of the heap in use is unknown."
  nil)

(defun collection-seconds ()
  "NIL: the time that collections of garbage took is unknown."
  nil)

(defun collect-garbage ()
  "Has no effect here."
  nil)

(defun call-when-forgotten (object function)
  "Has no effect: no object here has files or memory outside the heap."
  (declare (ignore object function))
  nil)

(defun functions-can-be-wrapped-p ()
  "NIL: WRAP-FUNCTION has no effect."
  nil)

(defun process-figures ()
  "No values: nothing is known here of this process."
  (values))

(defun call-in-saved-images (function)
  "Has no effect for FUNCTION: such images are not supported here."
  (declare (ignore function)))

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
