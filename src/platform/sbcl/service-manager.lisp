(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Sockets that a service manager such as systemd hands over, see sd_listen_fds(3), for SBCL on
;;;; Linux.

;;; Environment variables

(defun process-number ()
  "The system's number of this process, an integer."
  (sb-unix:unix-getpid))

(defun take-variable (name)
  "Removes the environment variable NAME, a string, so that programs which this process starts do
not inherit it.  Returns its value, a string; NIL if it was not set, or empty."
  (let ((value (sb-ext:posix-getenv name)))
    (when value
      (system-call "unsetenv" sb-alien:int (sb-alien:c-string name)))
    (and (plusp (length value)) value)))

(defun environment-integer (name)
  "The integer in the environment variable NAME; NIL if there is none."
  (let ((value (sb-ext:posix-getenv name)))
    (and value (parse-integer value :junk-allowed t))))

;;; Sockets

(defvar *handed-over* nil
  "A list of the number of this process and the names, strings, of the descriptors that it has taken
from a service manager, in their order; NIL before that.")

(defun close-on-exec (descriptor)
  "Makes the system close DESCRIPTOR in programs that this process starts or becomes."
  (check-call (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                           (sb-alien:int 2) (sb-alien:int 1)) ; F_SETFD, FD_CLOEXEC
              "fcntl"))

(defun take-handed-over (process count)
  "Takes COUNT descriptors for this PROCESS, as sd_listen_fds(3) does.  Programs that it starts
inherit neither the descriptors nor the environment variables about them."
  (loop for descriptor from *first-inherited-descriptor*
        repeat count do (close-on-exec descriptor))
  (mapc #'take-variable '("LISTEN_PID" "LISTEN_FDS"))
  (let ((names (uiop:split-string (or (take-variable "LISTEN_FDNAMES") "") :separator ":")))
    (setf *handed-over* (cons process (loop repeat count
                                            collect (or (pop names) ""))))))

(defun handed-over-names ()
  "The names of the descriptors that a service manager has handed over to this process.  Signals
LISTEN-FAILED if there are none."
  (let ((self (process-number))
        (process (environment-integer "LISTEN_PID"))
        (count (environment-integer "LISTEN_FDS")))
    (flet ((refuse (control value)
             (fail-to-listen "a socket of systemd" (format nil control value self))))
      (cond ((and (null process) (eql self (first *handed-over*)))) ; taken at an earlier start
            ((not (eql process self))
             (refuse "LISTEN_PID is ~:[not set~;~:*~D~], and this is process ~D" process))
            ((not (and count (plusp count)))
             (refuse "LISTEN_FDS, the number of sockets, is ~:[not set~;~:*~D~]" count))
            (t (take-handed-over self count))))
    (rest *handed-over*)))

(defun handed-over-descriptor (name)
  "The first descriptor with NAME, a string or NIL for any, that a service manager has handed over."
  (let* ((names (handed-over-names))
         (place (if name (position name names :test #'string=) 0)))
    (unless place
      (fail-to-listen "a socket of systemd"
                      (format nil "none is named ~S, only ~{~S~^, ~}" name names)))
    (+ *first-inherited-descriptor* place)))

(defun inherited-descriptor (designator)
  "The descriptor, an integer, of DESIGNATOR, an INHERITED-DESIGNATOR.  Signals LISTEN-FAILED if the
service manager has handed over no such descriptor, by the protocol of sd_listen_fds(3)."
  (if (integerp designator)
      designator
      (handed-over-descriptor (and (consp designator) (second designator)))))
