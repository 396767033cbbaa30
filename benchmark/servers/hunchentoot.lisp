;;;; Serves with any Hunchentoot acceptor.  Loaded by the child process of a
;;;; rival, after the system that the rival needs.

(load (merge-pathnames "acceptor.lisp" *load-truename*))

(defun make-handler (delay-ms)
  "A handler that answers Hey! after DELAY-MS milliseconds, as one would write it:
a blocking sleep, and none at all where there is no delay."
  (let ((seconds (/ delay-ms 1000f0)))
    (if (plusp delay-ms)
        (lambda ()
          (setf (hunchentoot:content-type*) "text/plain")
          (sleep seconds)
          "Hey!")
        (lambda ()
          (setf (hunchentoot:content-type*) "text/plain")
          "Hey!"))))

(defun make-dispatchers (delay-ms slow-ms files)
  "Dispatchers for /yo with a delay of DELAY-MS, /slow with SLOW-MS, the directory FILES and
uploads.  They are asked in this order."
  (list (hunchentoot:create-prefix-dispatcher "/yo" (make-handler delay-ms))
        (hunchentoot:create-prefix-dispatcher "/slow" (make-handler slow-ms))
        (file-dispatcher files)
        (upload-dispatcher)))

(defun start-acceptor (port delay-ms slow-ms files backlog acceptor-class &rest initargs)
  "Start and return an instance of ACCEPTOR-CLASS, made with INITARGS, that listens on PORT of
127.0.0.1 with BACKLOG and serves what MAKE-DISPATCHERS makes of the other arguments."
  (apply #'start-with (make-dispatchers delay-ms slow-ms files) port backlog acceptor-class
         initargs))

(defun serve (&rest arguments)
  "Call START-ACCEPTOR with ARGUMENTS and never return."
  (serve-for-ever #'start-acceptor arguments))
