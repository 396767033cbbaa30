(in-package #:hunchentoot-recycling-taskmaster)

;;;; The backtrace of an error in a handler, for the log and the error page.
;;;;
;;;; Hunchentoot has one made of each such error, with all elements of all arguments, although they
;;;; may be the octets of a large body: a client that leaves amid an upload of 10 MiB costs it a
;;;; gigabyte, and with SBCL's usual heap the process.  Besides, what clients send is not for logs,
;;;; nor for the error page of another: octets are not shown at all, nor what is in our structures
;;;; (see OPAQUE).

(defparameter *backtrace-print-length* 100
  "How many elements of a list a backtrace shows.")

(defun short-backtrace (hunchentoots)
  "A backtrace of the caller, a string: what HUNCHENTOOTS, a function, returns where the acceptor is
not ours, else one with no more than a part of long sequences, and without the frames of the server
below the handler."
  (if (typep hunchentoot:*acceptor* 'parallel-acceptor)
      (call-for-backtrace hunchentoots *backtrace-print-length* 'call-as-handler)
      (funcall hunchentoots)))

(wrap-backtrace-maker 'short-backtrace)
