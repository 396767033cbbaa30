(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The Lisp's own stream beside a wire.
;;;;
;;;; Programs and libraries do with the stream of a socket what only the Lisp's own streams can do:
;;;; set time limits, ask for the descriptor, read characters.  So whoever asks for the stream is LENT
;;;; one of those, which has a duplicate of the descriptor.  Both can be used; the invariants are:
;;;;
;;;; - Octets that either of them has received and not handed out are handed out by the one that is
;;;;   read next, provided that a program asks for LENT again after the wire was read.
;;;; - What was written to LENT leaves before what is written to the wire afterwards.
;;;; - LENT has the time limit for both.
;;;; - While the engine has the connection, LENT is closed when that ends; when a program closes LENT,
;;;;   the connection ends with the request.  When the connection is given away, the wire uses LENT's
;;;;   descriptor, and the engine closes its own: see WIRE-OWNER.

(defmethod octet-stream-descriptor ((stream descriptor-stream))
  (wire-descriptor (stream-wire stream)))

(defmethod accompany ((octet-stream descriptor-stream) stream)
  (let ((wire (stream-wire octet-stream)))
    (setf (lisp-stream-milliseconds stream) (wire-milliseconds wire)
          (wire-lent wire) stream)))

(defmethod hand-octets-over ((octet-stream descriptor-stream))
  (let* ((wire (stream-wire octet-stream))
         (start (wire-start wire))
         (end (wire-end wire)))
    (when (and (wire-descriptor wire) (open-stream-p (wire-lent wire)))
      (send-output wire)
      (when (< start end)
        (put-read-ahead (wire-lent wire) (wire-input wire) start end)
        (setf (wire-start wire) end
              (wire-kept wire) 0)))))

(defun lent-milliseconds (wire)
  (let ((lent (wire-lent wire)))
    (if (open-stream-p lent)
        (lisp-stream-milliseconds lent)
        (wire-milliseconds wire))))

(defun forget-closed-lent (wire)
  "Makes WIRE a closed one when a program has closed the stream beside it."
  (when (and (wire-lent wire)
             (wire-descriptor wire)
             (not (open-stream-p (wire-lent wire))))
    (drop-descriptor wire)))

(defun receive-beside-lent (wire octets start end)
  "Like RECEIVE-OCTETS, of what LENT has received, if anything."
  (forget-closed-lent wire)
  (if (null (wire-descriptor wire))
      0
      (let* ((lent (wire-lent wire))
             (ahead (take-read-ahead lent))
             (count (min (length ahead) (- end start))))
        (cond ((zerop count)
               (receive-octets (wire-descriptor wire) octets start end))
              (t
               (replace octets ahead :start1 start :end2 count)
               (when (< count (length ahead))
                 (put-read-ahead lent ahead count (length ahead)))
               count)))))

(defun flush-lent (wire)
  "Sends what was written to the stream beside WIRE.  Signals DESCRIPTOR-BROKEN when that is closed."
  (forget-closed-lent wire)
  (open-descriptor wire)                ; or it was closed
  (finish-output (wire-lent wire)))

(defun close-lent (wire)
  "Closes the stream beside WIRE, if there is one; what was not flushed is lost."
  (when (wire-lent wire)
    (close (wire-lent wire) :abort t)))

(defun settle-lent (wire)
  "At the end of a request: sends what was written to the stream beside WIRE, if there is one.  NIL when
the program has closed that, and there is nothing to be read or written any more."
  (cond ((null (wire-lent wire)) t)
        (t
         (forget-closed-lent wire)
         (when (wire-descriptor wire)
           (finish-output (wire-lent wire))
           (setf (wire-drained-p wire) nil) ; some may be left there
           t))))

(defun lent-open-p (wire)
  "True when there is a stream beside WIRE, and no program has closed it."
  (and (wire-lent wire)
       (open-stream-p (wire-lent wire))))

(defun leave-to-lent (wire)
  "Makes the descriptor of the stream beside WIRE that of WIRE, and lets programs have both, as they
expect it: blocking.  Sends what is unsent first.  The former descriptor is the caller's to close."
  (send-unsent wire)
  (setf (wire-queue wire) (make-send-queue) ; the other is the connection's
        (wire-descriptor wire) (lisp-stream-descriptor (wire-lent wire))
        (wire-owner wire) :lent)
  (set-blocking (wire-descriptor wire)))
