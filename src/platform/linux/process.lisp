(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; This process and its threads, for SBCL on Linux: what the system tells of them, by files in
;;;; /proc (proc(5)), and how it schedules them.

(defun prepare-process ()
  "Makes the process fit for a server.  Opens /dev/null on each of the descriptors 0 to 2 that is
closed: otherwise a socket might get one of these numbers, and the Lisp would write its standard
output to a client.  And ignores SIGPIPE where it would end the process, as after sbcl --script: a
client that leaves causes it."
  (dotimes (number 3)
    (when (= (- +ebadf+) (fcntl number 1 0)) ; F_GETFD
      ;; The system uses the lowest free number.  Programs that are started later inherit it.
      (let ((descriptor (open-with-flags "/dev/null" 2)))
        (when (> descriptor 2)          ; another thread was faster
          (close-descriptor descriptor)))))
  ;; struct sigaction begins with the handler; SIG_DFL is 0.
  (sb-alien:with-alien ((action (array sb-alien:unsigned-long 32)))
    (when (and (zerop (system-call "sigaction" sb-alien:int
                                   (sb-alien:int sb-unix:sigpipe)
                                   (sb-sys:system-area-pointer (sb-sys:int-sap 0))
                                   ((* (array sb-alien:unsigned-long 32))
                                    (sb-alien:addr action))))
               (zerop (sb-alien:deref action 0)))
      (sb-sys:enable-interrupt sb-unix:sigpipe :ignore))))

;;; Files of the system that the sentinel reads often, without garbage

(defun thread-identity ()
  "The system's number of the current thread, an integer."
  (sb-alien:alien-funcall
   (sb-alien:extern-alien "syscall" (function sb-alien:long sb-alien:long))
   ;; The number of gettid(2), since old C libraries lack the function.  178 is its number on all
   ;; architectures that Linux has supported since 2012: arm64, riscv, loongarch.
   #+x86-64 186 #+ppc64 207 #-(or x86-64 ppc64) 178))

(defun start-of-file (name buffer)
  "Reads the first octets of the file NAME, a string, into BUFFER.  Returns how many, an integer; 0
if the file cannot be read, as in many chroots."
  (declare (type octets buffer))
  (let ((descriptor (open-with-flags name +o-cloexec+)))
    (if (minusp descriptor)
        0
        (unwind-protect
             (sb-sys:with-pinned-objects (buffer)
               (max 0 (system-call "read" sb-alien:long
                                   (sb-alien:int descriptor)
                                   (sb-sys:system-area-pointer (sb-sys:vector-sap buffer))
                                   (sb-alien:unsigned-long (length buffer)))))
          (close-descriptor descriptor)))))

(defun thread-state (identity)
  "The state of the thread IDENTITY of this process: :RUNNING if it has a processor or waits for
one, :BLOCKED if it waits for anything else, NIL if the state is unknown."
  (let ((buffer (make-octets 64)))
    (declare (dynamic-extent buffer))
    (let* ((count (start-of-file (format nil "/proc/self/task/~D/stat" identity) buffer))
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
    (let* ((count (start-of-file "/proc/pressure/cpu" buffer))
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
    (let ((count (start-of-file "/proc/stat" buffer))
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

;;; Scheduling

(defun schedule-as-batch ()
  "Makes the current thread wait for a free processor when it wakes, so that it does not preempt a
running thread (SCHED_BATCH, see sched(7)).  Does so only if the thread has the system's default
policy.  Threads that it makes inherit the policy.  Returns 0 or minus an error number."
  (if (zerop (system-call "sched_getscheduler" sb-alien:int (sb-alien:int 0))) ; SCHED_OTHER
      (sb-alien:with-alien ((priority sb-alien:int 0))
        (system-call "sched_setscheduler" sb-alien:int (sb-alien:int 0)
                     (sb-alien:int 3)   ; SCHED_BATCH
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

;;; The number of processors that this process may use: its affinity, and the quotas of its control
;;; group and of those above, limit it; see cgroups(7), of which this reads version 2.

(defparameter *cgroup-membership* "/proc/self/cgroup"
  "The file that lists the control groups of this process.")

(defparameter *cgroup-root* "/sys/fs/cgroup/"
  "The folder in which the hierarchy is mounted.")

(defun cgroup-share ()
  "The least limit, in processors, of the control groups of this process; NIL for no limit."
  (flet ((lines (path)                  ; NIL if it cannot be read, so that its limit is unknown
           (ignore-errors (uiop:read-file-lines (sb-ext:parse-native-namestring path)))))
    (let* ((line (find-if (lambda (line) (uiop:string-prefix-p "0::/" line))
                          (lines *cgroup-membership*)))
           (names (and line (remove "" (uiop:split-string (subseq line 4) :separator "/")
                                    :test #'string=)))
           (shares (loop for count from (length names) downto 0 ; and the groups above
                         for file = (format nil "~A~{~A/~}cpu.max"
                                            *cgroup-root* (subseq names 0 count))
                         for (quota period) = (mapcar (lambda (word)
                                                        (parse-integer word :junk-allowed t))
                                                      (uiop:split-string
                                                       (or (first (lines file)) "")))
                         when (and quota period (plusp quota) (plusp period))
                           collect (/ quota period))))
      (and shares (reduce #'min shares)))))

(defun processor-count ()
  "The number of processors that this process may use, an integer of at least 1.  It is the number
in the affinity of the current thread or, if less, the limit of its control groups, rounded up."
  (let* ((share (cgroup-share))
         (mask (make-octets 1024))      ; a bit for each processor; see sched_setaffinity(2)
         (affinity (if (zerop (sb-sys:with-pinned-objects (mask)
                                (system-call "sched_getaffinity" sb-alien:int
                                             (sb-alien:int 0)
                                             (sb-alien:unsigned-long (length mask))
                                             (sb-sys:system-area-pointer
                                              (sb-sys:vector-sap mask)))))
                       (reduce #'+ mask :key #'logcount)
                       1)))
    (max 1 (if share (min affinity (ceiling share)) affinity))))
