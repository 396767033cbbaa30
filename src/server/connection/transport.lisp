(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What carries the octets of a buffered connection where that is not a descriptor alone.
;;;;
;;;;   transport            reads and writes                            file
;;;;   none                 the descriptor itself                       wire*.lisp
;;;;   STREAM-TRANSPORT     a stream, which waits; the Lisp's own, or   stream-transport.lisp
;;;;                        one that a program has put around that
;;;;   TLS-TRANSPORT        OpenSSL, which does not wait                tls-transport.lisp

(defconstant +tls-handshake-record+ 22
  "The first octet of a TLS connection (RFC 8446, section 5.1).")

(defstruct (transport (:include opaque))
  "What carries octets."
  (source nil :read-only t)             ; the stream that it was made for
  ;; The buffered connection beneath it, on which it waits for its peer; NIL where its stream waits
  ;; by itself.
  (base nil :read-only t))

(defgeneric transport-receive (transport octets start end wanted)
  (:documentation "Reads what TRANSPORT has to OCTETS from START, up to END.  Where it waits, see
TRANSPORT-WAITS-P, it reads WANTED octets, or up to the end of a line when that is NIL.  Returns
what RECEIVE-OCTETS does."))

(defgeneric transport-send (transport octets start end)
  (:documentation "Writes OCTETS from START to END to TRANSPORT, as many as that takes now.  Returns
what SEND-OCTETS does."))

(defgeneric transport-send-parts (transport parts)
  (:documentation "Writes what TRANSPORT takes now of PARTS, a list (see PART), of which the first
has octets.  Returns what SEND-PARTS wants of a function.")
  (:method (transport parts)
    (send-gathered transport parts)))

(defgeneric transport-waits-p (transport)
  (:documentation "True when TRANSPORT-RECEIVE waits for its peer.")
  (:method (transport)
    (declare (ignore transport))
    nil))

(defgeneric transport-awaits (transport)
  (:documentation "What TRANSPORT, which does not wait and was read in vain, has to wait for: its
descriptor to have :INPUT, or to take :OUTPUT.")
  (:method (transport)
    (declare (ignore transport))
    :input))

(defgeneric transport-drained-p (transport count)
  (:documentation "True when TRANSPORT, which does not wait, had handed out all that had come when
it was read last; then TRANSPORT-RECEIVE returned COUNT.")
  (:method (transport count)
    (declare (ignore transport))
    (would-block-p count)))

(defgeneric transport-handshake (transport)
  (:documentation "Takes the handshake with which TRANSPORT begins as far as what has come allows.
Returns :DONE, also when it was done before; :INPUT or :OUTPUT, which its descriptor has to be ready
for; or :FAILED, and as second value a string that says why, or NIL where the peer is gone.")
  (:method (transport)
    (declare (ignore transport))
    :done))

(defgeneric transport-end (transport abort)
  (:documentation "Says good-bye to the peer of TRANSPORT, unless ABORT, and closes what it was made
of.")
  (:method (transport abort)
    (close (transport-source transport) :abort abort)))

(defgeneric end-transport-when-forgotten (transport object)
  (:documentation "Has TRANSPORT ended, and the descriptor beneath it closed, when nobody has OBJECT
any more, and nobody has ended it before.")
  (:method (transport object)
    (declare (ignore transport object))
    nil))

(defgeneric transport-tls-handle (transport)
  (:documentation "The SSL object of OpenSSL, a foreign pointer, by which TRANSPORT encrypts; NIL
where there is none.")
  (:method (transport)
    (declare (ignore transport))
    nil))

(defgeneric encrypt-io (base context)
  (:documentation "Makes a buffered connection that TLS by CONTEXT, a TLS-CONTEXT, carries on BASE,
the buffered connection of a descriptor, before the handshake: it is (IO-ENCRYPTED BASE) then, and
returned."))

(defgeneric transport-ready-p (transport)
  (:documentation "True when TRANSPORT, which waits, has octets, or its end, without waiting."))

(defgeneric note-socket-ready (transport)
  (:documentation "Tells TRANSPORT, or NIL, that the socket beneath has octets, or its end, of which
what TRANSPORT is made of may not tell.  What it returns does not matter.")
  (:method (transport)
    (declare (ignore transport))
    nil))

(defgeneric transport-for (stream base)
  (:documentation "What carries octets where programs get STREAM, made of the stream of the buffered
connection BASE, or, if that is NIL, of a socket's."))
