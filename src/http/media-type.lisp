(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The media type of content: token "/" token, with parameters (RFC 9110, section 8.3.1), as far as their
;;; values are tokens.

(defun parameters-end (text start)
  "Where the parameters end that TEXT has from START, each as in section 5.6.6 of RFC 9110."
  (declare (type text text) (type index start) #.*plain-policy*)
  (let ((size (length text)))
    (labels ((word (position)
               (let ((end (text-run-end text position size +token+)))
                 (and (> end position) end)))
             (char-then-word (char position)
               (and position
                    (< position size)
                    (char= char (schar text position))
                    (word (text-run-end text (1+ position) size
                                        (if (char= char #\;) +whitespace+ 0))))))
      (loop for end = start then next
            for next = (char-then-word #\= (char-then-word #\; (text-run-end text end size +whitespace+)))
            while next
            finally (return end)))))

(defun parse-media-type (text)
  "Where the type ends in TEXT, the value of a Content-Type, all Latin-1: at its slash; and true when
parameters follow the subtype.  NIL for what is malformed, or has a parameter that is no token."
  (declare (type text text) #.*plain-policy*)
  (let* ((size (length text))
         (slash (text-run-end text 0 size +token+)))
    (when (and (< 0 slash size) (char= #\/ (schar text slash)))
      (let ((end (text-run-end text (1+ slash) size +token+)))
        (when (and (> end (1+ slash)) (= size (parameters-end text end)))
          (values slash (< end size)))))))
