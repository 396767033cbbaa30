(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Request heads off a buffered connection, without waiting for the peer.

(defun take-parser (limits)
  "A parser of request heads under LIMITS that has read nothing."
  (let ((parser (and *worker-buffers* (shiftf (worker-buffers-parser *worker-buffers*) nil))))
    (if parser
        (reset-parser parser limits)
        (make-parser limits))))

(defun return-parser (parser)
  "Keeps PARSER for the next head that the worker reads."
  (when *worker-buffers*
    (setf (worker-buffers-parser *worker-buffers*) parser)))

(defun read-head (io parser)
  "Reads on in IO with PARSER.  Returns the head of a request; :NONE when not all of it has
come, to be called again with the same PARSER; :END when it will not come.  Does not block.
Signals PROTOCOL-ERROR and DESCRIPTOR-BROKEN."
  (drop-head io)                        ; if it was read ahead so far
  (loop
    (when (< (io-start io) (io-end io))
      (multiple-value-bind (head position)
          (parse-head parser (io-input io) (io-start io) (io-end io))
        (setf (io-start io) position)
        (when head
          (return head))))
    (let ((more (fill-more-input io)))
      (unless (eq more :some)
        (return more)))))

(defun read-head-ahead (io parser)
  "Like READ-HEAD, but leaves the octets of the head in IO, to be read by whoever comes first, or
dropped by DROP-HEAD.  With the same IO, PARSER must be the same until then."
  (loop
    (let ((from (+ (io-start io) (io-kept io))))
      (when (< from (io-end io))
        (multiple-value-bind (head position)
            (parse-head parser (io-input io) from (io-end io))
          (setf (io-kept io) (- position (io-start io)))
          (when head
            (return head)))))
    (let ((more (fill-more-input io)))
      (unless (eq more :some)
        (return more)))))

(defun drop-head (io)
  "Drops the head in IO that READ-HEAD-AHEAD has returned."
  (incf (io-start io) (shiftf (io-kept io) 0)))

(defun input-left-p (io)
  "True when IO has received octets that nobody has read."
  (< (io-start io) (io-end io)))

(defun begin-anew (io)
  "Lets what READ-HEAD-AHEAD has parsed in IO be parsed anew."
  (setf (io-kept io) 0))
