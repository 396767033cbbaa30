(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Lists of an engine's connections and workers, for people.

(defun peer-string (address port)
  (cond ((zerop port) address)          ; of a Unix-domain socket
        ((find #\: address) (format nil "[~A]:~D" address port))
        (t (format nil "~A:~D" address port))))

(defun peer-text (connection)
  "Address and port of the peer of CONNECTION, a string; NIL when it is gone."
  (let ((text (handler-case
                  (multiple-value-call #'peer-string (connection-peer-name connection))
                (error () nil))))
    ;; Its owner may close it meanwhile: then the name may be that of another connection's peer.
    (unless (gone-p connection)
      text)))

(defun describe-connection (connection state &optional worker)
  "A plist about CONNECTION, which is in STATE, with WORKER where it has one."
  (list :peer (peer-text connection)
        :state state
        :age (/ (- (milliseconds) (connection-opened connection)) 1000.0)
        :served (connection-served connection)
        :worker (and worker (worker-number worker))
        :seconds (and worker (busy-seconds worker))))

(defgeneric busy-seconds (worker)
  (:documentation "For how many seconds WORKER has been at its request.")
  (:method ((worker worker))
    (/ (worker-milliseconds worker) 1000.0)))

(defgeneric list-engine-connections (engine)
  (:documentation "A list of plists, one for each open connection of ENGINE: :PEER, a string;
:STATE, :NEW before its first request, :ACTIVE while it is served, :IDLE or :PARKED between two
requests, with its worker or without, :DEFERRED while its answer is to come later, :WRITING while
its peer takes its time to take the answer, :QUEUED for a worker, :DRAINING after its last answer;
:AGE in seconds; requests :SERVED; the number of its :WORKER, and for how many :SECONDS that has
been at the request, or NIL.  Connections that come or go meanwhile may be missed."))

(defun worker-connections (engine)
  "An alist of the connections of ENGINE that have a worker, and these."
  (with-engine (engine)
    (loop for worker in (engine-workers engine)
          for connection = (worker-connection worker)
          when connection collect (cons connection worker))))

;;; The list of its workers

(defgeneric worker-activity (worker)
  (:documentation "What WORKER does, a keyword: :WAITING for something to do; :SERVING a request, or
calling the function of a timer; :BLOCKED, the same where the pool has found that its thread sleeps
or has computed for long; :KEEP-ALIVE, waiting for the next request of its connection; :SUSPENDED;
or :STARTING.")
  (:method ((worker worker))
    (worker-state worker)))

(defun worker-facts (worker)
  "A plist about WORKER, as LIST-WORKERS returns it."
  (let* ((activity (worker-activity worker))
         (busy-p (member activity '(:serving :blocked))))
    (list :number (worker-number worker)
          :activity activity
          :seconds (and busy-p (busy-seconds worker))
          :task (and busy-p (worker-task worker))
          :current-p (eq worker *worker*)
          :thread (worker-thread worker))))

(defun list-workers (engine)
  "A list of plists, one for each worker of ENGINE, by number: its :NUMBER; its :ACTIVITY, a keyword
as WORKER-ACTIVITY returns it; for how many :SECONDS it has been at its request, or NIL; its :TASK,
as NOTE-TASK was told, or NIL; :CURRENT-P, true for the worker whose thread this is; and its
:THREAD.  The facts about one worker may be of different moments."
  (let ((workers (with-engine (engine)
                   (copy-list (engine-workers engine)))))
    (mapcar #'worker-facts
            (sort (remove :ended workers :key #'worker-state) #'< :key #'worker-number))))
