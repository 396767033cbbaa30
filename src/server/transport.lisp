(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What carries the octets of a wire where that is not a descriptor alone.
;;;;
;;;;   transport            reads and writes                            file
;;;;   none                 the descriptor itself                       wire*.lisp
;;;;   STREAM-TRANSPORT     a stream, which waits; the Lisp's own, or   stream-transport.lisp
;;;;                        one that a program has put around that
;;;;   TLS-TRANSPORT        OpenSSL, which does not wait                tls-transport.lisp

(defstruct (transport (:include opaque))
  "What carries octets."
  (source nil :read-only t)             ; the stream that it was made for
  ;; The wire beneath it, on which it waits for its peer; NIL where its stream waits by itself.
  (base nil :read-only t))

(defgeneric transport-receive (transport octets start end wanted)
  (:documentation "Reads what TRANSPORT has to OCTETS from START, up to END.  Where it waits, see
TRANSPORT-WAITS-P, it reads WANTED octets, or up to the end of a line when that is NIL.  Returns what
RECEIVE-OCTETS does."))

(defgeneric transport-send (transport octets start end)
  (:documentation "Writes OCTETS from START to END to TRANSPORT, as many as that takes now.  Returns what
SEND-OCTETS does."))

(defgeneric transport-waits-p (transport)
  (:documentation "True when TRANSPORT-RECEIVE waits for its peer.")
  (:method (transport)
    (declare (ignore transport))
    nil))

(defgeneric transport-awaits (transport)
  (:documentation "What TRANSPORT, which does not wait and was read in vain, has to wait for: its descriptor to
have :INPUT, or to take :OUTPUT.")
  (:method (transport)
    (declare (ignore transport))
    :input))

(defgeneric transport-ready-p (transport)
  (:documentation "True when TRANSPORT, which waits, has octets, or its end, without waiting."))

(defgeneric transport-for (stream base)
  (:documentation "What carries octets where programs get STREAM, made of the stream of the wire BASE, or, if
that is NIL, of a socket's."))
