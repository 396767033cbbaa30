(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite progress :in ready
  :description "A worker makes progress or leaves; so do peers.")

(in-suite progress)

;;; A service that is wrong about its input

(defclass insistent-service (octet-service)
  ()
  (:documentation "Says that there is more input, whatever it has read."))

(defmethod engine:input-buffered-p ((service insistent-service) connection)
  (declare (ignore connection))
  t)

(define-server-test a-service-that-serves-nothing-of-what-it-claims-is-not-asked-again
  (with-ready-engine (engine (constantly nil) :service-class 'insistent-service)
    (with-connection (connection *port*)
      (is (equal "a" (exchange-octets connection "a")))
      (wait-for-statistic engine :parked 1)
      (wait-for-statistic engine :busy 0)
      (is (<= 1 (statistic engine :stalls) 3))
      (is (equal "b" (exchange-octets connection "b"))))
    (wait-for-statistic engine :open 0)))

;;; Connections that are owned, and of which more has come

(defvar *more-came* nil
  "A gate that a test opens.")

(defclass waiting-service (octet-service)
  ()
  (:documentation "Answers w, and then waits until more came, and for the end of the input."))

(defclass impatient-service (waiting-service)
  ()
  (:documentation "Waits for the end of the input for a tenth of a second."))

(defgeneric await-end-of-input (service connection)
  (:documentation "Reads CONNECTION of SERVICE until its end.")
  (:method (service connection)
    (loop with buffer = (octets "....")
          with descriptor = (engine:connection-descriptor connection)
          for count = (platform:receive-octets descriptor buffer 0 4)
          while (or (plusp count) (platform:would-block-p count))
          do (poll (constantly nil) 1/100)))
  (:method ((service impatient-service) connection)
    (engine:call-with-deadline connection :handshake 1/10 #'call-next-method)))

(defmethod engine:serve ((service waiting-service) connection)
  (let ((outcome (call-next-method)))
    (cond ((eq outcome :wait)
           (await *more-came*)
           (await-end-of-input service connection)
           :close)
          (t outcome))))

(defmacro with-owned-connection ((engine connection service-class) &body body)
  "Evaluates BODY while a worker of ENGINE waits for the end of CONNECTION, and the kernel has reported
more of it meanwhile."
  `(with-globals ((*more-came* (make-gate)))
     (with-ready-engine (,engine (lambda (char) (case char (#\w :wait)))
                         :service-class ',service-class)
       (with-connection (,connection *port*)
         (is (equal "a" (exchange-octets ,connection "a")))
         (wait-for-statistic ,engine :parked 1)
         (is (equal "w" (exchange-octets ,connection "w")))
         (send ,connection "x")
         (eventually ("the report of another octet")
           (some-connection-p #'engine::arrived-p ,engine))
         (open-gate *more-came*)
         ,@body))))

(defun some-connection-p (predicate engine)
  (plusp (engine::count-connections predicate engine)))

(define-server-test a-deadline-holds-though-the-peer-has-sent-more
  (with-owned-connection (engine connection impatient-service)
    (is (closed-by-server-p connection))
    (is (= 1 (getf (statistic engine :expired-by) :handshake)))
    (wait-for-statistic engine :open 0)))

(define-server-test a-hard-stop-reaches-connections-whose-peers-have-sent-more
  (with-owned-connection (engine connection waiting-service)
    (is (null (engine:stop-engine engine)))
    (is (zerop (statistic engine :open)))))

;;; Peers that never end

(define-server-test who-keeps-sending-after-the-last-answer-is-cut-off
  (with-ready-engine (engine (lambda (char) (case char (#\c :close))))
    (with-connection (connection *port*)
      (send connection "c" (test-octets 100000))
      (is (equal "c" (decode (read-octets connection 1))))
      (let ((sender (in-background ("a peer that keeps sending")
                      (loop repeat 100000
                            do (send connection (test-octets 10000))))))
        (wait-for-statistic engine :open 0)
        (is (eq :cut-off (handler-case (task-result sender)
                           (patience-lost () nil)
                           (error () :cut-off))))))))

;;; Readers that are slow, and steady

(defun read-slowly (connection size piece seconds)
  "Reads SIZE octets from CONNECTION, at most PIECE of them in SECONDS; returns how many came."
  (loop for left = size then (- left (length octets))
        for octets = (receive-many connection (min piece left))
        while (plusp (length octets))
        sum (length octets)
        while (> left (length octets))
        do (poll (constantly nil) seconds)))

(define-server-test a-reader-that-is-slow-and-steady-gets-the-whole-answer
  (with-ready-engine (engine #'large-answers :write-seconds 1/2)
    (with-open-connection (slow (connect-with-small-buffer *port*))
      (send slow "L")
      (wait-until-writing engine 1)
      ;; Some six times the limit, in which the socket takes no more.
      (is (= 1000000 (read-slowly slow 1000000 16000 1/20)))
      (is (= (- *large-size* 1000000)
             (length (receive-many slow (- *large-size* 1000000)))))
      (is (zerop (getf (statistic engine :expired-by) :write))))))
