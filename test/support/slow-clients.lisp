(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Clients that take their time to take an answer.

(defparameter *large-size* 9000000
  "More octets than the buffers of a connection hold.")

(defparameter *large-answer* (test-octets *large-size*))

(defun write-large (write &optional (written (make-recorder)))
  "Writes *LARGE-ANSWER* piece by piece by WRITE, and records in WRITTEN that each was taken."
  (loop for start from 0 below *large-size* by 50000
        do (funcall write *large-answer* :start start :end (min *large-size* (+ start 50000)))
           (record written start)))

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

(defun large-reply-p (connection)
  "Whether the next reply that CONNECTION reads is *LARGE-ANSWER*."
  (let ((head (read-head connection)))
    (and (= 200 (response-status head))
         (= *large-size* (content-length head))
         (whole-answer-p connection))))

(defun large-stream-p (connection)
  "True when the next reply over CONNECTION is *LARGE-ANSWER* in chunks."
  (and (chunked-p (read-head connection))
       (loop for start = 0 then end
             for chunk = (read-chunk connection)
             for end = (+ start (length chunk))
             while (and chunk
                        (<= end *large-size*)
                        (null (mismatch *large-answer* chunk :start1 start :end1 end)))
             finally (return (and (null chunk) (= start *large-size*))))))

(defun small-connection ()
  "A connection to *SERVER* that takes little before it is read."
  (connect-with-small-buffer (port-of *server*)))

(defun await-held-up (count)
  "Waits until COUNT clients hold up their replies, and no thread."
  (eventually ("clients to hold up their replies")
    (and (= count (figure :writing)) (zerop (figure :busy)))))
