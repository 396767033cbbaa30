(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Request heads off a wire, without waiting for the peer.

(defun take-parser (limits)
  "A parser of request heads under LIMITS that has read nothing."
  (let ((parser (and *kit* (shiftf (kit-parser *kit*) nil))))
    (if parser
        (reset-parser parser limits)
        (make-parser limits))))

(defun return-parser (parser)
  "Keeps PARSER for the next head that the worker reads."
  (when *kit*
    (setf (kit-parser *kit*) parser)))

(defun read-head (wire parser)
  "Reads on in WIRE with PARSER.  Returns the head of a request; :NONE when not all of it has
come, to be called again with the same PARSER; :END when it will not come.  Does not block.
Signals PROTOCOL-ERROR and DESCRIPTOR-BROKEN."
  (drop-head wire)                      ; if it was read ahead so far
  (loop
    (when (< (wire-start wire) (wire-end wire))
      (multiple-value-bind (head position)
          (parse-head parser (wire-input wire) (wire-start wire) (wire-end wire))
        (setf (wire-start wire) position)
        (when head
          (return head))))
    (let ((more (fill-more-input wire)))
      (unless (eq more :some)
        (return more)))))

(defun read-head-ahead (wire parser)
  "Like READ-HEAD, but leaves the octets of the head in WIRE, to be read by whoever comes first, or
dropped by DROP-HEAD.  With the same WIRE, PARSER must be the same until then."
  (loop
    (let ((from (+ (wire-start wire) (wire-kept wire))))
      (when (< from (wire-end wire))
        (multiple-value-bind (head position)
            (parse-head parser (wire-input wire) from (wire-end wire))
          (setf (wire-kept wire) (- position (wire-start wire)))
          (when head
            (return head)))))
    (let ((more (fill-more-input wire)))
      (unless (eq more :some)
        (return more)))))

(defun drop-head (wire)
  "Drops the head in WIRE that READ-HEAD-AHEAD has returned."
  (incf (wire-start wire) (shiftf (wire-kept wire) 0)))

(defun input-left-p (wire)
  "True when WIRE has received octets that nobody has read."
  (< (wire-start wire) (wire-end wire)))

(defun begin-anew (wire)
  "Lets what READ-HEAD-AHEAD has parsed in WIRE be parsed anew."
  (setf (wire-kept wire) 0))
