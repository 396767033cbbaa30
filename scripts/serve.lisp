;;;; Serves examples/demo.lisp until Ctrl-C (SIGINT) or SIGTERM, then stops in
;;;; order and exits with 0.  SIGHUP lets it open its log anew, as is usual for
;;;; servers, and does not end it.  PORT and ADDRESS say where.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(defun port ()
  "The number in PORT; gives up if there is none."
  (let ((number (ignore-errors (parse-integer (setting "PORT" "4242")))))
    (if (typep number '(integer 0 65535))
        number
        (give-up "PORT is ~S; it must be a number from 0 to 65535." (setting "PORT")))))

(defvar *port* (port))
(defvar *address* (setting "ADDRESS" "127.0.0.1"))

(load-own "hunchentoot-recycling-taskmaster")
(load (uiop:subpathname *root* "examples/demo.lisp"))


;;; From here on a signal means: stop in order.

(defvar *stop-asked* nil
  "True once a signal has asked for the end.")

(defun ask-stop (&rest arguments)
  "The signal handler.  It may run at any moment, so it only leaves a note."
  (declare (ignore arguments))
  (setf *stop-asked* t))

(defvar *reopening-asked* nil
  "True once a signal has asked for the logs to be opened anew.")

(defun ask-reopening (&rest arguments)
  "The handler of SIGHUP; like ASK-STOP."
  (declare (ignore arguments))
  (setf *reopening-asked* t))

(defun handle-signals ()
  "Lets SIGINT and SIGTERM call ASK-STOP, and SIGHUP ASK-REOPENING."
  #+sbcl (dolist (signal (list sb-unix:sigint sb-unix:sigterm))
           (sb-sys:enable-interrupt signal #'ask-stop))
  #+sbcl (sb-sys:enable-interrupt sb-unix:sighup #'ask-reopening)
  #+ecl (dolist (signal (list ext:+sigint+ ext:+sigterm+))
          (ext:set-signal-handler signal 'ask-stop))
  #+ecl (ext:set-signal-handler ext:+sighup+ 'ask-reopening)
  #+abcl (loop for (name handler) in '(("INT" ask-stop) ("TERM" ask-stop) ("HUP" ask-reopening))
               do (java:jstatic "handle" "sun.misc.Signal" (java:jnew "sun.misc.Signal" name)
                                (java:jinterface-implementation "sun.misc.SignalHandler"
                                                                "handle" (symbol-function handler)))))

(defun start-demo ()
  "The demo's acceptor, accepting; gives up if the address is not to be had."
  (handler-case
      (hunchentoot-recycling-taskmaster-demo:serve :port *port* :address *address*)
    ((or usocket:socket-error usocket:ns-error) (condition)
      (give-up "~A  Try other values of PORT and ADDRESS." condition))))

(handle-signals)
(defvar *acceptor* (start-demo))
(let ((acceptor *acceptor*))
  (format t "~&Serving on http://~A:~D/  (Ctrl-C stops it)~%"
          *address* (hunchentoot:acceptor-port acceptor)))
(finish-output)

(loop until *stop-asked*
      do (when (shiftf *reopening-asked* nil)
           (hunchentoot-recycling-taskmaster:reopen-logs *acceptor*))
         (sleep 1/10))

(format t "~&Stopping...~%")
(finish-output)
(hunchentoot-recycling-taskmaster-demo:stop)
(format t "Stopped.~%")
(finish-output)
(uiop:quit 0)
