(in-package #:hunchentoot-recycling-taskmaster)

(defvar *default-standby-thread-count* 8
  "How many threads of a RECYCLING-TASKMASTER wait for connections when nothing is to be done,
an integer above 0: the default of its :STANDBY-THREAD-COUNT.")

(defvar *parking-by-default* t
  "The default of :PARKING of a RECYCLING-TASKMASTER.")

(defparameter *default-worker-thread-name-format* "http-worker-~A"
  "See MAKE-ENGINE-THREAD for why it is not Hunchentoot's.")

(defvar *work* nil
  "In a worker's thread, the function that is its work.")
