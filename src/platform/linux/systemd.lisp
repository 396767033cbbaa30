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
    (and (every #'digit-char-p text) (plusp (length text)) (parse-integer text))))

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
  (flet ((environment-integer (name)
           (let ((value (sb-ext:posix-getenv name)))
             (and value (parse-integer value :junk-allowed t)))))
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
              (t
               (loop for descriptor from *first-inherited-descriptor*
                     repeat count
                     do (check-call (fcntl descriptor 2 1) "fcntl")) ; F_SETFD, FD_CLOEXEC
               (mapc #'take-variable '("LISTEN_PID" "LISTEN_FDS"))
               (let ((names (uiop:split-string (or (take-variable "LISTEN_FDNAMES") "")
                                               :separator ":")))
                 (setf *handed-over* (cons self (loop repeat count
                                                      collect (or (pop names) ""))))))))
      (rest *handed-over*))))

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
  (unless (find (char name 0) "/@")
    (return-from send-notification "it names no Unix-domain socket"))
  (let* ((octets (sb-ext:string-to-octets text :external-format :utf-8))
         (end (end-after seconds))
         (address (handler-case (path-address name)
                    (listen-failed (condition)
                      (return-from send-notification (listen-failure-reason condition)))))
         (descriptor (path-socket 2))   ; SOCK_DGRAM
         (result descriptor))
    (when (char= #\@ (char name 0))     ; a zero takes its place, and there is none at the end
      (setf address (subseq address 0 (1- (length address)))
            (aref address 2) 0))
    (unless (minusp descriptor)
      (unwind-protect
           (progn
             (setf result (call-with-address "connect" descriptor address))
             (loop until (minusp result)
                   do (setf result (send-octets descriptor octets 0 (length octets)))
                      ;; Another process may take the room, and then this one waits again.
                      (if (and (would-block-p result)
                               (plusp (milliseconds-left end))
                               (await-descriptor descriptor :output :until end))
                          (setf result 0)
                          (return))))
        (close-descriptor descriptor)))
    (cond ((would-block-p result) "its queue is full")
          ((minusp result) (sb-int:strerror (- result))))))
