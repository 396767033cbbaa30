(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite processors :in engine
  :description "The same with few processors and with many.")

(in-suite processors)

(define-server-test processors-that-come-and-go-are-noticed
  (with-resting-engine (engine)
    (let ((controller (make-controller 2)))
      (setf (engine:engine-standby engine) 8)
      (dolist (processors '(4 1 64))
        (with-globals ((*processors* processors))
          (setf (controller-last-processor-count controller) 0)
          (count-processors engine controller (1+ *count-milliseconds*))
          (is (= processors (controller-processors controller)))
          (is (= (min 8 processors) (pool-state-floor (engine-pool-state engine)))))))))

;;; The engine

(define-server-test an-idle-pool-keeps-its-size
  (with-ready-engine (engine (constantly nil) :standby 3)
    (with-connection (connection *port*)
      (exchange-octets connection "x")
      (wait-for-statistic engine :busy 0)
      (let* ((pool (engine-pool-state engine))
             (tick (pool-state-tick pool))
             (made (statistic engine :made))) ; one more where "x" took long on a busy machine
        (eventually ("many looks of the sentinel") (> (pool-state-tick pool) (+ 100 tick)))
        (is (= made (statistic engine :made)))
        (is (<= 3 (statistic engine :threads) made))))))

(defparameter *tests-for-any-processors*
  '(an-idle-pool-keeps-its-size
    a-ready-connection-is-served-and-parked
    parked-connections-have-no-threads
    blocked-handlers-do-not-hold-up-others
    the-ready-engine-keeps-to-its-maximum-and-serves-everybody
    threads-return-to-the-floor
    ready-workers-destroyed-from-outside-are-replaced
    a-client-that-finds-as-many-served-or-waiting-as-may-be-is-refused
    handlers-that-block-leave-what-was-told-with-them-to-others
    a-slow-reader-holds-no-worker
    after-a-rest-blocked-handlers-hold-up-nobody
    stopping-a-ready-engine-closes-what-is-parked)
  "Tests of the ready engine that are run with several numbers of processors; all of its suites are
with the number that is given to RUN-ALL.")

(defmacro define-processor-tests (&rest numbers)
  "Defines for each of NUMBERS a test that the engine keeps its promises with so many processors."
  `(progn
     ,@(loop for number in numbers
             collect `(test ,(intern (format nil "WITH-~D-PROCESSORS-PROMISES-ARE-KEPT" number))
                        (with-globals ((*processors* ,number))
                          (mapc #'funcall *tests-for-any-processors*))))))

(define-processor-tests 1 4 64)
