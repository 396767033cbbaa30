(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite ready :in engine
  :description "The ready engine, on real sockets, with a service of lines in place of HTTP.")

(in-suite ready)

;;; Each octet that comes is a request.  Its answer is the same octet, save for those that a
;;; test gives a meaning to: an outcome, or octets that are the answer, left to the engine, or a
;;; list of these octets and an outcome.

(defclass octet-service (engine:service)
  ((meanings :initarg :meanings :reader octet-meanings
             :documentation "A function of an octet; what it returns is its meaning, or NIL.")
   (write-seconds :initarg :write-seconds :initform nil :reader octet-write-seconds)
   (notice :initarg :notice :initform nil :reader octet-notice
           :documentation "What is said to those who are late, a string.")
   (making :initarg :making :initform (constantly nil) :reader fake-making
           :documentation "Called before a thread is made.")
   (notes :initform (make-recorder) :reader fake-notes)))

(defmethod engine:make-engine-thread :before ((service octet-service) role thunk)
  (declare (ignore thunk))
  (when (integerp role)
    (funcall (fake-making service) role)))

(defmethod engine:address-limit ((service octet-service) connection)
  (declare (ignore connection))
  (values *address-limit* 7))

(defmethod engine:give-notice ((service octet-service) connection)
  (let ((notice (if (member (engine:connection-deadline-kind connection)
                            engine:*refusal-reasons*)
                    "!"
                    (octet-notice service))))
    (when notice
      (platform:send-octets (engine:connection-descriptor connection) (octets notice)
                            0 (length notice)))))

(defmethod engine:serve ((service octet-service) connection resuming-p)
  (unless resuming-p
    (let* ((buffer (octets "."))
           (descriptor (engine:connection-descriptor connection))
           (count (platform:receive-octets descriptor buffer 0 1)))
      (cond ((platform:would-block-p count) :park)
            ((<= count 0) :close)
            (t
             (destructuring-bind (meaning &optional (outcome :park))
                 (uiop:ensure-list (or (funcall (octet-meanings service)
                                                (code-char (aref buffer 0)))
                                       :park))
               (engine:count-request connection 0)
               (cond ((keywordp meaning)
                      (platform:send-octets descriptor buffer 0 1)
                      (setf outcome meaning))
                     (t
                      (engine:limit-taking (engine:connection-queue connection)
                                           (octet-write-seconds service))
                      (engine:enqueue (engine:connection-queue connection)
                                      (list (engine:make-octets-part meaning)))))
               (if (eq :park outcome)
                   :next                ; perhaps
                   outcome)))))))

