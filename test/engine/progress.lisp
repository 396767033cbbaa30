(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite progress :in ready
  :description "A worker makes progress or leaves; so do peers.")

(in-suite progress)

;;; A service that is wrong about its input

(defclass insistent-service (octet-service)
  ()
  (:documentation "Says that there is more input, whatever it has read."))

(defmethod engine:serve ((service insistent-service) connection resuming-p)
  (declare (ignorable resuming-p))
  (let ((outcome (call-next-method)))
    (if (eq :park outcome) :next outcome)))

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

(defmethod engine:serve ((service waiting-service) connection resuming-p)
  (declare (ignorable resuming-p))
  (let ((outcome (call-next-method)))
    (cond ((eq outcome :wait)
           (await *more-came*)
           (await-end-of-input service connection)
           :close)
          (t outcome))))

(defmacro with-owned-connection ((engine connection service-class) &body body)
  "Evaluates BODY while a worker of ENGINE waits for the end of CONNECTION, and the kernel has
reported more of it meanwhile."
  `(with-globals ((*more-came* (make-gate)))
     (with-ready-engine (,engine (lambda (char) (case char (#\w :wait)))
                         :service-class ',service-class)
       (with-connection (,connection *port*)
         (is (equal "a" (exchange-octets ,connection "a")))
         (wait-for-statistic ,engine :parked 1)
         (is (equal "w" (exchange-octets ,connection "w")))
         (send ,connection "x")
         (eventually ("the report of another octet")
           (some-connection-p #'arrived-p ,engine))
         (open-gate *more-came*)
         ,@body))))

(defun some-connection-p (predicate engine)
  (block nil
    (map-connections (lambda (connection)
                       (when (funcall predicate connection)
                         (return t)))
                     (engine-table engine))
    nil))

(define-server-test a-deadline-holds-though-the-peer-has-sent-more
  (with-owned-connection (engine connection impatient-service)
    (is (closed-by-server-p connection))
    (is (= 1 (getf (statistic engine :expired-by) :handshake)))
    (wait-for-statistic engine :open 0)))

(define-server-test a-hard-stop-reaches-connections-whose-peers-have-sent-more
  (with-owned-connection (engine connection waiting-service)
    (is (null (stop-patiently engine)))
    (is (zerop (statistic engine :open)))))

;;; Peers that never end

(define-server-test a-client-that-keeps-sending-after-the-last-answer-is-cut-off
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

(defun large-answer-slowly-p (connection pause)
  "Whether CONNECTION gets as many octets as *LARGE-ANSWER* has, when PAUSE is called before each of
the first pieces: for twice the time for which the server waits, its socket takes no more."
  (flet ((all-p (count)
           (= count (length (receive-many connection count)))))
    (and (loop repeat 48
               always (progn (funcall pause)
                             (all-p *paced-octets*)))
         (all-p (- *large-size* (* 48 *paced-octets*))))))

(define-server-test a-reader-that-is-slow-and-steady-gets-the-whole-answer
  (is-true (call-at-pace
            (lambda (seconds pause)
              (with-ready-engine (engine #'large-answers :write-seconds seconds)
                (with-open-connection (slow (connect-with-small-buffer *port*))
                  (send slow "L")
                  (wait-until-writing engine 1)
                  (and (large-answer-slowly-p slow pause)
                       (zerop (getf (statistic engine :expired-by) :write)))))))))
