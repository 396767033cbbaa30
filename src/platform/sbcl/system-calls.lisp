(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; System calls, and the wait for a descriptor, for SBCL on Unix.

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defmacro system-call (name result &rest arguments)
    "Calls the C function NAME, which returns a RESULT, a type, with ARGUMENTS, lists of type and
value.  Returns its result, or minus the error number if its result is negative."
    `(let ((result (sb-alien:alien-funcall
                    (sb-alien:extern-alien ,name (function ,result ,@(mapcar #'first arguments)))
                    ,@(mapcar #'second arguments))))
       (declare (type fixnum result))
       (if (minusp result) (- (sb-alien:get-errno)) result))))

(defconstant +eintr+ 4)

(defun check-call (result name)
  "Returns RESULT, of the C function NAME; signals an error if it is minus an error number."
  (if (minusp result)
      (error "~A failed: error number ~D." name (- result))
      result))

(sb-alien:define-alien-type nil
    (sb-alien:struct pollfd             ; <poll.h>
                     (descriptor sb-alien:int)
                     (events sb-alien:short) (events-that-came sb-alien:short)))

(defun poll-once (descriptor direction milliseconds)
  "Calls poll(2) for DESCRIPTOR and DIRECTION, see AWAIT-DESCRIPTOR, with a limit of MILLISECONDS,
-1 for none.  Returns its result, or minus an error number."
  (sb-alien:with-alien ((poll (sb-alien:struct pollfd)))
    (setf (sb-alien:slot poll 'descriptor) descriptor
          (sb-alien:slot poll 'events) (ecase direction
                                         (:input #x1) (:output #x4) (:end #x2000) (:failure 0)))
    (system-call "poll" sb-alien:int
                 ((* (sb-alien:struct pollfd)) (sb-alien:addr poll))
                 (sb-alien:unsigned-long 1)
                 (sb-alien:int milliseconds))))

(defconstant +longest-poll+ (1- (ash 1 31))
  "The longest time limit of poll(2), in milliseconds.")

(defun await-descriptor (descriptor direction &key until)
  "Waits until DESCRIPTOR can be read (DIRECTION is :INPUT) or written (:OUTPUT), or its peer has
ended its output (:END, on Linux), or, for every DIRECTION, it has failed; returns true then.  With
:FAILURE, only a failure ends the wait.  Returns NIL after UNTIL, a moment of MILLISECONDS, or NIL
for no limit.  If UNTIL has passed, only checks.  Signals do not prolong the wait."
  ;; A signal ends poll(2), and each garbage collection sends one to every thread.
  (loop for left = (milliseconds-left until)
        for count = (poll-once descriptor direction (if left (min left +longest-poll+) -1))
        do (cond ((plusp count) (return t))
                 ((eql left 0) (return nil))
                 ((/= count (- +eintr+)) (check-call count "poll")))))

(defun %await-input (usocket until)
  ;; Unlike select(2), poll(2) has no limit on the number of the descriptor.
  (await-descriptor (sb-bsd-sockets:socket-file-descriptor (usocket:socket usocket)) :input
                    :until until))

#+linux
(defun limit-receiving (socket seconds)
  "Limits each read and accept on SOCKET, a socket of the Lisp, to SECONDS; 0 is for no limit."
  (sb-alien:with-alien ((limit (array sb-alien:long 2))) ; struct timeval
    (setf (sb-alien:deref limit 0) seconds
          (sb-alien:deref limit 1) 0)
    (system-call "setsockopt" sb-alien:int
                 (sb-alien:int (sb-bsd-sockets:socket-file-descriptor socket))
                 (sb-alien:int 1)       ; SOL_SOCKET
                 (sb-alien:int #+(or ppc ppc64) 18 #-(or ppc ppc64) 20) ; SO_RCVTIMEO
                 ((* (array sb-alien:long 2)) (sb-alien:addr limit))
                 (sb-alien:int (sb-alien:alien-size (array sb-alien:long 2) :bytes)))))
