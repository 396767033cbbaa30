(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; How many processors this process may use, for SBCL on Linux: those that its affinity allows,
;;;; and no more than the quota of time of its control group, or of one above that, comes to.

(defparameter *affinity-octets* 1024
  "Room for the affinity of a thread, a bit for each processor.")

(defun affinity-count ()
  "How many processors the current thread may run on, or NIL; see sched_setaffinity(2)."
  (let ((mask (make-octets *affinity-octets*)))
    (sb-sys:with-pinned-objects (mask)
      (when (zerop (system-call "sched_getaffinity" sb-alien:int
                                (sb-alien:int 0)
                                (sb-alien:unsigned-long (length mask))
                                (sb-sys:system-area-pointer (sb-sys:vector-sap mask))))
        (reduce #'+ mask :key #'logcount)))))

;;; Control groups, see cgroups(7): of version 1, which has a hierarchy for each controller, and of
;;; version 2, which has one for all.

(defparameter *cgroup-membership* "/proc/self/cgroup"
  "The file that tells of which control groups this process is a member.")

(defparameter *cgroup-root* "/sys/fs/cgroup/"
  "Where hierarchies are mounted.")

(defun file-lines (path)
  "The lines of the file PATH; none where it cannot be read: such a limit is not known to us."
  (handler-case
      ;; Not WITH-OPEN-FILE: a thread that is destroyed after the file was opened, and before a
      ;; cleanup form is there, would leave the descriptor open.
      (with-acquired (stream (open (sb-ext:parse-native-namestring path) :if-does-not-exist nil)
                             (when stream
                               (close stream)))
        (and stream
             (loop for line = (read-line stream nil) while line collect line)))
    ((or file-error stream-error) () '())))

(defun line-integers (path)
  "The integers in the first line of the file PATH, with NIL for a word that is none."
  (loop for word in (uiop:split-string (or (first (file-lines path)) "") :separator " ")
        collect (handler-case (parse-integer word) (parse-error () nil))))

(defun quota-share (quota period)
  "QUOTA of PERIOD, both in microseconds, in processors; NIL when there is no such limit."
  (and quota period (plusp quota) (plusp period)
       (/ quota period)))

(defun group-share (version folder)
  "What the group of FOLDER, a string that ends in a slash, may use, in processors; NIL when that is
not limited."
  (flet ((numbers (file) (line-integers (concatenate 'string folder file))))
    (ecase version
      (1 (quota-share (first (numbers "cpu.cfs_quota_us")) (first (numbers "cpu.cfs_period_us"))))
      (2 (destructuring-bind (&optional quota period) (numbers "cpu.max")
           (quota-share quota period))))))

(defun groups-above (path)
  "PATH, of a control group, without its first slash and with one at its end, and those of all
above."
  (loop with names = (remove "" (uiop:split-string path :separator "/") :test #'string=)
        for count from (length names) downto 0
        collect (format nil "~{~A/~}" (subseq names 0 count))))

(defun hierarchies (controllers)
  "The version of a hierarchy for CONTROLLERS, the empty string for all, and the folders where it
may be mounted; NIL when it does not limit processors."
  (cond ((string= controllers "")
         (values 2 '("" "unified/")))
        ((member "cpu" (uiop:split-string controllers :separator ",") :test #'string=)
         (values 1 (list "cpu/" (format nil "~A/" controllers))))))

(defun line-shares (line)
  "The limits, in processors, that LINE of *CGROUP-MEMBERSHIP* leads to."
  (destructuring-bind (&optional number (controllers "") &rest path)
      (uiop:split-string line :separator ":")
    (declare (ignore number))
    (multiple-value-bind (version mounts) (hierarchies controllers)
      (loop for mount in mounts
            append (loop for group in (groups-above (format nil "~{~A~^:~}" path))
                         for share = (group-share version (format nil "~A~A~A" *cgroup-root*
                                                                  mount group))
                         when share collect share)))))

(defun cgroup-share ()
  "The least limit of the control groups of this process, in processors; NIL when there is none."
  (let ((shares (mapcan #'line-shares (file-lines *cgroup-membership*))))
    (and shares (reduce #'min shares))))

(defun processor-count ()
  "How many processors this process may use, at least 1: those that the affinity of the current
thread allows, or as many as the time comes to that its control groups grant, rounded up."
  (let ((share (cgroup-share))
        (affinity (or (affinity-count) 1)))
    (max 1 (if share (min affinity (ceiling share)) affinity))))
