(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Reading request heads from a buffered connection, without waiting for the peer.

(defun take-parser (limits)
  "A fresh parser of request heads under LIMITS."
  (let ((parser (and *worker-buffers* (shiftf (worker-buffers-parser *worker-buffers*) nil))))
    (if parser
        (reset-parser parser limits)
        (make-parser limits))))

(defun return-parser (parser)
  "Keeps PARSER for the next head that the worker reads."
  (when *worker-buffers*
    (setf (worker-buffers-parser *worker-buffers*) parser)))

(defun read-head (io parser)
  "Continues reading a head from IO with PARSER.  Returns the head of a request; :NONE when it is
incomplete, to be called again with the same PARSER; :END when it will not come.  Does not block.
Signals PROTOCOL-ERROR and DESCRIPTOR-BROKEN."
  (drop-head io)                        ; if READ-HEAD-AHEAD has left it there
  (loop
    (when (< (io-start io) (io-end io))
      (multiple-value-bind (head position)
          (parse-head parser (io-input io) (io-start io) (io-end io))
        (setf (io-start io) position)
        (when head
          (return head))))
    (let ((more (fill-input io :more)))
      (unless (eq more :some)
        (return more)))))

(defun read-head-ahead (io parser)
  "Like READ-HEAD, but leaves the octets of the head in IO for the first reader, or until DROP-HEAD.
Until then, calls with the same IO need the same PARSER."
  (loop
    (let ((from (+ (io-start io) (io-kept io))))
      (when (< from (io-end io))
        (multiple-value-bind (head position)
            (parse-head parser (io-input io) from (io-end io))
          (setf (io-kept io) (- position (io-start io)))
          (when head
            (return head)))))
    (let ((more (fill-input io :more)))
      (unless (eq more :some)
        (return more)))))

(defun drop-head (io)
  "Drops the head that READ-HEAD-AHEAD has left in IO."
  (incf (io-start io) (shiftf (io-kept io) 0)))

(defun input-left-p (io)
  "True when IO has octets that were received and not read."
  (< (io-start io) (io-end io)))

(defun begin-anew (io)
  "Makes the next READ-HEAD-AHEAD parse the octets in IO from the beginning."
  (setf (io-kept io) 0))
