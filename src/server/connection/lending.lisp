(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The Lisp's own stream beside a buffered connection.
;;;;
;;;; Programs and libraries do with the stream of a socket what only the Lisp's own streams can do:
;;;; set time limits, ask for the descriptor, read characters.  So whoever asks for the stream is
;;;; LENT one of those, which has a duplicate of the descriptor.  Both can be used; the invariants
;;;; are:
;;;;
;;;; - Octets that either of them has received and not handed out are handed out by the one that is
;;;;   read next, provided that a program asks for LENT again after the buffered connection was read.
;;;; - What was written to LENT leaves before what is written to the buffered connection afterwards.
;;;; - LENT has the time limit for both.
;;;; - While the engine has the connection, LENT is closed when that ends; when a program closes LENT,
;;;;   the connection ends with the request.  When the connection is given away, the buffered connection uses LENT's
;;;;   descriptor, and the engine closes its own: see IO-OWNER.

(defmethod octet-stream-descriptor ((stream descriptor-stream))
  (io-descriptor (stream-io stream)))

(defmethod accompany ((octet-stream descriptor-stream) stream)
  (let ((io (stream-io octet-stream)))
    (setf (lisp-stream-milliseconds stream) (io-milliseconds io)
          (io-lent io) stream)))

(defmethod hand-octets-over ((octet-stream descriptor-stream))
  (let* ((io (stream-io octet-stream))
         (start (io-start io))
         (end (io-end io)))
    (when (and (io-descriptor io) (open-stream-p (io-lent io)))
      (send-output io)
      (when (< start end)
        (put-read-ahead (io-lent io) (io-input io) start end)
        (setf (io-start io) end
              (io-kept io) 0)))))

(defun lent-milliseconds (io)
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
  "Like RECEIVE-OCTETS, of what LENT has received, if anything."
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
  "Sends what was written to the stream beside IO.  Signals DESCRIPTOR-BROKEN when that is closed."
  (forget-closed-lent io)
  (open-descriptor io)                  ; or it was closed
  (finish-output (io-lent io)))

(defun close-lent (io)
  "Closes the stream beside IO, if there is one; what was not flushed is lost."
  (when (io-lent io)
    (close (io-lent io) :abort t)))

(defun settle-lent (io)
  "At the end of a request: sends what was written to the stream beside IO, if there is one.  NIL
when the program has closed that, and there is nothing to be read or written any more."
  (cond ((null (io-lent io)) t)
        (t
         (forget-closed-lent io)
         (when (io-descriptor io)
           (finish-output (io-lent io))
           (setf (io-drained-p io) nil)     ; some may be left there
           t))))

(defun lent-open-p (io)
  "True when there is a stream beside IO, and no program has closed it."
  (and (io-lent io)
       (open-stream-p (io-lent io))))

(defun leave-to-lent (io)
  "Makes the descriptor of the stream beside IO that of IO, and lets programs have both, as they
expect it: blocking.  Sends what is unsent first.  The former descriptor is the caller's to close."
  (send-unsent io)
  (setf (io-queue io) (make-send-queue)     ; the other is the connection's
        (io-descriptor io) (lisp-stream-descriptor (io-lent io))
        (io-owner io) :lent)
  (set-blocking (io-descriptor io)))
