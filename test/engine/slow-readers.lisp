(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite slow-readers :in ready
  :description "Peers that take their time to take an answer: no worker waits for them.")

(in-suite slow-readers)

(defparameter *large-size* 9000000
  "More octets than the buffers of a connection hold.")

(defparameter *large-answer* (test-octets *large-size*))

(defun large-answers (char)
  "The meaning of CHAR: L is answered largely, C too but for the last time."
  (case char
    (#\L *large-answer*)
    (#\C (list *large-answer* :close))))

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

(defun wait-until-writing (engine count)
  "Waits until COUNT peers of ENGINE hold up their answers, without a worker."
  (wait-for-statistic engine :writing count)
  (wait-for-statistic engine :busy 0))

(define-server-test a-slow-reader-holds-no-worker
  (with-ready-engine (engine #'large-answers :standby 1 :thread-limit 1)
    (with-connection (slow *port*)
      (send slow "L")
      (wait-until-writing engine 1)
      (with-connection (other *port*)
        (is (equal "x" (exchange-octets other "x"))))
      (is (member :writing (engine:list-engine-connections engine)
                  :key (lambda (plist) (getf plist :state))))
      (is (whole-answer-p slow))
      (wait-for-statistic engine :writing 0)
      (is (equal "y" (exchange-octets slow "y"))))))

(define-server-test what-comes-while-an-answer-is-written-is-answered-after-it
  (with-ready-engine (engine #'large-answers)
    (with-connection (slow *port*)
      (send slow "L")
      (wait-until-writing engine 1)
      (send slow "a")
      (send slow "Lb")
      (is (whole-answer-p slow))
      (is (equal "a" (decode (read-octets slow 1))))
      (is (whole-answer-p slow))
      (is (equal "b" (decode (read-octets slow 1)))))
    (wait-for-statistic engine :open 0)))

(define-server-test a-slow-reader-that-sends-no-more-gets-all-answers
  (with-ready-engine (engine #'large-answers)
    (with-connection (slow *port*)
      (send slow "LaL")
      (end-sending slow)
      (wait-until-writing engine 1)
      (is (whole-answer-p slow))
      (is (equal "a" (decode (read-octets slow 1))))
      (is (whole-answer-p slow))
      (is (closed-by-server-p slow)))
    (wait-for-statistic engine :open 0)))

(define-server-test the-last-answer-arrives-whole-though-more-was-sent
  (with-ready-engine (engine #'large-answers)
    (with-connection (slow *port*)
      (send slow "C")
      (wait-until-writing engine 1)
      (send slow "never read")
      (is (whole-answer-p slow))
      (is (closed-by-server-p slow)))
    (wait-for-statistic engine :open 0)))

(define-server-test a-slow-reader-that-resets-is-forgotten
  (with-ready-engine (engine #'large-answers)
    (let ((slow (connect *port*)))
      (send slow "L")
      (wait-until-writing engine 1)
      (reset slow))
    (wait-for-statistic engine :open 0)
    (is (zerop (statistic engine :failed)))))

(define-server-test a-client-that-reads-nothing-is-ended-by-the-write-deadline
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine #'large-answers :write-seconds 1/5)
      (with-connection (slow *port*)
        (send slow "L")
        (wait-for-statistic engine :expired 1)
        (wait-for-statistic engine :open 0)
        (is (cut-answer-p slow))))))

(defun deadlines (engine)
  "The deadlines of the connections of ENGINE, in milliseconds."
  (let ((deadlines '()))
    (map-connections (lambda (connection)
                       (push (engine:connection-deadline connection) deadlines))
                     (engine-table engine))
    deadlines))

(define-server-test the-write-deadline-is-renewed-when-octets-are-taken
  (with-ready-engine (engine #'large-answers :write-seconds 100)
    (with-connection (slow *port*)
      (send slow "L")
      (wait-until-writing engine 1)
      (let ((deadline (first (deadlines engine))))
        (eventually ("the engine's clock to go on")
          (< (+ 5 deadline)
             (+ 100000 (coarse-now (engine-pool-state engine)))))
        (eventually ("the deadline to be renewed")
          (receive-many slow 200000)
          (some (lambda (later) (and later (< deadline later))) (deadlines engine)))))))

(define-server-test a-soft-stop-waits-for-slow-readers
  (with-ready-engine (engine #'large-answers)
    (with-connection (slow *port*)
      (with-connection (idle *port*)
        (exchange-octets idle "x")
        (send slow "L")
        (wait-until-writing engine 1)
        (let ((stop (in-background ("soft stop")
                      (engine:stop-engine engine :soft t))))
          (is (closed-by-server-p idle))
          (wait-for-statistic engine :busy 0)
          (is (not (task-done-p stop)))
          (is (whole-answer-p slow))
          (is (closed-by-server-p slow))
          (is (null (task-result stop)))
          (is (null (engine:accounting-problems engine))))))))

(defun states-left (left)
  "The states of what STOP-ENGINE had to leave, LEFT, sorted."
  (sort (loop for plist in left collect (getf plist :state)) #'string<))

(define-server-test a-soft-stop-waits-no-longer-than-it-may
  (with-ready-engine (engine #'large-answers)
    (with-connection (slow *port*)
      (send slow "L")
      (wait-until-writing engine 1)
      (is (equal '(:writing) (states-left (engine:stop-engine engine :soft t :timeout 1/10))))
      (is (null (engine:accounting-problems engine)))
      (is (cut-answer-p slow)))))

(define-server-test a-hard-stop-does-not-wait-for-slow-readers
  (with-ready-engine (engine #'large-answers)
    (with-connection (slow *port*)
      (send slow "L")
      (wait-until-writing engine 1)
      (is (null (stop-patiently engine)))
      (is (null (engine:accounting-problems engine)))
      (is (cut-answer-p slow)))))

;;; Answers that give way to others

(defun connections-of (engine)
  "A list of the connections of ENGINE."
  (let ((connections '()))
    (map-connections (lambda (connection) (push connection connections)) (engine-table engine))
    connections))

(define-server-test an-answer-that-gives-way-is-dropped-at-once-and-counts-once
  (let ((blocked (make-gate)) (go-on (make-gate)))
    (with-ready-engine (engine (lambda (char)
                                 (case char
                                   (#\L *large-answer*)
                                   (#\B (open-gate blocked) (await go-on) nil)))
                        :standby 1 :thread-limit 1)
      (with-connection (slow *port*)
        (send slow "L")
        (wait-until-writing engine 1)
        (let ((connection (first (connections-of engine)))
              (reserved (engine:client-memory-reserved)))
          (with-connection (other *port*)
            (send other "B")
            (await blocked)             ; no worker is free any more
            (unwind-protect
                 (progn
                   (is-true (engine:evict-oldest engine))
                   (is (<= (engine:client-memory-reserved) (- reserved *large-size*)))
                   (is (null (engine:connection-output connection)))
                   (is-false (engine:evict-oldest engine))
                   (evict-idle-connections engine)
                   (is (= 1 (getf (statistic engine :expired-by) :evicted)))
                   (is (zerop (statistic engine :parked)) "It waits for nothing but its end."))
              (open-gate go-on))))
        (is (cut-answer-p slow))
        (wait-for-statistic engine :open 0)
        (is (= 1 (statistic engine :expired)))))))

;;; What is left when a service fails

(defclass late-failing-service (octet-service)
  ()
  (:documentation "Fails when it has left an answer."))

(defmethod engine:serve :after ((service late-failing-service) connection resuming-p)
  (declare (ignore resuming-p))
  (when (engine:connection-output connection)
    (error "This fails after the answer.")))

(define-server-test an-answer-that-was-left-before-its-service-failed-arrives-whole
  (with-ready-engine (engine #'large-answers :service-class 'late-failing-service)
    (with-connection (slow *port*)
      (send slow "L")
      (wait-until-writing engine 1)
      (is (= 1 (statistic engine :failed)))
      (is (whole-answer-p slow))
      (is (closed-by-server-p slow)))
    (wait-for-statistic engine :open 0)))

;;; The rule

(defmacro with-taker ((look unsent queue) &body body)
  "Evaluates BODY with QUEUE, a send queue of 1000 octets.  LOOK, a function of a time in
milliseconds, looks what its peer has taken, which has 10 seconds for some, and has to take 100
octets a second after 20, while the kernel holds UNSENT octets, at first 500; it returns true
while the peer may go on."
  `(where-supported
    (let ((,unsent 500) (,queue (engine:make-send-queue)))
      (engine:limit-taking ,queue 10 100 20)
      (engine:enqueue ,queue (list (engine:make-octets-part (test-octets 1000))))
      (with-function (platform:unsent-octets (original descriptor) ,unsent)
        (flet ((,look (now)
                 (engine:look-at-taker ,queue -1 now)
                 (not (engine:taker-given-up-p ,queue now))))
          ,@body)))))

(define-server-test a-client-that-takes-nothing-has-its-time-and-has-it-again-when-it-takes-some
  (with-taker (look unsent queue)
    (is-true (look 0))
    (is-true (look 9999))
    (decf unsent)
    (is-true (look 10000))
    (is-true (look 19999))
    (is-false (look 20000))))

(define-server-test a-client-below-the-least-rate-is-given-up-after-a-time-of-grace
  (with-taker (look unsent queue)
    (loop for now from 0 to 19000 by 1000
          do (is-true (look now))
             (decf unsent))
    (is-false (look 20200))))

(define-server-test a-client-that-takes-octets-put-behind-its-answer-counts-as-one-that-takes
  (with-taker (look unsent queue)
    (loop for now from 0 to 100000 by 5000
          do (is-true (look now))
             (engine:enqueue queue (list (engine:make-octets-part (test-octets 1000))))
             ;; The part before that leaves, and is taken.
             (pop (engine:send-queue-parts queue)))))

(define-server-test time-in-which-nobody-waits-does-not-count
  (with-taker (look unsent queue)
    (loop for now from 0 by 100000
          repeat 5
          do (is-true (look now))
             (is-true (look (+ now 3000)))
             (engine:end-wait queue))
    (is-true (look 900000))
    (is-true (look 903000))
    (is-true (look 904999))
    (is-false (look 905000) "It was waited for for 20 seconds by now.")
    (engine:reset-taking queue)
    (is-true (look 906000))))

;;; Resuming threads

(defclass visited-service (octet-service)
  ((visited :initform nil :accessor last-visited
            :documentation "The connection that was served last.")
   (too-early :initform (make-recorder) :reader visits-too-early
              :documentation "Visits to connections that had output left."))
  (:documentation "Its answers come later."))

(defmethod engine:serve :before ((service visited-service) connection resuming-p)
  (declare (ignore resuming-p))
  (setf (last-visited service) connection))

(defmethod engine:serve ((service visited-service) connection resuming-p)
  (cond ((not resuming-p) (call-next-method))
        (t
         (when (engine:connection-output connection)
           (record (visits-too-early service) connection))
         :deferred)))

(defun visiting-sender (engine connection)
  "A function that sends the output of CONNECTION: the first time another one visits that meanwhile,
and it takes none."
  (let ((descriptor (engine:connection-descriptor connection))
        (first-p t))
    (lambda (parts)
      (if (shiftf first-p nil)
          (progn (engine:resume-connection engine connection)
                 platform:+would-block+)
          (let ((part (first parts)))
            (platform:send-octets descriptor (engine:octets-part-octets part)
                                  (engine:part-position part) (engine:part-end part)))))))

(define-server-test two-who-visit-a-slow-reader-let-what-is-left-go-first
  (with-ready-engine (engine (lambda (char) (when (char= #\L char) (list *large-answer* :deferred)))
                      :service-class 'visited-service)
    (with-connection (slow *port*)
      (send slow "L")
      (wait-until-writing engine 1)
      (let ((connection (last-visited *service*)))
        (setf (engine:send-queue-sender (engine:connection-queue connection))
              (visiting-sender engine connection))
        (engine:resume-connection engine connection))
      (is (whole-answer-p slow))
      (is (zerop (recorded-count (visits-too-early *service*)))))))
