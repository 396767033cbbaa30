(in-package #:hunchentoot-recycling-taskmaster)

;;;; The backtrace of an error in a handler, for the log and the error page.
;;;;
;;;; Hunchentoot prints all elements of all arguments in it, even the octets of a large body.  A
;;;; client that leaves during an upload of 10 MiB costs it a gigabyte, and with SBCL's usual heap
;;;; the process.  Besides, what clients send does not belong into logs, nor into the error page of
;;;; another client: octets and the contents of our structures (see OPAQUE) are not shown.

(defun short-backtrace (hunchentoots)
  "A backtrace of the caller, a string.  With an acceptor of ours, it has only the beginning of long
sequences, and no frames of the server below the handler; else HUNCHENTOOTS, a function, makes it."
  (if (typep hunchentoot:*acceptor* 'parallel-acceptor)
      (call-for-backtrace hunchentoots *backtrace-print-length* 'call-as-handler)
      (funcall hunchentoots)))

(wrap-backtrace-maker 'short-backtrace)