(defmethod engine:note ((service octet-service) level control &rest arguments)
  (record (fake-notes service) (cons level (apply #'format nil control arguments))))

(defvar *port*)

(defun call-with-ready-engine (function meanings &key (standby 2) thread-limit
                                                   (accept-limit :unlimited) idle-seconds
                                                   write-seconds notice
                                                   (making (constantly nil))
                                                   (service-class 'octet-service))
  (with-listener (listener)
    (let* ((*port* (usocket:get-local-port listener))
           (*service* (make-instance service-class :meanings meanings
                                                    :write-seconds write-seconds
                                                    :making making
                                                    :notice notice))
           (engine (engine:make-ready-engine *service* listener
                                             :standby standby :thread-limit thread-limit
                                             :accept-limit accept-limit
                                             :idle-seconds idle-seconds)))
      (engine:start-engine engine)
      (unwind-protect (funcall function engine)
        (stop-patiently engine)
        (check-counts engine)))))

(defmacro with-ready-engine ((engine meanings &rest options) &body body)
  "Evaluates BODY while a ready ENGINE runs that answers octets, after calling MEANINGS with
them.  Where there are no pollers, does nothing."
  `(where-supported
    (call-with-ready-engine (lambda (,engine) (declare (ignorable ,engine)) ,@body)
                            ,meanings ,@options)))

(defmacro with-gated-engine ((engine gate connections count &rest options) &body body)
  "Evaluates BODY while a ready ENGINE runs that answers octets, a w only when GATE is open, and
with COUNT CONNECTIONS to it; opens the gate at the end.  Where there are no pollers, does nothing."
  `(let ((,gate (make-gate)))
     (with-ready-engine (,engine (lambda (char) (when (char= char #\w) (await ,gate)) nil)
                         ,@options)
       (with-connections (,connections ,count *port*)
         (unwind-protect (progn ,@body)
           (open-gate ,gate))))))

(defun send-each (connections text)
  (dolist (connection connections)
    (send connection text)))

(defun expect-each (connections text)
  "Checks that TEXT comes from each of CONNECTIONS."
  (dolist (connection connections)
    (is (equal text (decode (read-octets connection (length text)))))))

(defun exchange-octets (connection text)
  "Sends the characters of TEXT to CONNECTION and reads as many; returns them."
  (send connection text)
  (decode (read-octets connection (length text))))

(define-server-test a-ready-connection-is-served-and-parked
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (is (equal "a" (exchange-octets connection "a")))
      (is (equal "bcd" (exchange-octets connection "bcd")))
      (wait-for-statistic engine :busy 0)
      (is (= 1 (statistic engine :open)))
      (is (= 4 (statistic engine :served))))
    (wait-for-statistic engine :open 0)))

#+sbcl
(define-server-test small-answers-of-a-ready-engine-wait-for-no-acknowledgement
  (with-ready-engine (engine (constantly nil))
    (is-true (sb-bsd-sockets:sockopt-tcp-nodelay
              (usocket:socket (engine::engine-listener engine)))
             "Each connection has this of its listener.")))

(defun await-ended (engine count)
  "Waits until COUNT workers of ENGINE have ended, or more: a busy machine has others made, too."
  (eventually ("workers to end") (<= count (statistic engine :ended))))

(define-server-test parked-connections-have-no-threads
  (with-ready-engine (engine (constantly nil))
    (with-connections (connections 100 *port*)
      (dolist (connection connections)
        (exchange-octets connection "x"))
      (is (= 100 (statistic engine :open)))
      (wait-for-statistic engine :busy 0)
      (eventually ("threads that were made meanwhile to end")
        (<= (statistic engine :threads) 10)))))

(define-server-test blocked-handlers-do-not-hold-up-others
  (with-gated-engine (engine gate blocked 10)
    (send-each blocked "w")
    (with-connection (connection *port*)
      (is (equal "q" (exchange-octets connection "q"))))
    (wait-for-statistic engine :busy 10)
    (open-gate gate)
    (expect-each blocked "w")))

(define-server-test handlers-that-block-for-less-than-a-nap-are-noticed
  (let* ((processors (usable-processors))
         (inside (platform:make-counter))
         (crowd (make-gate "more handlers at once than there are processors")))
    (with-globals ((*watch-looks* 1)
                   (*long-nap-ticks* 40))
      (with-function (processor-free-p (original controller) t) ; the machine may be busy
        (with-ready-engine (engine (lambda (char)
                                     (declare (ignore char))
                                     (platform:counter-add inside 1)
                                     (when (> (platform:counter-count inside) processors)
                                       (open-gate crowd))
                                     (sleep 0.005) ; a quarter of a nap
                                     (platform:counter-add inside -1)
                                     nil)
                                   :standby processors)
          (let* ((port *port*)
                 (clients (loop repeat (* 3 processors)
                                collect (in-background ("client")
                                          (with-connection (connection port)
                                            (loop until (open-p crowd)
                                                  do (exchange-octets connection "x")))))))
            (unwind-protect (await crowd)
              (open-gate crowd)
              (is (every (lambda (client) (task-result client) t) clients)))))))))

(define-server-test the-ready-engine-keeps-to-its-maximum-and-serves-everybody
  (with-gated-engine (engine gate connections 10 :thread-limit 3)
    (send-each connections "w")
    (wait-for-statistic engine :busy 3)
    (is (= 3 (statistic engine :threads)))
    (open-gate gate)
    (expect-each connections "w")))

(define-server-test threads-return-to-the-floor
  (with-globals ((*suspension-seconds* 1/10)
                 (*poll-milliseconds* 20))
    (with-gated-engine (engine gate connections 20 :standby 2)
      (send-each connections "w")
      (wait-for-statistic engine :busy 20)
      (open-gate gate)
      (wait-for-statistic engine :threads 2))))

(define-server-test octets-that-come-while-their-connection-is-served-are-served-too
  (let ((gate (make-gate)) (entered (make-latch 1)))
    (with-ready-engine (engine (lambda (char)
                                 (when (char= char #\w)
                                   (count-down entered)
                                   (await gate))
                                 nil))
      (with-connection (connection *port*)
        (send connection "w")
        (await entered)
        (send connection "more")
        (open-gate gate)
        (is (equal "wmore" (decode (read-octets connection 5))))))))

(define-server-test a-half-closed-connection-is-answered-and-closed
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (send connection "last")
      (end-sending connection)
      (is (equal "last" (decode (receive-rest connection)))))
    (wait-for-statistic engine :open 0)))

(defun let-idle (engine connection milliseconds)
  "Has ENGINE serve CONNECTION, which may idle from then on for MILLISECONDS: no client is late
before."
  (exchange-octets connection "x")
  (wait-for-statistic engine :parked 1)
  (wait-for-statistic engine :busy 0)   ; nor is a worker that parks it
  (setf (pool-state-idle (engine-pool-state engine)) milliseconds)
  (exchange-octets connection "x"))

(define-server-test an-idle-connection-is-closed-by-its-deadline
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine (constantly nil))
      (with-connection (connection *port*)
        (let-idle engine connection 200)
        (is (closed-by-server-p connection)))
      (is (= 1 (statistic engine :expired)))
      (is (= 1 (getf (statistic engine :expired-by) :idle))))))

(define-server-test a-client-that-is-late-may-be-told-so
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine (constantly nil) :notice "late")
      (with-connection (connection *port*)
        (let-idle engine connection 200)
        (is (equal "late" (decode (receive-rest connection))))
        (is (= 1 (statistic engine :expired))))
      (wait-for-statistic engine :open 0))))

