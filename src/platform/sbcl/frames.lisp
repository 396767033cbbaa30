(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Where a thread is.
;;;;
;;;;   state       meaning                                     becomes
;;;;   :ASKED      the thread is to note its frames            :TAKEN by it, :GIVEN-UP by the asker
;;;;   :TAKEN      it does so                                  -
;;;;   :GIVEN-UP   it allowed no interrupt for too long, and   -
;;;;               will do nothing later

(defstruct (inquiry (:include opaque) (:constructor make-inquiry ()))
  "A question to a thread where it is."
  (state :asked)
  (frames '())
  (answered (sb-thread:make-semaphore) :read-only t))

(defparameter *most-frames* 200
  "How many frames of a thread are told.")

(defun names-of-frames ()
  "The names of the functions that the current thread is in, a list, the innermost first.  No
arguments: these may be secret, and to print them could call functions of programs."
  (let ((names '()) (count 0))
    (handler-case
        (sb-debug::map-backtrace
         (lambda (frame)
           (push (sb-di:debug-fun-name (sb-di:frame-debug-fun frame)) names)
           (when (= (incf count) *most-frames*)
             (return-from names-of-frames (nreverse names)))))
      ((or error storage-condition) ()))
    (nreverse names)))

(defun answer-inquiry (inquiry)
  "Notes in INQUIRY where the current thread is, unless it comes too late.  Never exits
non-locally."
  (uninterruptibly
    (when (compare-and-set (inquiry-state inquiry) :asked :taken)
      (setf (inquiry-frames inquiry) (names-of-frames))
      (sb-thread:signal-semaphore (inquiry-answered inquiry)))))

(defun frames-of-thread (thread seconds)
  "The names of the functions that THREAD is in, a list of symbols, strings and lists, the innermost
first.  THREAD is interrupted for that, and goes on.  Returns :BUSY if it allows no interrupt for
SECONDS, a real; then it is not interrupted later either.  Returns :ENDED if it has ended, and
:UNKNOWN where this Lisp cannot tell."
  (let* ((inquiry (make-inquiry))
         (answered (inquiry-answered inquiry)))
    (handler-case (sb-thread:interrupt-thread thread (lambda () (answer-inquiry inquiry)))
      (sb-thread:interrupt-thread-error ()
        (return-from frames-of-thread :ended)))
    (cond ((or (sb-thread:wait-on-semaphore answered :timeout seconds)
               (and (not (compare-and-set (inquiry-state inquiry) :asked :given-up))
                    (sb-thread:wait-on-semaphore answered :timeout seconds)))
           (inquiry-frames inquiry))
          ((bt:thread-alive-p thread) :busy)
          (t :ended))))
