(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The protocols of a service manager such as systemd, for SBCL on Linux: sockets that it hands
;;;; over, see sd_listen_fds(3), and what a service tells it, see sd_notify(3).

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

(defun take-number (name)
  "Removes the environment variable NAME, and returns its value, an integer; NIL if it has none."
  (let ((text (take-variable name)))
    (and text (parse-integer text :junk-allowed t))))

;;; Sockets

(defparameter *first-inherited-descriptor* 3
  "The first descriptor that a service manager hands over.")

(defvar *handed-over* nil
  "A list of the number of this process and the names, strings, of the descriptors that it has taken
from a service manager, in their order; NIL before that.")

(defun handed-over-names ()
  "The names of the descriptors that a service manager has handed over to this process.  Programs
that it starts inherit neither the descriptors nor the environment variables about them.  Signals
LISTEN-FAILED if there are none."
  (let ((self (process-number)))
    (unless (eql self (first *handed-over*)) ; taken at an earlier start
      (let ((process (take-number "LISTEN_PID"))
            (count (take-number "LISTEN_FDS"))
            (names (uiop:split-string (or (take-variable "LISTEN_FDNAMES") "") :separator ":")))
        (unless (and (eql process self) count (plusp count))
          (fail-to-listen "a socket of systemd"
                          (format nil "LISTEN_PID is ~:[not set~;~:*~D~], LISTEN_FDS ~
                                       ~:[not set~;~:*~D~], and this is process ~D"
                                  process count self)))
        (loop for descriptor from *first-inherited-descriptor*
              repeat count
              do (check-call (fcntl descriptor 2 1) "fcntl")) ; F_SETFD, FD_CLOEXEC
        (setf *handed-over* (cons self (loop repeat count collect (or (pop names) ""))))))
    (rest *handed-over*)))

(defun inherited-descriptor (designator)
  "The descriptor, an integer, of DESIGNATOR, an INHERITED-DESIGNATOR.  Signals LISTEN-FAILED if the
service manager has handed over no such descriptor, by the protocol of sd_listen_fds(3)."
  (if (integerp designator)
      designator
      (let* ((names (handed-over-names))
             (name (and (consp designator) (second designator)))
             (place (if name (position name names :test #'string=) 0)))
        (unless place
          (fail-to-listen "a socket of systemd"
                          (format nil "none is named ~S, only ~{~S~^, ~}" name names)))
        (+ *first-inherited-descriptor* place))))

;;; Notifications

(defun send-notification (name text seconds)
  "Sends TEXT, a string, as one datagram to the Unix-domain socket NAME, a string: an absolute path,
or @ and a name of the abstract namespace, see unix(7).  Waits up to SECONDS, a real, for room in
its queue.  Returns NIL, or why TEXT could not be sent: a string, without its full stop."
  (let* ((octets (sb-ext:string-to-octets text :external-format :utf-8))
         (abstract-p (char= #\@ (char name 0)))
         (socket (make-instance (if abstract-p
                                    'sb-bsd-sockets:local-abstract-socket
                                    'sb-bsd-sockets:local-socket)
                                :type :datagram))
         (descriptor (sb-bsd-sockets:socket-file-descriptor socket)))
    (unwind-protect
         (handler-case
             (progn
               (sb-bsd-sockets:socket-connect socket (if abstract-p (subseq name 1) name))
               (await-descriptor descriptor :output :until (end-after seconds))
               (let ((result (send-octets descriptor octets 0 (length octets))))
                 (when (minusp result)
                   (sb-int:strerror (- result)))))
           (sb-bsd-sockets:socket-error (condition) (sb-int:strerror (error-number condition))))
      (sb-bsd-sockets:socket-close socket))))
