(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What Linux tells of this process, by files in /proc (proc(5)).

(defun number-after (label path)
  "The number that follows LABEL, a string, in the file PATH; NIL where there is none."
  (handler-case
      (let* ((text (uiop:read-file-string path :external-format :latin-1))
             (start (+ (length label) (search label text))))
        (values (parse-integer text :start (position-if #'digit-char-p text :start start)
                                    :junk-allowed t)))
    (error () nil)))

(defun process-started ()
  "When this process started, in seconds of Unix time; NIL where that is not known."
  (handler-case
      (let* ((text (uiop:read-file-string "/proc/self/stat" :external-format :latin-1))
             (fields (uiop:split-string (subseq text (position #\) text :from-end t)))))
        ;; Hundredths of a second since the system booted: field 22, of which the 2nd ends in ")".
        (+ (number-after "btime" "/proc/stat") (/ (parse-integer (nth 20 fields)) 100)))
    (error () nil)))

(defun descriptors-open ()
  "How many descriptors this process has open; NIL where that is not known."
  ;; DIRECTORY fails if one is closed meanwhile.
  (loop repeat 20
          thereis (handler-case (length (uiop:directory* "/proc/self/fd/*"))
                    (error () nil))))

(defun process-figures ()
  "Five values about this process: its memory in RAM and its address space, in octets; how many
descriptors it has open, and may have; and when it started, in seconds of Unix time.  Each is a
real, or NIL where the system does not tell."
  (flet ((octets (label)
           (let ((kilobytes (number-after label "/proc/self/status")))
             (and kilobytes (* 1024 kilobytes)))))
    (values (octets "VmRSS:")
            (octets "VmSize:")
            (descriptors-open)
            (number-after "Max open files" "/proc/self/limits")
            (process-started))))
