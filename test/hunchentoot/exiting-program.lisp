;;;; A program that the test process-exits.lisp runs, by scripts/lisp, on SBCL: it makes processes
;;;; that serve, and exit while threads are being made, and tells how each ended, once it was about
;;;; to exit.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(load-own "hunchentoot-recycling-taskmaster")

(require :sb-posix)
(require :sb-bsd-sockets)

(defpackage #:exiting-program
  (:use #:common-lisp #:hunchentoot-recycling-taskmaster))

(in-package #:exiting-program)

(defparameter *patience* (parse-integer (or (sb-posix:getenv "PATIENCE") "10"))
  "For how many seconds a process may take to exit.")

(defparameter *makers* (if (ignore-errors (sb-ext:assert-version->= 2 3) t) 0 4)
  "How many handlers make and join threads.  In later SBCLs one that is destroyed amid that may keep
the lock of malloc, for which each other thread waits at its end.")

(defvar *tells-leaving* nil
  "The descriptor that tells the parent that the process is about to exit.")

(defun tell-leaving ()
  "Lets the parent know that the current process is about to exit: the time that the exit takes
begins now."
  (let ((octets (make-array 1 :element-type '(unsigned-byte 8) :initial-element 0)))
    (sb-sys:with-pinned-objects (octets)
      (sb-posix:write *tells-leaving* (sb-sys:vector-sap octets) 1))))

(defun leave ()
  (tell-leaving)
  (sb-ext:exit :code 7 :timeout 600))

(hunchentoot:define-easy-handler (sleeping :uri "/sleeping") ()
  (sleep 600)
  "")

(hunchentoot:define-easy-handler (brief :uri "/brief") ()
  (sleep 5/1000)
  "")

(hunchentoot:define-easy-handler (events :uri "/events") ()
  (defer-reply (reply)
    (send-event (start-event-stream reply) "hello")))

(hunchentoot:define-easy-handler (making :uri "/making") ()
  (loop (bt:join-thread (bt:make-thread (lambda () nil)))))

(hunchentoot:define-easy-handler (leave-now :uri "/handler") ()
  (leave))

(hunchentoot:define-easy-handler (leave-soon :uri "/timer") ()
  (run-after 0 'leave)
  "")

(defun ask (port path &optional (times 1))
  "Sends a new connection to PORT so many requests for PATH as TIMES says, and returns it."
  (let ((socket (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp))
        (request (format nil "GET ~A HTTP/1.1~AHost: localhost~:*~A~:*~A"
                         path (coerce '(#\Return #\Newline) 'string))))
    (sb-bsd-sockets:socket-connect socket #(127 0 0 1) port)
    (sb-bsd-sockets:socket-send socket (format nil "~V@{~A~:*~}" times request) nil)
    socket))

(defun serve-and-exit (parking place)
  "Serves, as PARKING says, many requests at once, and exits meanwhile, in PLACE."
  (let* ((acceptor (hunchentoot:start
                    (make-instance 'parallel-easy-acceptor
                                   :port 0 :address "127.0.0.1"
                                   :access-log-destination nil :message-log-destination nil
                                   :taskmaster (make-instance 'recycling-taskmaster
                                                              :parking parking))))
         (port (hunchentoot:acceptor-port acceptor))
         (connections (append (loop repeat 5 collect (ask port "/events"))
                              (loop repeat 30 collect (ask port "/sleeping"))
                              (loop repeat *makers* collect (ask port "/making"))
                              (loop repeat 10 collect (ask port "/brief" 100)))))
    (ecase place
      (:main (leave))
      ((:handler :timer)
       (push (ask port (format nil "/~(~A~)" place)) connections)
       (loop (sleep 600))))
    connections))

(defun end-of-process (process)
  "Waits for the end of PROCESS, for *PATIENCE* seconds at most.  Returns its status, or NIL when it
had to be killed."
  (loop repeat (* 100 *patience*)
        do (multiple-value-bind (ended status) (sb-posix:waitpid process sb-posix:wnohang)
             (when (= ended process)
               (return (sb-posix:wexitstatus status))))
           (sleep 1/100)
        finally (sb-posix:kill process sb-posix:sigkill)
                (sb-posix:waitpid process 0)))

(defun call-in-process (function)
  "Calls FUNCTION, which calls LEAVE, in a process of its own.  Returns its status, or NIL when it
had to be killed."
  (multiple-value-bind (reading writing) (sb-posix:pipe)
    (let ((process (sb-posix:fork)))
      (when (zerop process)
        (sb-posix:close reading)
        (setf *tells-leaving* writing)
        (handler-bind ((error (lambda (condition)
                                (format t "~A~%" condition)
                                (finish-output)
                                (sb-ext:exit :code 1 :abort t))))
          (funcall function)))
      (sb-posix:close writing)
      ;; First requests have SBCL compile dispatch functions, which lasts where the processors are
      ;; busy.  The end of the pipe, when the process has ended, counts too.
      (sb-sys:wait-until-fd-usable reading :input (* 12 *patience*) nil)
      (prog1 (end-of-process process)
        (sb-posix:close reading)))))

(dolist (parking '(t nil))
  (dolist (place '(:handler :timer :main))
    (loop repeat 2
          do (format t "~&parking ~A, in ~(~A~): ~A~%" parking place
                     (call-in-process (lambda () (serve-and-exit parking place))))
             (finish-output))))
