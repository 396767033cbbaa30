(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-date :in http
  :description "The Date of replies.")

(test dates-are-imf-fixdates
  (loop for (arguments text)
          in '(((37 49 8 6 11 1994 0) "Sun, 06 Nov 1994 08:49:37 GMT")
               ((0 0 0 1 1 1970 0) "Thu, 01 Jan 1970 00:00:00 GMT")
               ((59 59 23 31 12 1999 0) "Fri, 31 Dec 1999 23:59:59 GMT")
               ((0 0 12 29 2 2000 0) "Tue, 29 Feb 2000 12:00:00 GMT")
               ((8 4 2 19 1 2038 0) "Tue, 19 Jan 2038 02:04:08 GMT"))
        do (is (equal text (http:imf-fixdate (apply #'encode-universal-time arguments))))))

(test the-date-is-sent-as-a-field
  (is (equal (lines-text '("Date: Sun, 06 Nov 1994 08:49:37 GMT"))
             (encoding (output)
               (http:encode-date output (encode-universal-time 37 49 8 6 11 1994 0))))))

(test a-second-is-rendered-once-and-never-changes
  (flet ((rendered (second)
           (http:encode-date (http:make-output) second)
           http::*date-line*))
    (let* ((second (encode-universal-time 1 2 3 4 5 2026 0))
           (pair (rendered second))
           (before (copy-seq (cdr pair))))
      (is (eq pair (rendered second)))
      (is (not (eq pair (rendered (1+ second)))))
      (is (eql second (car pair)))
      (is (equalp before (cdr pair))))))
