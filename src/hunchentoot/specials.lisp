(in-package #:hunchentoot-recycling-taskmaster)

(defvar *default-standby-thread-count* 8
  "How many threads of a RECYCLING-TASKMASTER wait for connections when nothing is to be done,
an integer above 0: the default of its :STANDBY-THREAD-COUNT.")

(defvar *parking-by-default* t
  "The default of :PARKING of a RECYCLING-TASKMASTER.")

(defparameter *default-worker-thread-name-format* "http-worker-~A"
  "See MAKE-SENTINEL-THREAD for why it is not Hunchentoot's.")

(defparameter *unasked-limit* (* 64 1024 1024)
  "How many octets of content that nobody has asked for are dropped before the reply is sent; where
there are more, it is sent at once, and the connection is closed.")

;;; Bound in the threads of workers only

(defvar *work* nil
  "In a worker's thread, the function that is its work.")
