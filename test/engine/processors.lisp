(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite processors :in engine
  :description "The same with few processors and with many.")

(in-suite processors)

;;; The rule

(defun awake-after (looks engine pacemaker)
  "How many workers PACEMAKER of ENGINE wants after as many LOOKS, when all are there whom it wants."
  (loop repeat looks
        do (engine::adjust-awake engine pacemaker (engine::pacemaker-awake pacemaker)))
  (engine::pacemaker-awake pacemaker))

(define-server-test more-are-awake-while-all-serve-and-fewer-when-somebody-waits-for-long
  (with-resting-engine (engine)
    (let ((pacemaker (engine::make-pacemaker 16 2)))
      (setf (engine::pace-floor (engine::engine-pace engine)) 2)
      (is (equal '(3 4 6 9 13 16 16) (loop repeat 7 collect (awake-after 1 engine pacemaker))))
      (pretend-to-wait engine)
      (is (= 16 (awake-after engine::*quiet-looks* engine pacemaker)))
      (is (= 15 (awake-after 1 engine pacemaker)))
      (is (= 2 (awake-after 100 engine pacemaker))))))

(define-server-test nobody-is-called-before-those-came-who-were-called
  (with-resting-engine (engine)
    (let ((pacemaker (engine::make-pacemaker 16 4)))
      (engine::adjust-awake engine pacemaker 3)
      (is (= 4 (engine::pacemaker-awake pacemaker))))))

(define-server-test processors-that-come-and-go-are-noticed
  (with-resting-engine (engine)
    (let ((pacemaker (engine::make-pacemaker 2 2)))
      (setf (engine::engine-standby engine) 8)
      (dolist (processors '(4 1 64))
        (with-globals ((engine::*processors* processors))
          (setf (engine::pacemaker-last-count pacemaker) 0)
          (engine::count-processors engine pacemaker (1+ engine::*count-milliseconds*))
          (is (= processors (engine::pacemaker-processors pacemaker)))
          (is (= (min 8 processors) (engine::pace-floor (engine::engine-pace engine)))))))))

;;; The engine

(define-server-test an-idle-pool-keeps-its-size
  (with-ready-engine (engine (constantly nil) :standby 3)
    (with-connection (connection *port*)
      (exchange-octets connection "x")
      (let* ((pace (engine::engine-pace engine))
             (tick (engine::pace-tick pace)))
        (eventually ("many looks of the sentinel") (> (engine::pace-tick pace) (+ 100 tick)))
        (is (= 3 (statistic engine :made)))
        (is (= 3 (statistic engine :threads)))))))

(defparameter *tests-for-any-processors*
  '(an-idle-pool-keeps-its-size
    a-ready-connection-is-served-and-parked
    parked-connections-have-no-threads
    blocked-handlers-do-not-hold-up-others
    the-ready-engine-keeps-to-its-maximum-and-serves-everybody
    threads-return-to-the-floor
    ready-workers-destroyed-from-outside-are-replaced
    who-finds-as-many-served-or-waiting-as-may-be-is-refused
    handlers-that-block-leave-what-was-told-with-them-to-others
    a-slow-reader-holds-no-worker
    after-a-rest-blocked-handlers-hold-up-nobody
    stopping-a-ready-engine-closes-what-is-parked)
  "Tests of the ready engine that are run with several numbers of processors; all of its suites are with
the number that is given to RUN-ALL.")

(defmacro define-processor-tests (&rest numbers)
  "Defines for each of NUMBERS a test that the engine keeps its promises with so many processors."
  `(progn
     ,@(loop for number in numbers
             collect `(test ,(intern (format nil "WITH-~D-PROCESSORS-PROMISES-ARE-KEPT" number))
                        (with-globals ((engine::*processors* ,number))
                          (mapc #'funcall *tests-for-any-processors*))))))

(define-processor-tests 1 2 4 16 64)
