(in-package #:hunchentoot-recycling-taskmaster)

(defgeneric stats (acceptor)
  (:documentation "A plist of what ACCEPTOR did since its last start, and does, for people and
for monitors.  Of threads: :THREADS in all, of which :STANDBY wait for something to do (:BENCHED
of them until they are needed) and :BUSY have a connection (:IDLING of them wait for its next
request), and how many were :MADE and have :ENDED.  Of connections: :ACCEPTED so far, :OPEN
(:WRITING of them without a thread, while their peers take their time to take the answer), :QUEUED
for a thread, :REFUSED, and :EXPIRED, ended because they took too long or held up others.  :SERVED requests; :FAILED
counts errors outside of handlers; :UPTIME in seconds.  What an acceptor with another
taskmaster than ours cannot tell is NIL.")
  (:method ((acceptor hunchentoot:acceptor))
    (let ((engine (acceptor-engine acceptor))
          (taskmaster (acceptor-taskmaster* acceptor)))
      (cond (engine
             (engine-statistics engine))
            ((typep taskmaster 'recycling-taskmaster)
             (loop for name in *statistics* collect name collect 0))
            (t
             (loop for name in *statistics*
                   collect name
                   collect (case name
                             (:threads (hunchentoot:taskmaster-thread-count taskmaster))
                             (:busy (requests-in-progress acceptor)))))))))

(defgeneric list-connections (acceptor)
  (:documentation "A list of plists, one for each open connection of ACCEPTOR: :PEER, a string of
address and port; :STATE, which is :NEW before the first request, :ACTIVE while one is served,
:PARKED or :IDLE between two, without a thread or with it, :WRITING while its peer takes its time
to take the answer, which needs no thread, :QUEUED for a thread, :DRAINING after the last answer; :AGE in seconds; how many requests were :SERVED; the number of its :WORKER, and for
how many :SECONDS that has been at the request, or NIL.  Empty for an acceptor with another
taskmaster than ours, or one that is not started.")
  (:method ((acceptor hunchentoot:acceptor))
    (let ((engine (and (hunchentoot:started-p acceptor) (acceptor-engine acceptor))))
      (and engine (list-engine-connections engine)))))

(define-condition recycling-taskmaster-corrupted-error (recycling-error)
  ((acceptor :initarg :acceptor :reader corrupted-acceptor)
   (problems :initarg :problems :reader corruption-problems))
  (:report (lambda (condition stream)
             (format stream "~A cannot account for its threads and connections:~{~%  ~A~}"
                     (corrupted-acceptor condition) (corruption-problems condition))))
  (:documentation "Signalled by ABANDON-ACCEPTOR when threads outlived their destruction or
counts do not add up.  Established restarts: RETRY destroys once more, IGNORE goes on."))

(defun check-accounts (acceptor engine)
  (let ((problems (accounting-problems engine)))
    (when problems
      (error 'recycling-taskmaster-corrupted-error :acceptor acceptor :problems problems))))

(defun abandon-acceptor (acceptor)
  "The last resort when STOP does not help: destroys every thread of ACCEPTOR, whatever it
does, frees the port, and returns ACCEPTOR, which can be started again.  Requests that run
are cut off where they are; use it at the REPL, not in a program.
Signals RECYCLING-TASKMASTER-CORRUPTED-ERROR, with restarts RETRY and IGNORE, when threads
outlive that or the counts of threads and connections do not add up; STOP-FROM-WORKER in a
request handler of ACCEPTOR."
  (let ((engine (acceptor-engine acceptor)))
    (loop
      (when engine
        (abandon-engine engine))
      (set-shutdown acceptor)
      (stop-listening acceptor)
      (restart-case (progn
                      (when engine (check-accounts acceptor engine))
                      (return acceptor))
        (retry ()
          :report "Destroy the threads once more.")
        (ignore ()
          :report "Go on as if the counts added up."
          (return acceptor))))))
