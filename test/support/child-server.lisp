(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A server in a process of its own, with a small heap: what fills that ends the server and not the
;;; tests.

(defparameter *child-program*
  "(hunchentoot-recycling-taskmaster-scripts:load-own \"hunchentoot-recycling-taskmaster\")
   (in-package #:cl-user)
   (defun answer-at (path function)
     (push (hunchentoot:create-prefix-dispatcher path function) hunchentoot:*dispatch-table*))
   (answer-at \"/hello\" (lambda () \"hello\"))
   (answer-at \"/heap\" (lambda ()
                         (hunchentoot-recycling-taskmaster.platform:collect-garbage)
                         (princ-to-string (hunchentoot-recycling-taskmaster.platform:heap-used))))
   ~A
   (hunchentoot:start (make-instance 'hunchentoot-recycling-taskmaster:parallel-easy-acceptor
                                     :address \"127.0.0.1\" :port ~D :access-log-destination nil
                                     :message-log-destination nil ~{~S ~}))
   (read-line *standard-input* nil) ; its end is that of the tests
   (uiop:quit 0 nil)"
  "What a child evaluates: further forms, its port, and the arguments of its acceptor go into it.")

(defun first-ephemeral-port ()
  "The lowest port that the system chooses by itself, for clients and for listeners without one."
  (let ((file "/proc/sys/net/ipv4/ip_local_port_range"))
    (if (probe-file file)
        (with-open-file (stream file)
          (parse-integer (read-line stream) :junk-allowed t))
        32768)))

(defun port-free-p (port)
  (handler-case (progn (usocket:socket-close
                        (usocket:socket-listen "127.0.0.1" port :reuse-address t))
                       t)
    (error () nil)))

(defvar *ports-random-state* (make-random-state t)
  "Not that of the tests: several processes may run them at the same time.")

(defvar *free-ports* '()
  "The ports that FREE-PORT has returned.")

(defun free-port ()
  "A port of this machine for another program, which was free just now.  The system gives it to
nobody meanwhile."
  (let* ((lowest 10000) (count (max 1000 (- (first-ephemeral-port) lowest))))
    (loop repeat 1000
          do (let ((port (+ lowest (random count *ports-random-state*))))
               (when (and (not (member port *free-ports*))
                          (port-free-p port))
                 (push port *free-ports*)
                 (return port)))
          finally (error "No port is free."))))

(defun listening-p (port)
  (handler-case (progn (usocket:socket-close (usocket:socket-connect "127.0.0.1" port))
                       t)
    (error () nil)))

(defun launch-child (program megabytes)
  "Starts a Lisp with a heap of MEGABYTES that loads PROGRAM, a pathname; returns its process.  It
loads the library itself, since what comes from a core takes more of a small heap."
  (uiop:launch-program
   (list (lisp-runtime) #+sbcl "--core" #+sbcl (uiop:native-namestring sb-ext:*core-pathname*)
         "--noinform" "--disable-ldb" "--lose-on-corruption"
         "--dynamic-space-size" (princ-to-string megabytes) "--end-runtime-options"
         "--non-interactive"
         "--load" (project-file "scripts/prelude.lisp")
         "--load" (uiop:native-namestring program))
   :input :stream))

(defun call-with-child-server (function &key (megabytes 256) (forms "") initargs)
  "Calls FUNCTION with the port of a server in a process of its own, whose heap has MEGABYTES, and
whose acceptor is made with INITARGS, of constants.  Its handlers are /hello, /heap, which tells how
much of that is in use, and what FORMS, a string, define with ANSWER-AT."
  (uiop:with-temporary-file (:stream stream :pathname program :type "lisp")
    (let ((port (free-port)))
      (format stream *child-program* forms port initargs)
      (finish-output stream)
      (let ((process (launch-child program megabytes)))
        (unwind-protect
             (progn
               (eventually ("a child to serve" :patience (* 30 *patience*)) ; it loads all first
                 (or (listening-p port) (not (uiop:process-alive-p process))))
               (funcall function port)
               (is-true (uiop:process-alive-p process) "The server has ended."))
          (uiop:terminate-process process :urgent t)
          (uiop:wait-process process)
          (close (uiop:process-info-input process)))))))

(defun child-heap (port)
  "How many octets of its heap the child on PORT uses after garbage was collected."
  (with-connection (connection port)
    (parse-integer (exchange-text connection "/heap"))))

(defun child-answers-p (port)
  "True when the child on PORT answers a new client."
  (with-connection (connection port)
    (equal "hello" (exchange-text connection "/hello"))))

(defun connections-for-tests (wanted)
  "How many connections, WANTED at most, a test may have open: usocket waits by select(2), which
takes descriptors below 1,024."
  (min wanted 900 (- (descriptor-limit) 124)))
