(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; This process and its threads, for SBCL on Linux: what the system tells of them, by files in
;;;; /proc (proc(5)), and how it schedules them.

(defun prepare-process ()
  "Makes the process fit for a server.  Opens /dev/null on each of the descriptors 0 to 2 that is
closed: otherwise a socket might get one of these numbers, and the Lisp would write its standard
output to a client.  And ignores SIGPIPE, which would end the process after sbcl --script: a client
that leaves causes it."
  ;; The system uses the lowest free number.  Programs that are started later inherit it.
  (loop for descriptor = (open-with-flags "/dev/null" 2)
        while (<= 0 descriptor 2)
        finally (unless (minusp descriptor)
                  (close-descriptor descriptor)))
  (sb-sys:enable-interrupt sb-unix:sigpipe :ignore))

;;; Files of the system that the sentinel reads often

(defun thread-identity ()
  "The system's number of the current thread, an integer."
  (sb-alien:alien-funcall
   (sb-alien:extern-alien "syscall" (function sb-alien:long sb-alien:long))
   ;; The number of gettid(2), since old C libraries lack the function.  178 is its number on all
   ;; architectures that Linux has supported since 2012: arm64, riscv, loongarch.
   #+x86-64 186 #+ppc64 207 #-(or x86-64 ppc64) 178))

(defun start-of-file (name)
  "The first characters of the file NAME, a string of at most 128; an empty one if the file cannot
be read, as in many chroots."
  (let ((octets (make-octets 128))
        (descriptor (open-with-flags name +o-cloexec+)))
    (declare (dynamic-extent octets))
    (if (minusp descriptor)
        ""
        (unwind-protect
             (let ((count (sb-sys:with-pinned-objects (octets)
                            (system-call "read" sb-alien:long
                                         (sb-alien:int descriptor)
                                         (sb-sys:system-area-pointer (sb-sys:vector-sap octets))
                                         (sb-alien:unsigned-long (length octets))))))
               (map 'text #'code-char (subseq octets 0 (max 0 count))))
          (close-descriptor descriptor)))))

(defun thread-state (identity)
  "The state of the thread IDENTITY of this process: :RUNNING if it has a processor or waits for
one, :BLOCKED if it waits for anything else, NIL if the state is unknown."
  (let* ((text (start-of-file (format nil "/proc/self/task/~D/stat" identity)))
         (name-end (position #\) text :from-end t)))
    (when (and name-end (< (+ name-end 2) (length text)))
      (if (char= #\R (char text (+ name-end 2))) :running :blocked))))

(defun processor-stall ()
  "For how many microseconds so far some thread of the system had to wait for a processor, an
integer, of which only differences matter; NIL if that is unknown, as where the system was started
without pressure stall information."
  ;; The first line is "some avg10=0.01 avg60=0.20 avg300=0.10 total=1234".
  (let* ((text (start-of-file "/proc/pressure/cpu"))
         (start (search "total=" text)))
    (and start
         (values (parse-integer text :start (+ start 6) :junk-allowed t)))))

(defun processor-idle-time ()
  "For how many microseconds so far the processors of the system had nothing to do, all together, an
integer, of which only differences matter.  It counts in steps of 10,000.  Where the system does not
tell, only the time of this process is known not to be idle."
  ;; The first line is "cpu  " and numbers: user, nice, system, idle.
  (let ((text (start-of-file "/proc/stat"))
        (position 5)
        (number nil))
    (dotimes (count (if (string= "" text) 0 4))
      (setf (values number position) (parse-integer text :start position :junk-allowed t)))
    (if number
        (* 10000 number)
        (- (* (online-processors) (microseconds))
           (floor (* 1000000 (get-internal-run-time)) internal-time-units-per-second)))))

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

;;; The number of processors that this process may use: its affinity, and the quota of its control
;;; group, limit it; see cgroups(7), of which this reads version 2.

(defparameter *cgroup-membership* "/proc/self/cgroup"
  "The file that lists the control groups of this process.")

(defparameter *cgroup-root* "/sys/fs/cgroup"
  "The folder in which the hierarchy is mounted.")

(defun cgroup-share ()
  "The limit, in processors, of the control group of this process; NIL for none, or if unknown."
  (flet ((lines (path)
           (uiop:read-file-lines (sb-ext:parse-native-namestring path))))
    (ignore-errors                      ; "max" is no number
     (let* ((line (find-if (lambda (line) (uiop:string-prefix-p "0::/" line))
                           (lines *cgroup-membership*)))
            (file (format nil "~A/~A/cpu.max" *cgroup-root* (subseq line 4))))
       (apply #'/ (mapcar #'parse-integer (uiop:split-string (first (lines file)))))))))

(defun online-processors ()
  "The number of processors of the whole system, an integer of at least 1."
  (max 1 (system-call "sysconf" sb-alien:long (sb-alien:int 84)))) ; _SC_NPROCESSORS_ONLN

(defun processor-count ()
  "The number of processors that this process may use, an integer of at least 1.  It is the number
in the affinity of the current thread or, if less, the limit of its control group, rounded up."
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
