(in-package #:clack.handler.recycling)

;;;; The stream protocol of :RAW-BODY: octets, and characters in UTF-8, from any position on.
;;;;
;;;; A non-local exit from a read, by a time limit of the application for example, leaves the
;;;; position unchanged.

(defmacro reading-wholly ((body) &body forms)
  "Evaluates FORMS, which read BODY, in a turn.  A non-local exit restores the position of BODY."
  (let ((it (gensym "BODY")) (position (gensym "POSITION")) (last-size (gensym "SIZE")))
    `(let ((,it ,body))
       (with-reading-turn (,it)
         (let ((,position (raw-body-position ,it)) (,last-size (raw-body-last-size ,it)))
           (unless-returned (progn ,@forms)
             (unless (= ,position (raw-body-position ,it)) ; the shared empty body never changes
               (setf (raw-body-position ,it) ,position
                     (raw-body-last-size ,it) ,last-size))))))))

;;; Octets

(defun next-octet (body)
  (if (zerop (octets-there body 1))
      :eof
      (prog1 (aref (the octets (raw-body-octets body)) (memory-index body))
        (incf (raw-body-position body)))))

(defmethod trivial-gray-streams:stream-read-byte ((stream raw-body))
  (reading-wholly (stream)
    (next-octet stream)))

(defun move-octets (sequence position octets start end)
  "Copies OCTETS from START to END to POSITION in SEQUENCE."
  (declare (type octets octets))
  (if (typep sequence 'octets)
      (replace sequence octets :start1 position :start2 start :end2 end)
      (replace sequence octets :start1 position :start2 start :end2 end)))

(defun read-octets-of-body (body sequence start end)
  "Reads octets of BODY into SEQUENCE from START up to END.  Returns the index after the last one."
  (loop while (< start end)
        do (let ((count (min (- end start) (octets-there body (- end start)))))
             (when (zerop count)
               (return))
             (let ((index (memory-index body)))
               (move-octets sequence start (raw-body-octets body) index (+ index count)))
             (incf (raw-body-position body) count)
             (incf start count)))
  start)

;;; Characters

(defun octets-of-character (body)
  "A vector that holds the octets of the character at the position of BODY, which is not at its end;
as further values, their start and end in the vector."
  (let* ((octets (raw-body-octets body))
         (index (memory-index body))
         (size (utf-8-size-by-first (aref (the octets octets) index))))
    (if (<= (+ index size) (raw-body-count body))
        (values octets index (+ index size))
        ;; The character goes on beyond the window.
        (let ((octets (make-octets size))
              (position (raw-body-position body)))
          (multiple-value-prog1 (values octets 0 (read-octets-of-body body octets 0 size))
            (setf (raw-body-position body) position))))))

(defun next-character (body)
  (if (zerop (octets-there body 1))
      :eof
      (multiple-value-bind (octets start end) (octets-of-character body)
        (multiple-value-bind (code next) (utf-8-code octets start end)
          (setf (raw-body-last-size body) (- next start))
          (incf (raw-body-position body) (- next start))
          (if (< code char-code-limit) (code-char code) (code-char #xFFFD))))))

(defmethod trivial-gray-streams:stream-read-char ((stream raw-body))
  (reading-wholly (stream)
    (next-character stream)))

(defmethod trivial-gray-streams:stream-read-line ((stream raw-body))
  (reading-wholly (stream)
    (let ((line (make-string-output-stream)))
      (flet ((end-line (missing-newline-p)
               (values (get-output-stream-string line) missing-newline-p)))
        (loop for character = (next-character stream)
              do (case character
                   (:eof (return (end-line t)))
                   (#\Newline (return (end-line nil)))
                   (t (write-char character line))))))))

(defmethod trivial-gray-streams:stream-unread-char ((stream raw-body) character)
  (declare (ignore character))
  (decf (raw-body-position stream) (shiftf (raw-body-last-size stream) 0))
  nil)

(defmethod trivial-gray-streams:stream-line-column ((stream raw-body))
  nil)

;;; Sequences

(defun read-characters-of-body (body sequence start end)
  (loop for position from start below end
        for character = (next-character body)
        until (eq character :eof)
        do (setf (elt sequence position) character)
        finally (return position)))

(defmethod trivial-gray-streams:stream-read-sequence ((stream raw-body) sequence start end &key)
  (let ((start (or start 0))
        (end (or end (length sequence))))
    (reading-wholly (stream)
      (if (stringp sequence)
          (read-characters-of-body stream sequence start end)
          (read-octets-of-body stream sequence start end)))))

(defmethod trivial-gray-streams:stream-listen ((stream raw-body))
  (or (< (raw-body-position stream) (raw-body-taken stream))
      (with-reading-turn (stream)
        (and (raw-body-content stream)
             (listen (raw-body-content stream))))))

;;; The position, in octets

(defmethod trivial-gray-streams:stream-file-position ((stream raw-body))
  (raw-body-position stream))

(defmethod (setf trivial-gray-streams:stream-file-position) (position (stream raw-body))
  (with-reading-turn (stream)
    (take-up-to stream (case position
                         (:start 0)
                         (:end nil)
                         (t position))))
  (let ((position (case position
                    (:start 0)
                    (:end (raw-body-taken stream))
                    (t position))))
    (when (<= 0 position (raw-body-taken stream))
      (unless (= position (raw-body-position stream)) ; the shared empty body never changes
        (setf (raw-body-position stream) position))
      t)))
