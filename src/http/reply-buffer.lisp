(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The buffer that replies are made in, and the checked entries to put.lisp.
;;;
;;; Invariant: octets of an output up to its fill are done; those behind it are free.
;;; Each function that appends moves the fill last, so what signals has appended nothing.

(define-record (output (:include opaque) (:constructor %make-output (octets)) (:copier nil))
  "Replies on their way to the wire: octets in a vector that grows."
  (octets nil :type octets
   :documentation "The vector that the octets of OUTPUT are in.  It is another one after
OUTPUT has grown.")
  (fill 0 :type index
   :documentation "How many octets OUTPUT has.  Set it back to take octets away."))

(defconstant +output-size+ 4096
  "The octets an output has room for at first: most replies and a short page.")

(defconstant +kept-output-size+ (* 128 1024)
  "An output that has grown beyond this gives its octets back when it is reset.")

(defun make-output (&optional (octets (make-octets +output-size+)))
  "An empty OUTPUT; until it has grown, it is in OCTETS."
  (%make-output octets))

(defun reset-output (output)
  "Empties OUTPUT; returns it.  One large reply does not keep its memory for ever."
  (check-type output output)
  (when (> (length (output-octets output)) +kept-output-size+)
    (setf (output-octets output) (make-octets +output-size+)))
  (setf (output-fill output) 0)
  output)

(defun give-octets-away (output)
  "Leaves the octets of OUTPUT, which is empty afterwards, to whoever has them."
  (setf (output-octets output) (make-octets +output-size+)
        (output-fill output) 0)
  (values))

(defun grow-output (output size)
  "Makes room in OUTPUT for SIZE octets in all; returns its vector."
  (let ((grown (make-octets (max size (* 2 (length (output-octets output)))))))
    (replace grown (output-octets output) :end2 (output-fill output))
    (setf (output-octets output) grown)))

(declaim (inline reserve))
(defun reserve (output count)
  "Makes room in OUTPUT for COUNT more octets; returns its vector and its fill."
  (declare (type output output) (type index count))
  (let ((fill (output-fill output))
        (octets (output-octets output)))
    (values (if (<= (+ fill count) (length octets))
                octets
                (grow-output output (+ fill count)))
            fill)))

(defun simple-text (string)
  "STRING as a SIMPLE-TEXT."
  (if (typep string 'simple-text)
      string
      (coerce string 'text)))

(defmacro append-to ((output octets position count) &body body)
  "Makes room in OUTPUT for COUNT octets.  BODY puts some into OCTETS at POSITION and
answers where they end, which becomes the fill."
  `(multiple-value-bind (,octets ,position) (reserve ,output ,count)
     (setf (output-fill ,output) (progn ,@body))))

;;; Octets

(defun encode-by (output count function)
  "Appends COUNT octets to OUTPUT, which FUNCTION is to put into a vector from a start to an end:
its three arguments.  FUNCTION returns true when it has; else nothing is appended.  Returns what it
returned."
  (declare (type output output) (type index count) #.*plain-policy*)
  (multiple-value-bind (octets start) (reserve output count)
    (let ((end (+ start count)))
      (when (funcall function octets start end)
        (setf (output-fill output) end)
        t))))

(defun encode-octets (output source &optional (start 0) (end (length source)))
  "Appends the octets of SOURCE from START below END to OUTPUT."
  (declare (type output output) #.*plain-policy*)
  (check-range source start end)
  (append-to (output octets position (- end start))
    (put-octets octets position source start end))
  (values))

(defparameter *body-copy-limit* (* 64 1024)
  "The most octets of a body that ENCODE-BODY copies.  Copying as much takes less time
than one more call of the system; and one segment with head and body is not delayed by a
client's late acknowledgement of the head.")

(defun encode-body (output body &optional (start 0) (end (length body)))
  "Appends the octets of BODY from START below END to OUTPUT if there are at most
*BODY-COPY-LIMIT*.  True if it did; else the caller writes that range after OUTPUT."
  (declare (type output output) #.*plain-policy*)
  (check-range body start end)
  (when (<= (- end start) (the index *body-copy-limit*))
    (encode-octets output body start end)
    t))

;;; Strings

(defun encoded-length (string encoding)
  "How many octets STRING has in ENCODING, :UTF-8 or :LATIN-1; NIL if it has a character
that ENCODING has not.  In UTF-8 a lone surrogate is replaced by U+FFFD (RFC 3629,
section 3), so there is always an answer."
  (declare (type string string) #.*plain-policy*)
  (let* ((text (simple-text string))
         (end (codes-end text (ecase encoding (:utf-8 128) (:latin-1 256)))))
    (declare (type simple-text text))
    (cond ((= end (length text)) end)
          ((eq encoding :utf-8) (+ end (utf-8-size (coerce text 'text) end))))))

(defun append-text (output text encoding size)
  "Appends TEXT in ENCODING, said to be SIZE octets, to OUTPUT.  True if that was so."
  (declare (type output output) (type simple-text text) (type index size) #.*plain-policy*)
  (multiple-value-bind (octets position) (reserve output size)
    (let* ((limit (+ position size))
           (end (cond ((= size (length text))
                       (put-codes octets position text (if (eq encoding :utf-8) 128 256)))
                      ((eq encoding :utf-8)
                       (put-utf-8 octets position limit (coerce text 'text))))))
      (when (eql end limit)
        (setf (output-fill output) limit)
        t))))

(defun encode-string (output string encoding &optional size)
  "Appends STRING in ENCODING, :UTF-8 or :LATIN-1, to OUTPUT.  True if it did; NIL if
STRING has a character that ENCODING has not, and then OUTPUT is as it was.  SIZE is what
ENCODED-LENGTH has answered, unless it has not been asked.  Signals an error if STRING has not as
many octets."
  (declare (type output output) (type string string) (type (or null index) size)
           #.*plain-policy*)
  (let* ((text (simple-text string))
         (size (or size (encoded-length text encoding))))
    (when size
      (or (append-text output text encoding size)
          (error "A string has not the ~D octets in ~A that it should have." size encoding)))))

(defun encode-decimal (output number)
  "Appends the decimal digits of NUMBER, a CONTENT-SIZE, to OUTPUT."
  (declare (type output output) (type content-size number) #.*plain-policy*)
  (append-to (output octets position 19)
    (put-decimal octets position number))
  (values))

;;; Chunks.  RFC 9112, section 7.1: chunk = chunk-size CRLF chunk-data CRLF

(defparameter *last-chunk* (coerce '(48 13 10 13 10) 'octets)
  "The chunk of size 0 and no trailer field.")

(defun encode-chunk-start (output size)
  "Appends the size line of a chunk of SIZE octets, more than 0, to OUTPUT.  The caller
sends as many octets and then what ENCODE-CHUNK-END appends."
  (declare (type output output) #.*plain-policy*)
  (check-type size (and content-size (integer 1)))
  (append-to (output octets position 17)
    (put-line-end octets (put-hexadecimal octets position size)))
  (values))

(defun encode-line-end (output)
  "Appends CR and LF to OUTPUT."
  (declare (type output output) #.*plain-policy*)
  (append-to (output octets position 2)
    (put-line-end octets position))
  (values))

(defun encode-chunk-end (output)
  "Appends the line end after the octets of a chunk to OUTPUT."
  (encode-line-end output))

(defun encode-last-chunk (output)
  "Appends the end of a chunked body, without trailer fields, to OUTPUT."
  (encode-octets output *last-chunk*))
