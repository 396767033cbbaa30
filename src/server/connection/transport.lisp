(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Transports carry the octets of a buffered connection where a descriptor alone does not.
;;;;
;;;;   transport            reads and writes                            file
;;;;   none                 the descriptor itself                       buffered-*.lisp
;;;;   STREAM-TRANSPORT     a stream, which waits; the Lisp's own, or   stream-transport.lisp
;;;;                        one that a program has put around that
;;;;   TLS-TRANSPORT        OpenSSL, which does not wait                tls-transport.lisp

(defconstant +tls-handshake-record+ 22
  "The first octet of a TLS connection (RFC 8446, section 5.1).")

(defstruct (transport (:include opaque))
  "A carrier of the octets of a buffered connection."
  (source nil :read-only t)             ; the stream, or the TLS-SESSION, that it wraps
  ;; The buffered connection beneath it, which waits for the peer; NIL where the stream waits by
  ;; itself.
  (base nil :read-only t))

(defconstant +gathered-octets+ (* 16 1024)
  "A part of at least this many octets is written to a transport without a copy: a TLS record has at
most so many (RFC 8446, section 5.1).")

(defun gather-octets (parts buffer end)
  "Copies the first octets of PARTS, a list, to BUFFER, up to END.  Returns how many: fewer than
END only if there are no more, or a step has to be done before; 0 if a file ends too early."
  (loop with fill = 0
        for part in parts
        while (and (< fill end) (not (step-part-p part)))
        do (let* ((position (part-position part))
                  (next (+ fill (min (- end fill) (- (part-end part) position)))))
             (etypecase part
               (octets-part
                (replace buffer (octets-part-octets part)
                         :start1 fill :end1 next :start2 position))
               (file-part
                (unless (read-file-octets (file-part-file part) position buffer fill next)
                  (return fill))))
             (setf fill next))
        finally (return fill)))

(defun send-repeatedly (transport octets end)
  "Writes OCTETS up to END to TRANSPORT, record by record, as far as it takes them now.  Returns the
same as TRANSPORT-SEND."
  (loop with sent = 0
        for count = (transport-send transport octets sent end)
        do (cond ((plusp count) (incf sent count))
                 (t (return (if (plusp sent) sent count))))
        until (= sent end)
        finally (return sent)))

(defun send-gathered (transport parts)
  "Writes PARTS to TRANSPORT as TRANSPORT-SEND-PARTS does.  Gathers small parts, and octets of a
file, in a buffer: otherwise each would be a TLS record and a system call."
  (let ((part (first parts)))
    (if (and (octets-part-p part)
             (or (null (rest parts))
                 (>= (- (part-end part) (part-position part)) +gathered-octets+)))
        (transport-send transport (octets-part-octets part) (part-position part) (part-end part))
        (let* ((buffer (take-buffer :output))
               (count (gather-octets parts buffer (length buffer))))
          (prog1 (if (plusp count) (send-repeatedly transport buffer count) 0)
            (return-buffer :output buffer))))))

(defgeneric transport-receive (transport octets start end wanted)
  (:documentation "Reads octets of TRANSPORT to OCTETS from START, up to END.  A transport that
waits (see TRANSPORT-WAITS-P) reads WANTED octets, or up to the end of a line when WANTED is NIL.
Returns the same as RECEIVE-OCTETS."))

(defgeneric transport-send (transport octets start end)
  (:documentation "Writes OCTETS from START to END to TRANSPORT, as many as it takes now.  Returns
the same as SEND-OCTETS."))

(defgeneric transport-send-parts (transport parts)
  (:documentation "Writes PARTS, a list (see PART) of which the first has octets, to TRANSPORT, as
far as it takes them now.  Returns what SEND-PARTS expects of a sender.")
  (:method (transport parts)
    (send-gathered transport parts)))

(defgeneric transport-waits-p (transport)
  (:documentation "True when TRANSPORT-RECEIVE waits for its peer.")
  (:method (transport)
    (declare (ignore transport))
    nil))

(defgeneric transport-awaits (transport)
  (:documentation "The direction for which the descriptor of TRANSPORT, which does not wait, must be
ready after a read that got nothing: :INPUT or :OUTPUT.")
  (:method (transport)
    (declare (ignore transport))
    :input))

(defgeneric transport-drained-p (transport count)
  (:documentation "True when the last read of TRANSPORT, which does not wait and returned COUNT,
took all octets that had come.")
  (:method (transport count)
    (declare (ignore transport))
    (would-block-p count)))

(defgeneric transport-handshake (transport)
  (:documentation "Takes the handshake with which TRANSPORT begins as far as the received octets
allow.  Returns :DONE, also when it was done before; :INPUT or :OUTPUT, for which its descriptor
must be ready; or :FAILED and the reason, a string, or NIL where the peer is gone.")
  (:method (transport)
    (declare (ignore transport))
    :done))

(defgeneric transport-end (transport abort)
  (:documentation "Ends TRANSPORT and closes what it was made of.  Unless ABORT, sends the
protocol's farewell first.")
  (:method (transport abort)
    (close (transport-source transport) :abort abort)))

(defgeneric end-transport-when-forgotten (transport object)
  (:documentation "Registers a finalizer on OBJECT that ends TRANSPORT, and closes the descriptor
beneath it, if that has not happened before.")
  (:method (transport object)
    (declare (ignore transport object))
    nil))

(defgeneric transport-tls-handle (transport)
  (:documentation "The SSL object of OpenSSL by which TRANSPORT encrypts, a foreign pointer; NIL
where there is none.")
  (:method (transport)
    (declare (ignore transport))
    nil))

(defgeneric encrypt-io (base context)
  (:documentation "Makes, sets as (IO-ENCRYPTED BASE) and returns a buffered connection that carries
TLS by CONTEXT, a TLS-CONTEXT, on BASE, the buffered connection of a descriptor.  The handshake is
not begun."))

(defgeneric transport-ready-p (transport)
  (:documentation "True when a read of TRANSPORT, which waits, would return octets, or its end,
without waiting."))

(defgeneric note-socket-ready (transport)
  (:documentation "Notes for TRANSPORT, or NIL, that the socket beneath has octets or its end, which
LISTEN on its stream may not show.")
  (:method (transport)
    (declare (ignore transport))
    nil))

(defgeneric transport-for (stream base)
  (:documentation "The transport for STREAM, which a program has made of the stream of the buffered
connection BASE, or, if BASE is NIL, of a socket's stream."))
