(in-package #:hunchentoot-recycling-taskmaster)

(defvar *default-standby-thread-count* 8
  "The default of :STANDBY-THREAD-COUNT: how many threads a RECYCLING-TASKMASTER keeps when there is
nothing to do, an integer above 0.")

(defvar *parking-by-default* t
  "The default of :PARKING: true when a connection between two requests has no thread, where the
platform supports that.")

(defparameter *default-worker-thread-name-format* "http-worker-~A"
  "The default of :WORKER-THREAD-NAME-FORMAT.  MAKE-ENGINE-THREAD tells why it is not
Hunchentoot's.")

(defvar *work* nil
  "The function that the current worker is to call; NIL in other threads.")