(define-server-test a-client-that-is-late-is-told-although-it-speaks-on
  (with-globals ((*tick* 1/100) (*linger-seconds* 1000))
    (with-ready-engine (engine (lambda (char) (declare (ignore char)) :park) :notice "late")
      (with-connection (connection *port*)
        (let-idle engine connection 200)
        (await-octets (connection-socket connection) *patience*)
        (try-to-send connection "y")
        (is (equal "late" (decode (receive-rest connection)))))
      (wait-for-statistic engine :open 0))))

(define-server-test a-notice-that-fails-harms-nobody
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine (constantly nil) :notice 42)
      (with-connection (connection *port*)
        (let-idle engine connection 200)
        (is (closed-by-server-p connection)))
      (is (plusp (statistic engine :failed)))
      (setf (pool-state-idle (engine-pool-state engine)) nil)
      (with-connection (connection *port*)
        (is (equal "x" (exchange-octets connection "x")))))))

(define-server-test a-new-connection-that-says-nothing-is-closed-by-its-deadline
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine (constantly nil) :idle-seconds 1/5)
      (with-connection (connection *port*)
        (is (closed-by-server-p connection)))
      (is (= 1 (getf (statistic engine :expired-by) :first-byte))))))

(define-server-test an-answer-arrives-though-more-was-sent-than-read
  (with-ready-engine (engine (constantly :close))
    (with-connection (connection *port*)
      (send connection (make-string 100000 :initial-element #\x))
      (is (equal "x" (decode (receive-rest connection)))))
    (wait-for-statistic engine :open 0)))

(define-server-test idle-connections-do-not-count-against-the-accept-limit
  (with-ready-engine (engine (constantly nil) :thread-limit 2 :accept-limit 3)
    (with-connections (connections 8 *port*)
      (dolist (connection connections)
        (is (equal "x" (exchange-octets connection "x"))))
      (is (zerop (statistic engine :refused))))))

(define-server-test a-client-that-finds-as-many-served-or-waiting-as-may-be-is-refused
  (with-gated-engine (engine gate busy 2 :thread-limit 2)
    (with-connections (idle 4 *port*)
      (dolist (connection idle)
        (exchange-octets connection "i"))
      (wait-for-statistic engine :open 6)
      (wait-for-statistic engine :busy 0) ; else one of BUSY might be refused
      (setf (engine:engine-accept-limit engine) 3)
      (send-each busy "w")
      (eventually ("both to be served")
        (and (= 2 (statistic engine :busy)) (= 2 (busy-or-readable-count engine 9))))
      (with-connection (waiting *port*)
        (send waiting "x")
        (wait-for-statistic engine :open 7)
        (eventually ("the waiting one to be told of")
          (= 3 (busy-or-readable-count engine 9)))
        (with-connection (late *port*)
          (is (equal "!" (decode (receive-rest late)))))
        (is (= 1 (statistic engine :refused)))
        (open-gate gate)
        (is (equal "x" (decode (read-octets waiting 1))))))))

(define-server-test ready-workers-destroyed-from-outside-are-replaced
  (with-ready-engine (engine (constantly nil))
    (eventually ("the workers to begin")
      (every #'worker-thread (engine-workers engine)))
    (mapc #'bt:destroy-thread
          (mapcar #'worker-thread (engine-workers engine)))
    (await-ended engine 2)
    (with-connection (connection *port*)
      (is (equal "x" (exchange-octets connection "x"))))))

(define-server-test a-ready-worker-destroyed-while-serving-gives-its-connection-up
  (let ((entered (make-latch 1)) (never (make-gate)) (victims (make-recorder)))
    (with-ready-engine (engine (lambda (char)
                                 (when (char= char #\w)
                                   (record victims (bt:current-thread))
                                   (count-down entered)
                                   (await never))
                                 nil))
      (with-connection (connection *port*)
        (send connection "w")
        (await entered)
        (bt:destroy-thread (first (recorded victims)))
        (is (closed-by-server-p connection)))
      (wait-for-statistic engine :open 0))))

;;; Figures

(define-server-test parked-connections-are-counted
  (with-ready-engine (engine (constantly nil))
    (is (zerop (statistic engine :parked)))
    (with-connection (first *port*)
      (with-connection (second *port*)
        (exchange-octets first "x")
        (exchange-octets second "x")
        (wait-for-statistic engine :parked 2)
        ;; A worker has the connection for a moment after it has parked it.
        (is-true (eventually ("both to be listed as parked")
                   (equal '(:parked :parked)
                          (mapcar (lambda (facts) (getf facts :state))
                                  (engine:list-engine-connections engine))))))
      (wait-for-statistic engine :parked 1))))

(define-server-test how-long-what-is-ready-waits-is-sampled
  (with-globals ((*tick* 1/100))
    (with-gated-engine (engine gate connections 2 :thread-limit 2)
      (eventually ("a sample") (plusp (getf (statistic engine :ready-waits) :count)))
      (send-each connections "w")
      (wait-for-statistic engine :busy 2)
      (eventually ("the wait to be seen while it lasts")
        (> (statistic engine :ready-wait) 1/5))
      (let ((count (getf (statistic engine :ready-waits) :count)))
        (open-gate gate)
        (eventually ("the wait to be over") (> (getf (statistic engine :ready-waits) :count) count))
        (is (>= (getf (statistic engine :ready-waits) :sum) 1/5))))))

(define-server-test resumes-and-suspends-are-counted
  (let ((many (+ 2 (usable-processors))))
    (with-gated-engine (engine gate connections many :standby many)
      (eventually ("some to rest") (plusp (statistic engine :suspends)))
      (send-each connections "w")
      (eventually ("some to be called") (plusp (statistic engine :resumes)))
      (is (plusp (statistic engine :resumes))))))

(define-server-test stopping-a-ready-engine-closes-what-is-parked
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (exchange-octets connection "x")
      (is (null (stop-patiently engine)))
      (is (closed-by-server-p connection))
      (is (null (engine:accounting-problems engine))))))

(define-server-test a-ready-engine-starts-and-stops-a-hundred-times
  (loop repeat 100
        do (with-ready-engine (engine (constantly nil))
             (with-connection (connection *port*)
               (exchange-octets connection "x")))))
