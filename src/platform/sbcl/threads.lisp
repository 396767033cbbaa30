(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Threads as the system schedules them, and atomic operations, for SBCL on Linux.

;;; Threads

(defun thread-identity ()
  "The system's number of the current thread, an integer."
  (sb-alien:alien-funcall
   (sb-alien:extern-alien "syscall" (function sb-alien:long sb-alien:long))
   ;; The number of gettid(2), since old C libraries lack the function.  178 is its number on all
   ;; architectures that Linux has supported since 2012: arm64, riscv, loongarch.
   #+x86-64 186 #+ppc64 207 #-(or x86-64 ppc64) 178))

(defparameter *system-files* "/proc/"
  "The folder with the system's files about processes; see proc(5).  It is missing in many
chroots.")

(defun start-of-system-file (name buffer)
  "Reads the first octets of the file NAME, a string, of the system's files into BUFFER.  Returns
how many, an integer; 0 if the file cannot be read."
  (declare (type octets buffer))
  (let ((file (concatenate 'string *system-files* name)))
    (let ((descriptor (system-call "open" sb-alien:int (sb-alien:c-string file)
                                   (sb-alien:int +sock-cloexec+))))
      (if (minusp descriptor)
          0
          (unwind-protect
               (sb-sys:with-pinned-objects (buffer)
                 (max 0 (system-call "read" sb-alien:long
                                     (sb-alien:int descriptor)
                                     (sb-sys:system-area-pointer (sb-sys:vector-sap buffer))
                                     (sb-alien:unsigned-long (length buffer)))))
            (close-descriptor descriptor))))))

(defun thread-state (identity)
  "The state of the thread IDENTITY of this process: :RUNNING if it has a processor or waits for
one, :BLOCKED if it waits for anything else, NIL if the state is unknown."
  (let ((buffer (make-octets 64)))
    (declare (dynamic-extent buffer))
    (let* ((count (start-of-system-file (format nil "self/task/~D/stat" identity) buffer))
           (name-end (position (char-code #\)) buffer :from-end t :end count)))
      (when (and name-end (< (+ name-end 2) count))
        ;; The state is a letter, two octets after the closing parenthesis of the name.
        (if (= (char-code #\R) (aref buffer (+ name-end 2))) :running :blocked)))))

(defun integer-at (octets start end)
  "The integer whose digits OCTETS have from START on, before END; and the position behind it."
  (loop with number = 0
        for place from start below end
        for digit = (- (aref octets place) (char-code #\0))
        while (<= 0 digit 9)
        do (setf number (+ (* 10 number) digit))
        finally (return (values number place))))

(defun processor-stall ()
  "For how many microseconds so far some thread of the system had to wait for a processor, an
integer, of which only differences matter; NIL if that is unknown, as where the system was started
without pressure stall information."
  (let ((buffer (make-octets 128)))
    (declare (dynamic-extent buffer))
    ;; The first line is "some avg10=0.01 avg60=0.20 avg300=0.10 total=1234".
    (let* ((count (start-of-system-file "pressure/cpu" buffer))
           (end (position (char-code #\Newline) buffer :end count))
           (start (and end (position (char-code #\=) buffer :from-end t :end end))))
      (and start
           (values (integer-at buffer (1+ start) end))))))

(defun processor-idle-time ()
  "For how many microseconds so far the processors of the system had nothing to do, all together, an
integer, of which only differences matter.  It counts in steps of 10,000.  Where the system does not
tell, only the time of this process is known not to be idle."
  (let ((buffer (make-octets 128)))
    (declare (dynamic-extent buffer))
    ;; The first line is "cpu  " and numbers: user, nice, system, idle.
    (let ((count (start-of-system-file "stat" buffer))
          (position 5)
          (number 0))
      (cond ((> count 5)
             (loop repeat 4
                   do (setf (values number position) (integer-at buffer position count))
                      (incf position))
             (* 10000 number))
            (t
             (- (* (online-processors) (microseconds))
                (floor (* 1000000 (get-internal-run-time)) internal-time-units-per-second)))))))

(defun thread-run-time (identity)
  "The processor time of the thread IDENTITY of this process, in microseconds, an integer; 0 if the
thread has ended."
  (sb-alien:with-alien ((time (array sb-alien:long 2)))
    ;; The number of the clock of the thread's processor time; see clock_getres(2).
    (if (zerop (system-call "clock_gettime" sb-alien:int
                            (sb-alien:int (logior (ash (lognot identity) 3) 6))
                            ((* (array sb-alien:long 2)) (sb-alien:addr time))))
        (+ (* 1000000 (sb-alien:deref time 0)) (floor (sb-alien:deref time 1) 1000))
        0)))

(defconstant +sched-other+ 0)
(defconstant +sched-batch+ 3)

(defun schedule-as-batch ()
  "Makes the current thread wait for a free processor when it wakes, so that it does not preempt a
running thread (SCHED_BATCH, see sched(7)).  Does so only if the thread has the system's default
policy.  Threads that it makes inherit the policy.  Returns 0 or minus an error number."
  (if (= +sched-other+ (system-call "sched_getscheduler" sb-alien:int (sb-alien:int 0)))
      (sb-alien:with-alien ((priority sb-alien:int 0))
        (system-call "sched_setscheduler" sb-alien:int (sb-alien:int 0)
                     (sb-alien:int +sched-batch+)
                     ((* sb-alien:int) (sb-alien:addr priority))))
      0))

(defun let-timers-be-late (microseconds)
  "Lets the system end timed waits of the current thread up to MICROSECONDS, an integer, late, so
that it can end several at once (PR_SET_TIMERSLACK, see prctl(2)).  Threads that the current one
makes inherit this.  Returns 0 or minus an error number."
  (system-call "prctl" sb-alien:int (sb-alien:int 29)
               (sb-alien:unsigned-long (* 1000 microseconds))))

(defun nap (microseconds)
  "Sleeps for MICROSECONDS, an integer.  Only the sentinel's tick may use it."
  (system-call "usleep" sb-alien:int (sb-alien:unsigned-int microseconds)))

;;; Atomics

(defmacro order-memory ()
  "A full barrier: other threads see all earlier writes of the current thread before its later
reads."
  `(sb-thread:barrier (:memory)))

(defmacro order-reads ()
  "A read barrier: earlier reads and atomic changes of the current thread come before its later
reads."
  ;; x86-64 reads in order, and its atomic instructions come before later reads.
  #+x86-64 nil
  #-x86-64 `(sb-thread:barrier (:memory)))

(defmacro order-writes ()
  "A write barrier: other threads see earlier writes of the current thread before its later writes
and atomic changes."
  ;; x86-64 writes in order.
  #+x86-64 nil
  #-x86-64 `(sb-thread:barrier (:write)))

(defmacro compare-and-set (place old new)
  "Atomically sets PLACE, a slot of a structure, to NEW if it is EQ to OLD; returns true if it was.
A thread that finds NEW also sees all earlier writes of the current thread.  Later reads come after
the change."
  (let ((expected (gensym "OLD")) (replacement (gensym "NEW")))
    `(let ((,expected ,old) (,replacement ,new))
       (order-writes)
       (prog1 (eq ,expected (sb-ext:compare-and-swap ,place ,expected ,replacement))
         (order-reads)))))

(defstruct (counter (:include opaque) (:constructor make-counter ()))
  "A number that many threads add to."
  (value 0 :type sb-ext:word))

(declaim (inline counter-add counter-count))
(defun counter-add (counter delta)
  "Atomically adds DELTA, an integer, to COUNTER.  Later reads come after the change."
  (declare (type (signed-byte 62) delta))
  (sb-ext:atomic-incf (counter-value counter) delta)
  (order-reads)
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
             (order-reads)
             (return t))))))
