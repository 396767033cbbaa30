(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Lending: a stream of the Lisp beside a buffered connection.
;;;;
;;;; Programs and libraries do things with the stream of a socket that only the streams of the Lisp
;;;; support: they set time limits, ask for the descriptor, read characters.  So a program that asks
;;;; for the stream gets one of those, LENT, with a duplicate of the descriptor.  Both can be used,
;;;; with these invariants:
;;;;
;;;; - Octets that one of them has received, and that were not read, can be read from the other.
;;;;   To read octets of the buffered connection from LENT, a program asks for LENT again.
;;;; - Octets written to LENT are sent before octets written to the buffered connection later.
;;;; - LENT has the time limit for both.
;;;; - The end of the connection closes LENT.  If a program closes LENT, the connection ends with
;;;;   the request.  When the connection is given away, the buffered connection uses the
;;;;   descriptor of LENT, and the engine closes its own: see IO-OWNER.

(defun lent-milliseconds (io)
  "The limit of one wait for the peer of IO, in milliseconds: that of the stream beside it while
that is open."
  (let ((lent (io-lent io)))
    (if (open-stream-p lent)
        (lisp-stream-milliseconds lent)
        (io-milliseconds io))))

(defun forget-closed-lent (io)
  "Makes IO a closed one when a program has closed the stream beside it."
  (when (and (io-lent io)
             (io-descriptor io)
             (not (open-stream-p (io-lent io))))
    (drop-descriptor io)))

(defun receive-beside-lent (io octets start end)
  "Like RECEIVE-OCTETS; octets that the stream beside IO has read ahead come first."
  (forget-closed-lent io)
  (if (null (io-descriptor io))
      0
      (let* ((lent (io-lent io))
             (ahead (take-read-ahead lent))
             (count (min (length ahead) (- end start))))
        (cond ((zerop count)
               (receive-octets (io-descriptor io) octets start end))
              (t
               (replace octets ahead :start1 start :end2 count)
               (when (< count (length ahead))
                 (put-read-ahead lent ahead count (length ahead)))
               count)))))

(defun flush-lent (io)
  "Sends the output of the stream beside IO.  Signals DESCRIPTOR-BROKEN when that is closed."
  (forget-closed-lent io)
  (open-descriptor io)                  ; signals when it was closed
  (finish-output (io-lent io)))

(defun close-lent (io)
  "Closes the stream beside IO, if there is one.  Unflushed output is lost."
  (when (io-lent io)
    (close (io-lent io) :abort t)))

(defun settle-lent (io)
  "At the end of a request, sends the output of the stream beside IO, if there is one.  Returns NIL
when a program has closed that stream, so that the connection is over."
  (cond ((null (io-lent io)) t)
        (t
         (forget-closed-lent io)
         (when (io-descriptor io)
           (finish-output (io-lent io))
           (setf (io-drained-p io) nil)     ; the stream may have input
           t))))

(defun lent-open-p (io)
  "True when there is a stream beside IO, and it is open."
  (and (io-lent io)
       (open-stream-p (io-lent io))))
