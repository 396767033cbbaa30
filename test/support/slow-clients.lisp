(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Clients that take their time to take an answer.

(defparameter *large-size* 9000000
  "More octets than the buffers of a connection hold.")

(defparameter *large-answer* (test-octets *large-size*))

(defun whole-answer-p (connection)
  "Whether what CONNECTION reads next is *LARGE-ANSWER*."
  (null (octet-difference *large-answer* (receive-many connection *large-size*))))

(defun cut-answer-p (connection)
  "Whether what CONNECTION reads ends before *LARGE-ANSWER* does."
  (< (length (receive-many connection *large-size*)) *large-size*))

(defun connect-with-small-buffer (port)
  "A connection to PORT whose end of it holds little that was not read."
  (let ((connection (connect port)))
    (limit-receive-buffer (connection-socket connection) 65536)
    connection))

(defun large-answer-slowly-p (connection pause)
  "Whether CONNECTION gets as many octets as *LARGE-ANSWER* has, when PAUSE is called before each of
the first pieces: for twice the time for which the server waits, its socket takes no more."
  (flet ((all-p (count)
           (= count (length (receive-many connection count)))))
    (and (loop repeat 48
               always (progn (funcall pause)
                             (all-p *paced-octets*)))
         (all-p (- *large-size* (* 48 *paced-octets*))))))
