(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The buffer in which replies are made, and the checked entries to put.lisp.
;;;
;;; Invariant: the octets of an output before its fill are final; those after it are free.  Each
;;; function that appends sets the fill last, so a function that signals has appended nothing.

(defstruct (output (:include opaque) (:constructor %make-output (octets)) (:copier nil))
  "A buffer of replies to send: octets in a vector that grows."
  ;; The vector that holds the octets of OUTPUT. OUTPUT replaces it when it grows.
  (octets nil :type octets)
  ;; The number of octets in OUTPUT. The caller may reduce it to remove octets.
  (fill 0 :type index))

(defconstant +output-size+ 4096
  "The initial size of an output, in octets.  Most heads fit into it, with a short page.")

(defconstant +kept-output-size+ (* 128 1024)
  "RESET-OUTPUT gives the vector of an output back if it has more octets than this.")

(defun make-output (&optional (octets (make-octets +output-size+)))
  "An empty OUTPUT that uses the vector OCTETS until it grows."
  (%make-output octets))

(defun reset-output (output)
  "Empties OUTPUT, frees the memory of a large reply, and returns OUTPUT."
  (check-type output output)
  (when (> (length (output-octets output)) +kept-output-size+)
    (setf (output-octets output) (make-octets +output-size+)))
  (setf (output-fill output) 0)
  output)

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
  "Makes room in OUTPUT for COUNT octets.  BODY writes octets into OCTETS from POSITION on and
returns their end, which becomes the fill."
  `(multiple-value-bind (,octets ,position) (reserve ,output ,count)
     (setf (output-fill ,output) (progn ,@body))))

;;; Octets

(defun encode-by (output count function)
  "Appends COUNT octets, an integer, that FUNCTION writes to OUTPUT.  FUNCTION gets a vector of
octets, a start and an end, and returns true if it has written all octets between them; else nothing
is appended.  Returns T if the octets were appended, else NIL."
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
  "The maximum number of octets that ENCODE-BODY copies.  To copy that many takes less time than
another system call.  A body in one segment with its head also does not wait for a delayed
acknowledgement of the head.")

(defun encode-body (output body &optional (start 0) (end (length body)))
  "Appends the octets of BODY from START below END to OUTPUT if their number is at most
*BODY-COPY-LIMIT*, and returns true.  Else returns NIL, and the caller sends that range after
OUTPUT."
  (declare (type output output) #.*plain-policy*)
  (check-range body start end)
  (when (<= (- end start) (the index *body-copy-limit*))
    (encode-octets output body start end)
    t))

;;; Strings

(defun encoded-length (string encoding)
  "The number of octets of STRING in ENCODING, :UTF-8 or :LATIN-1; NIL if Latin-1 cannot encode a
character of it.  In UTF-8, U+FFFD replaces a lone surrogate, so every string can be encoded (RFC
3629, section 3)."
  (declare (type string string) #.*plain-policy*)
  (let* ((text (simple-text string))
         (end (codes-end text (ecase encoding (:utf-8 128) (:latin-1 256)))))
    (declare (type simple-text text))
    (cond ((= end (length text)) end)
          ((eq encoding :utf-8) (+ end (utf-8-size (coerce text 'text) end))))))

(defun append-text (output text encoding size)
  "Appends TEXT in ENCODING to OUTPUT, and returns true, if it has exactly SIZE octets; else NIL."
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
  "Appends STRING in ENCODING, :UTF-8 or :LATIN-1, to OUTPUT, and returns true.  Returns NIL and
appends nothing if ENCODING cannot encode a character of STRING.  SIZE is the ENCODED-LENGTH of
STRING, an integer, or NIL if the caller has not computed it.  Signals an error if STRING does not
have SIZE octets."
  (declare (type output output) (type string string) (type (or null index) size)
           #.*plain-policy*)
  (let* ((text (simple-text string))
         (size (or size (encoded-length text encoding))))
    (when size
      (or (append-text output text encoding size)
          (error "A string does not have ~D octets in ~A." size encoding)))))

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
  "Appends the size line of a chunk of SIZE octets, at least 1, to OUTPUT.  The caller sends that
many octets after it, and then calls ENCODE-CHUNK-END (RFC 9112, section 7.1)."
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
  "Appends the line end after the octets of a chunk to OUTPUT (RFC 9112, section 7.1)."
  (encode-line-end output))

(defun encode-last-chunk (output)
  "Appends the end of a chunked body, without trailer fields, to OUTPUT (RFC 9112, section 7.1)."
  (encode-octets output *last-chunk*))
