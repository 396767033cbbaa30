(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Threads as the system sees them, and what they share, for SBCL on Linux.

;;; Threads

(defun thread-identity ()
  "The system's number of the current thread."
  (sb-alien:alien-funcall
   (sb-alien:extern-alien "syscall" (function sb-alien:long sb-alien:long))
   ;; Not the C function, which old C libraries lack.  178 is the number of all processors that
   ;; Linux learnt to know since 2012: arm64, riscv, loongarch.
   #+x86-64 186 #+ppc64 207 #-(or x86-64 ppc64) 178))

(defparameter *tasks* "/proc/self/task/"
  "The folder in which the system tells of the threads of this process, see proc(5).  It is not
there where /proc is not mounted, as in many a chroot.")

(defun open-thread-status (identity)
  "A descriptor for THREAD-STATE of the thread IDENTITY of this process; NIL when there is none to
be had."
  (let ((result (system-call "open" sb-alien:int
                             (sb-alien:c-string (format nil "~A~D/stat" *tasks* identity))
                             (sb-alien:int +sock-cloexec+))))
    (unless (minusp result)
      result)))

(defun thread-state (status)
  "What the thread of STATUS, of OPEN-THREAD-STATUS, does: :RUNNING when it has a processor or waits
for one, :BLOCKED when it waits for something else, NIL when the system does not tell."
  (let ((buffer (make-octets 64)))
    (declare (dynamic-extent buffer))
    (sb-sys:with-pinned-objects (buffer)
      (let* ((count (system-call "pread" sb-alien:long
                                 (sb-alien:int status)
                                 (sb-sys:system-area-pointer (sb-sys:vector-sap buffer))
                                 (sb-alien:unsigned-long 64)
                                 (sb-alien:long 0)))
             (name-end (and (plusp count)
                            (position (char-code #\)) buffer :from-end t :end count))))
        (when (and name-end (< (+ name-end 2) count))
          ;; After the closing parenthesis of its name stands its state, a letter.
          (if (= (char-code #\R) (aref buffer (+ name-end 2))) :running :blocked))))))

(defun thread-run-time (identity)
  "For how many microseconds the thread IDENTITY of this process has had a processor; 0 when it
is gone."
  (sb-alien:with-alien ((time (array sb-alien:long 2)))
    ;; The clock of a thread's own time, as the system numbers clocks (clock_getres(2)).
    (if (zerop (system-call "clock_gettime" sb-alien:int
                            (sb-alien:int (logior (ash (lognot identity) 3) 6))
                            ((* (array sb-alien:long 2)) (sb-alien:addr time))))
        (+ (* 1000000 (sb-alien:deref time 0)) (floor (sb-alien:deref time 1) 1000))
        0)))

(defconstant +sched-other+ 0)
(defconstant +sched-batch+ 3)

(defun schedule-as-batch ()
  "Lets the current thread, when it wakes, wait for a processor rather than take that of a thread
which runs (SCHED_BATCH, see sched(7)), unless it has another policy than the system's default.
Threads that it makes inherit that.  Returns 0 or minus an error number."
  (if (= +sched-other+ (system-call "sched_getscheduler" sb-alien:int (sb-alien:int 0)))
      (sb-alien:with-alien ((priority sb-alien:int 0))
        (system-call "sched_setscheduler" sb-alien:int (sb-alien:int 0)
                     (sb-alien:int +sched-batch+)
                     ((* sb-alien:int) (sb-alien:addr priority))))
      0))

(defun let-timers-be-late (microseconds)
  "Lets the system end what the current thread waits for with a limit of time up to MICROSECONDS, an
integer, after that, together with others (PR_SET_TIMERSLACK, see prctl(2)).  Threads that it makes
inherit that.  Returns 0 or minus an error number."
  (system-call "prctl" sb-alien:int (sb-alien:int 29)
               (sb-alien:unsigned-long (* 1000 microseconds))))

(defun nap (microseconds)
  "Sleeps for MICROSECONDS.  For the sentinel's tick alone."
  (system-call "usleep" sb-alien:int (sb-alien:unsigned-int microseconds)))

;;; Atomics

(defmacro order-memory ()
  "Everything that the current thread wrote before, is seen by others before it reads what follows."
  `(sb-thread:barrier (:memory)))

(defmacro order-reads ()
  "What the current thread reads, or changes at once, before this is read before what it reads
after."
  ;; x86-64 reads in order, and its atomic instructions come before what is read after them.
  #+x86-64 nil
  #-x86-64 `(sb-thread:barrier (:memory)))

(defmacro order-writes ()
  "What the current thread wrote before this is seen by others before what it writes, or changes at
once, after."
  ;; x86-64 writes in order.
  #+x86-64 nil
  #-x86-64 `(sb-thread:barrier (:write)))

(defmacro compare-and-set (place old new)
  "Sets PLACE, a slot of a structure, to NEW if it is EQ to OLD, at once; true when it was.  What
was written before, is seen by whoever finds NEW; what is read afterwards, is read after that."
  (let ((expected (gensym "OLD")) (replacement (gensym "NEW")))
    `(let ((,expected ,old) (,replacement ,new))
       (order-writes)
       (prog1 (eq ,expected (sb-ext:compare-and-swap ,place ,expected ,replacement))
         (order-reads)))))

(defstruct (counter (:include opaque) (:constructor make-counter ()))
  "A number that many threads add to."
  (value 0 :type sb-ext:word))

(setf (documentation 'make-counter 'function)
      "A new counter, of which COUNTER-COUNT is 0.")

(declaim (inline counter-add counter-count))
(defun counter-add (counter delta)
  "Adds DELTA, an integer, to COUNTER, at once.  What is read afterwards, is read after that."
  (declare (type (signed-byte 62) delta))
  (sb-ext:atomic-incf (counter-value counter) delta)
  (order-reads)
  (values))

(defun counter-count (counter)
  "The value of COUNTER."
  (the (unsigned-byte 61) (counter-value counter)))

(defun counter-add-up-to (counter delta most)
  "Adds DELTA, an integer of 0 or more, to COUNTER, at once, and returns true; NIL, and COUNTER is
as it was at every moment, where that would be more than MOST, an integer."
  (declare (type (unsigned-byte 60) delta) (type (integer 0) most))
  (loop
    (let* ((old (counter-count counter))
           (new (+ old delta)))
      (declare (type (unsigned-byte 61) old))
      (cond ((> new most)
             (return nil))
            ((= old (sb-ext:compare-and-swap (counter-value counter) old new))
             (order-reads)
             (return t))))))
