(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What goes over the buffered connection, and what of it is text.

(deftype octet-vector ()
  "A vector of octets as the tests' client sends and receives it."
  '(simple-array (unsigned-byte 8) (*)))

(defparameter *crlf* (coerce '(13 10) 'octet-vector)
  "The end of a line of HTTP.")

(defun as-octets (list)
  "LIST as a vector of octets.  In some Lisps COERCE takes quadratic time to do this."
  (let ((octets (make-array (length list) :element-type '(unsigned-byte 8))))
    (loop for octet in list
          for i from 0
          do (setf (aref octets i) octet))
    octets))

(defun encode (string &optional (charset :utf-8))
  "The octets of STRING in CHARSET."
  (coerce (flexi-streams:string-to-octets string :external-format charset) 'octet-vector))

(defun decode (octets &optional (charset :utf-8))
  "The string that OCTETS stand for in CHARSET."
  (flexi-streams:octets-to-string octets :external-format charset))

(defun part-octets (part)
  "The octets of PART: a string (in UTF-8), octets, :CRLF, or a list of such parts."
  (etypecase part
    (null (encode ""))
    (string (encode part))
    ((eql :crlf) *crlf*)
    (cons (apply #'octets part))
    (vector (coerce part 'octet-vector))))

(defun octets (&rest parts)
  "One vector of the octets of all PARTS.  Each is a string, which goes in UTF-8; a
vector of octets; the keyword :CRLF; or a list of such parts."
  (let* ((vectors (mapcar #'part-octets parts))
         (octets (make-array (reduce #'+ vectors :key #'length) :element-type '(unsigned-byte 8))))
    (loop for start = 0 then (+ start (length vector))
          for vector in vectors
          do (copy-octets octets start vector))
    octets))

(defun test-octets (count)
  "COUNT octets in which every value occurs and no short period repeats."
  (let ((octets (make-array count :element-type '(unsigned-byte 8)))
        (period (* 251 256)))
    (dotimes (index (min count period))
      (setf (aref octets index) (mod (+ index (floor index 251)) 256)))
    ;; Copied, since millions of octets take long where the tests are evaluated.
    (loop for start from period below count by period
          do (copy-octets octets start octets period))
    octets))

(defun octet-difference (expected actual)
  "NIL when the vectors EXPECTED and ACTUAL are alike; else a sentence about where they
differ, so that a check that fails does not print them."
  ;; ABCL's MISMATCH is evaluated, so it is asked only where they do.  EQUALP is as strict where one
  ;; has octets.
  (let ((position (and (not (and (typep expected '(simple-array (unsigned-byte 8) (*)))
                                 (equalp expected actual)))
                       (mismatch expected actual))))
    (and position
         (format nil "There are ~D octets instead of ~D; they differ from octet ~D on."
                 (length actual) (length expected) position))))

(defun repeated (text size)
  "SIZE octets, at most, of TEXT again and again."
  (let* ((octets (octets text))
         (result (make-array (* (length octets) (floor size (length octets)))
                             :element-type '(unsigned-byte 8))))
    (copy-octets result 0 octets)
    ;; Doubled: millions of octets take long where the tests are evaluated.
    (loop for filled = (length octets) then (* 2 filled)
          while (< filled (length result))
          do (copy-octets result filled result filled))
    result))

(defun count-of (part text)
  "How often PART is in TEXT."
  (loop for start = (search part text) then (search part text :start2 (1+ start))
        while start count t))
