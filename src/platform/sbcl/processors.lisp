(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The number of processors that this process may use, for SBCL on Linux.  Its affinity and the
;;;; time quotas of its control group, and of the groups above, limit this number.

(defparameter *affinity-octets* 1024
  "Room for the affinity of a thread, a bit for each processor.")

(defun affinity-count ()
  "The number of processors on which the current thread may run, or NIL if it is unknown; see
sched_setaffinity(2)."
  (let ((mask (make-octets *affinity-octets*)))
    (sb-sys:with-pinned-objects (mask)
      (when (zerop (system-call "sched_getaffinity" sb-alien:int
                                (sb-alien:int 0)
                                (sb-alien:unsigned-long (length mask))
                                (sb-sys:system-area-pointer (sb-sys:vector-sap mask))))
        (reduce #'+ mask :key #'logcount)))))

;;; Control groups, see cgroups(7).  Version 1 has a hierarchy for each controller; version 2 has
;;; one for all.

(defparameter *cgroup-membership* "/proc/self/cgroup"
  "The file that lists the control groups of this process.")

(defparameter *cgroup-root* "/sys/fs/cgroup/"
  "The folder in which hierarchies are mounted.")

(defun file-lines (path)
  "A list of the lines of the file PATH; NIL if it cannot be read, so that its limit is unknown."
  (handler-case
      (with-open-file (stream (sb-ext:parse-native-namestring path) :if-does-not-exist nil)
        (and stream
             (loop for line = (read-line stream nil) while line collect line)))
    ((or file-error stream-error) () '())))

(defun line-integers (path)
  "A list of the integers in the first line of the file PATH, with NIL for any other word."
  (loop for word in (uiop:split-string (or (first (file-lines path)) "") :separator " ")
        collect (handler-case (parse-integer word) (parse-error () nil))))

(defun quota-share (quota period)
  "The number of processors that QUOTA of PERIOD, both in microseconds, allows; NIL for no limit."
  (and quota period (plusp quota) (plusp period)
       (/ quota period)))

(defun group-share (version folder)
  "The number of processors that the group of FOLDER, a string that ends in a slash, may use; NIL
for no limit."
  (flet ((numbers (file) (line-integers (concatenate 'string folder file))))
    (ecase version
      (1 (quota-share (first (numbers "cpu.cfs_quota_us")) (first (numbers "cpu.cfs_period_us"))))
      (2 (destructuring-bind (&optional quota period) (numbers "cpu.max")
           (quota-share quota period))))))

(defun groups-above (path)
  "A list of PATH, of a control group, and the paths of all groups above it.  Each is without its
first slash and with one at its end."
  (loop with names = (remove "" (uiop:split-string path :separator "/") :test #'string=)
        for count from (length names) downto 0
        collect (format nil "~{~A/~}" (subseq names 0 count))))

(defun hierarchies (controllers)
  "The version of the hierarchy for CONTROLLERS, the empty string for all, and a list of folders in
which it may be mounted; NIL if it does not limit processors."
  (cond ((string= controllers "")
         (values 2 '("" "unified/")))
        ((member "cpu" (uiop:split-string controllers :separator ",") :test #'string=)
         (values 1 (list "cpu/" (format nil "~A/" controllers))))))

(defun line-shares (line)
  "A list of the limits, in processors, of the group that LINE of *CGROUP-MEMBERSHIP* names, and of
the groups above it."
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
  "The least limit, in processors, of the control groups of this process; NIL for no limit."
  (let ((shares (mapcan #'line-shares (file-lines *cgroup-membership*))))
    (and shares (reduce #'min shares))))

(defun processor-count ()
  "The number of processors that this process may use, an integer of at least 1.  It is the number
in the affinity of the current thread or, if less, the limit of its control groups, rounded up."
  (let ((share (cgroup-share))
        (affinity (or (affinity-count) 1)))
    (max 1 (if share (min affinity (ceiling share)) affinity))))
