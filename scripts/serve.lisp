;;;; Serves examples/demo.lisp until Ctrl-C (SIGINT) or SIGTERM, then stops in
;;;; order and exits with 0.  PORT and ADDRESS say where.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(defun port ()
  "The number in PORT; leaves if there is none."
  (let ((number (ignore-errors (parse-integer (setting "PORT" "4242")))))
    (if (typep number '(integer 0 65535))
        number
        (leave "PORT is ~S; it must be a number from 0 to 65535." (setting "PORT")))))

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

(defun handle-signals ()
  "Lets SIGINT and SIGTERM call ASK-STOP."
  #+sbcl (dolist (signal (list sb-unix:sigint sb-unix:sigterm))
           (sb-sys:enable-interrupt signal #'ask-stop))
  #+ecl (dolist (signal (list ext:+sigint+ ext:+sigterm+))
          (ext:set-signal-handler signal 'ask-stop))
  #+abcl (let ((handler (java:jinterface-implementation "sun.misc.SignalHandler"
                                                        "handle" #'ask-stop)))
           (dolist (name '("INT" "TERM"))
             (java:jstatic "handle" "sun.misc.Signal"
                           (java:jnew "sun.misc.Signal" name) handler))))

(defun start-demo ()
  "The demo's acceptor, accepting; leaves if the address is not to be had."
  (handler-case
      (hunchentoot-recycling-taskmaster-demo:serve :port *port* :address *address*)
    ((or usocket:socket-error usocket:ns-error) (condition)
      (leave "~A  Try other values of PORT and ADDRESS." condition))))

(handle-signals)
(let ((acceptor (start-demo)))
  (format t "~&Serving on http://~A:~D/  (Ctrl-C stops it)~%"
          *address* (hunchentoot:acceptor-port acceptor)))
(finish-output)

(loop until *stop-asked* do (sleep 1/10))

(format t "~&Stopping...~%")
(finish-output)
(hunchentoot-recycling-taskmaster-demo:stop)
(format t "Stopped.~%")
(finish-output)
(uiop:quit 0)
