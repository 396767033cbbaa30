(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite timers :in engine
  :description "Functions that are called later: order, cancelling, failures, and their end.")

(in-suite timers)

;;; The heap, with moments that the test makes up

(defun add-at (timers deadline &optional (function 'list))
  "Adds a timer, due at DEADLINE, to TIMERS, and returns it."
  (let ((timer (make-timer timers function)))
    (loop while (eq :full (add-timer timers timer deadline))
          do (grow-heap timers))
    timer))

(defun take-all-due (timers now)
  "The functions of TIMERS that are due at NOW, in their order."
  (loop for function = (take-due-timer timers now)
        while function collect function))

(test timers-are-due-in-the-order-of-their-deadlines
  (let ((timers (make-timers)))
    (loop for deadline in '(50 20 90 10 70)
          for name in '(c b e a d)
          do (add-at timers deadline name))
    (is (null (take-all-due timers 9)))
    (is (equal '(a b) (take-all-due timers 49)))
    (is (equal '(c d e) (take-all-due timers 1000)))
    (is (null (take-all-due timers 2000)))))

(test timers-of-one-deadline-are-due-as-they-were-scheduled
  (let ((timers (make-timers)) (names '(a b c d e f g h i j)))
    (dolist (name names)
      (add-at timers 10 name))
    (is (equal names (take-all-due timers 10)))))

(test a-timer-that-is-cancelled-lets-go-of-its-function-and-of-its-place
  (let* ((timers (make-timers))
         (others (loop for deadline below 40 collect (add-at timers deadline)))
         (timer (nth 7 others)))
    (is-true (engine:cancel timer))
    (is (null (timer-function timer)))
    (is (null (find timer (timers-entries timers))))
    (is (= 39 (timers-count timers)))
    (is (null (engine:cancel timer)) "It is cancelled once.")
    (is (= 39 (length (take-all-due timers 100))))))

(test a-timer-that-is-due-lets-go-of-its-function
  (let* ((timers (make-timers)) (timer (add-at timers 5)))
    (is (equal '(list) (take-all-due timers 5)))
    (is (null (timer-function timer)))
    (is (every #'null (timers-entries timers)))
    (is (null (engine:cancel timer)))))

(test timers-that-are-closed-drop-what-they-have-and-what-comes
  (let* ((timers (make-timers))
         (before (loop for deadline below 100 collect (add-at timers deadline)))
         (later (progn (close-timers timers) (add-at timers 1))))
    (is (every (lambda (timer) (null (timer-function timer))) (cons later before)))
    (is (notany #'engine:cancel (cons later before)))
    (is (every #'null (timers-entries timers)))
    (is (null (take-all-due timers 1000)))
    (close-timers timers)
    (is (equal '(:pending 0 :run 0 :failed 0 :cancelled 0 :dropped 101)
               (timer-statistics timers)))))

(defun model-before-p (one other)
  "True when ONE, a list of a deadline and a number, is due before OTHER."
  (or (< (first one) (first other))
      (and (= (first one) (first other)) (< (second one) (second other)))))

(defun check-heap-against-model (state steps)
  "Does STEPS random things to timers and to a list of them.  True when both are the same all the
time."
  (let ((timers (make-timers)) (model '()) (now 0))
    (flet ((add ()
             (let* ((deadline (+ now (random 300 state)))
                    (timer (add-at timers deadline)))
               (push (list deadline (timer-number timer) timer) model)
               t))
           (cancel-one ()
             (let ((entry (nth (random (length model) state) model)))
               (setf model (remove entry model))
               (engine:cancel (third entry))))
           (take ()
             (incf now (random 20 state))
             (let* ((sorted (sort (copy-list model) #'model-before-p))
                    (due (loop for entry in sorted while (<= (first entry) now) collect entry))
                    (taken (first due)))
               (setf model (remove taken model))
               (multiple-value-bind (function next) (take-due-timer timers now)
                 (when (eq next :set)
                   (setf (timers-setting timers) nil))
                 (and (eq (null taken) (null function))
                      (or (null taken) (minusp (timer-place (third taken))))
                      (eq (eq next :due) (and (rest due) t)))))))
      (loop repeat steps
            always (and (case (random 5 state)
                          ((0 1) (add))
                          (2 (if model (cancel-one) t))
                          (t (take)))
                        (= (length model) (timers-count timers))
                        (loop for (nil nil timer) in model
                              always (eq timer (svref (timers-entries timers)
                                                      (timer-place timer)))))))))

(test a-heap-is-what-a-sorted-list-would-be
  (let ((seed (fresh-seed)))
    (format t "~&[seed ~D] " seed)
    (is-true (check-heap-against-model (seeded-state seed) 3000))))

;;; The alarm

(test the-alarm-is-set-for-who-is-first-only
  (let ((timers (make-timers)))
    (flet ((add (deadline)
             (prog1 (add-timer timers (make-timer timers 'list) deadline)
               (setf (timers-setting timers) nil))))
      (is-true (add 10000))
      (is (null (add 20000)))
      (is (null (add 10001)) "It rings for both at once.")
      (is-true (add 5000))
      (is (= 5000 (timers-alarm timers))))))

(test while-one-thread-sets-the-alarm-others-leave-it-to-that
  (let ((timers (make-timers)))
    (is-true (add-timer timers (make-timer timers 'list) 10000))
    (is (null (add-timer timers (make-timer timers 'list) 5000)))
    (is (= 5000 (timers-alarm timers)))))

(test an-alarm-that-has-rung-while-it-was-set-is-set-again-for-the-same-moment
  (let ((timers (make-timers)))
    (is-true (add-timer timers (make-timer timers 'list) 990))
    (is (null (claim-next-alarm timers 1005)) "Who sets it is told so.")
    (is (= 1000 (timers-alarm timers)))
    (is (null (end-setting timers)))
    (is-true (end-setting timers))
    (is-true (claim-next-alarm timers 1005))))

(test an-alarm-that-has-rung-is-set-anew-when-nothing-more-is-due
  (let ((timers (make-timers)))
    (add-at timers 1000)
    (add-at timers 1001)
    (add-at timers 900000)
    (setf (timers-setting timers) nil)
    (is (eq :due (nth-value 1 (take-due-timer timers 1250))))
    (is (eq :set (nth-value 1 (take-due-timer timers 1250))))
    (is (= 900000 (timers-alarm timers)))
    (setf (timers-setting timers) nil)
    (is (null (nth-value 1 (take-due-timer timers 1250))) "It is set already.")))

(test an-alarm-rings-no-earlier-than-who-it-is-for
  (loop for deadline from 1 to 2000 by 7
        for moment = (alarm-moment deadline)
        do (is (<= deadline moment (+ deadline *alarm-microseconds*)))))

(test seconds-of-all-kinds-are-taken
  (loop for (seconds microseconds) in `((0 0) (1 1000000) (1/1000 1000) (0.001 1000) (1d-3 1000)
                                        (0.25 250000) (-1 0) (-1.0 0) (1/3000000 1)
                                        (2000.0 2000000000)
                                        (,(expt 10 30) ,(ash 1 60)) (1d30 ,(ash 1 60)))
        ;; A float of 0.001 is a little more than that.
        do (is (<= microseconds (delay-microseconds seconds) (1+ microseconds)) "~A" seconds)))

(test a-timer-that-waits-for-long-may-be-late-by-a-thousandth-and-shares-its-moment-with-others
  (is (= 1234 (engine::deadline-after 1000 234)))
  (is (= 300234 (engine::deadline-after 300000 234)))
  (is (= 5004000 (engine::deadline-after 5000000 234) (engine::deadline-after 5000000 4000)))
  (is (= 5000000 (engine::deadline-after 5000000 0)))
  (let* ((seed (fresh-seed)) (state (seeded-state seed)))
    (loop repeat 10000
          for delay = (random (expt 10 (1+ (random 12 state))) state)
          for now = (random (expt 10 12) state)
          for late = (- (engine::deadline-after delay now) delay now)
          do (unless (<= 0 late (min (floor delay 1000) 4000))
               (fail "seed ~D: ~D us late, of ~D from ~D" seed late delay now)
               (return))
          finally (pass))))

;;; In engines that run

(defun call-with-each-engine (function)
  "Calls FUNCTION with each kind of engine, which runs meanwhile, and has requests answered by an
octet."
  (with-running-engine (engine (constantly :close))
    (funcall function engine))
  (when (platform:readiness-supported-p)
    (with-ready-engine (engine (constantly nil))
      (funcall function engine))))

(defmacro with-each-engine ((engine) &body body)
  "Evaluates BODY while ENGINE runs: the blocking engine, and the ready engine."
  `(call-with-each-engine (lambda (,engine) ,@body)))

(defun timer-statistic (engine name)
  (getf (statistic engine :timers) name))

(defun wait-for-timers (engine name value)
  (eventually ((format nil "~A timers to be ~A, in ~A" value name (statistic engine :timers)))
    (eql value (timer-statistic engine name))))

(defun parks-p (engine)
  "True for a ready engine."
  (not (typep engine 'engine:blocking-engine)))

(define-server-test a-function-is-called-when-its-time-has-come-and-not-before
  (with-each-engine (engine)
    (let* ((gate (make-gate)) (called nil)
           (begun (platform:microseconds)))
      (engine:schedule engine 0.02 (lambda ()
                                     (setf called (platform:microseconds))
                                     (open-gate gate)))
      (await gate)
      (is (>= (- called begun) 20000))
      (is (= 1 (timer-statistic engine :run))))))

(define-server-test the-timer-that-is-due-first-is-called-first-whichever-came-first
  (with-each-engine (engine)
    (let ((gate (make-gate)))
      (engine:schedule engine 1000 (constantly nil))
      (engine:schedule engine 0 (lambda () (open-gate gate)))
      (await gate)
      (is (= 1 (timer-statistic engine :pending))))))

(define-server-test a-function-may-have-a-name
  (with-each-engine (engine)
    (engine:schedule engine 0 'list)
    (is-true (wait-for-timers engine :run 1))
    (is (zerop (timer-statistic engine :failed)))))

(define-server-test a-timer-can-be-cancelled-until-it-begins
  (with-each-engine (engine)
    (let* ((calls (make-recorder)) (gate (make-gate)) (timer nil) (known (make-gate))
           (cancelled (engine:schedule engine 0.05 (lambda () (record calls :cancelled)))))
      (is-true (engine:cancel cancelled))
      (is (null (engine:cancel cancelled)))
      (setf timer (engine:schedule engine 0 (lambda ()
                                              (await known)
                                              (record calls (engine:cancel timer))
                                              (open-gate gate))))
      (open-gate known)
      (await gate)
      (is (null (engine:cancel timer)))
      (engine:schedule engine 0.1 (lambda () (record calls :last)))
      (is-true (wait-for-timers engine :run 2))
      (eventually ("the last one") (= 2 (recorded-count calls)))
      (is (equal '(nil :last) (recorded calls)))
      (is (= 1 (timer-statistic engine :cancelled))))))

(define-server-test a-timer-may-cancel-another-and-schedule-one
  (with-each-engine (engine)
    (let* ((gate (make-gate)) (calls (make-recorder))
           (other (engine:schedule engine 0.2 (lambda () (record calls :other)))))
      (engine:schedule engine 0 (lambda ()
                                  (record calls (engine:cancel other))
                                  (engine:schedule (engine:current-engine) 0
                                                   (lambda () (open-gate gate)))))
      (await gate)
      (is (equal '(t) (recorded calls)))
      (is (= 1 (timer-statistic engine :cancelled))))))

(defvar *many-timers* (rounds 100000)
  "How many timers are pending at once in tests.")

(define-server-test many-are-pending-and-each-is-called-once
  (with-each-engine (engine)
    (let* ((calls (make-array *many-timers* :initial-element 0))
           (seed (fresh-seed))
           (state (seeded-state seed)))
      (format t "~&[seed ~D] " seed)
      (dotimes (number *many-timers*)
        (let ((number number))
          (engine:schedule engine (/ (random 1000 state) 1000.0)
                           (lambda () (incf (svref calls number))))))
      (let ((*patience* 60))
        (wait-for-timers engine :run *many-timers*)
        (eventually ("the last functions to return")
          (every #'plusp calls)))
      (is (every (lambda (count) (= count 1)) calls))
      (is (zerop (timer-statistic engine :pending))))))

(define-server-test what-is-pending-is-dropped-by-a-stop
  (with-each-engine (engine)
    (let ((timers (loop repeat 1000
                        collect (engine:schedule engine 1000 (lambda () (error "Too late."))))))
      (is (= 1000 (timer-statistic engine :pending)))
      (is (null (engine:stop-engine engine :soft t)))
      (is (= 1000 (timer-statistic engine :dropped)))
      (is (zerop (timer-statistic engine :pending)))
      (is (notany #'timer-function timers))
      (is (notany #'engine:cancel timers))
      (is (null (engine:accounting-problems engine)))
      (engine:schedule engine 0 (lambda () (error "Much too late.")))
      (is (= 1001 (timer-statistic engine :dropped))))))

(define-server-test a-stop-waits-for-a-function-that-runs
  (with-each-engine (engine)
    (let ((begun (make-gate)) (gate (make-gate)) (ended nil))
      (engine:schedule engine 0 (lambda ()
                                  (open-gate begun)
                                  (await gate)
                                  (setf ended t)))
      (await begun)
      (let ((stopping (in-background ("stop") (engine:stop-engine engine :soft t))))
        (is (not (poll (lambda () (task-done-p stopping)) 1/10)))
        (open-gate gate)
        (is (null (task-result stopping)))
        (is-true ended)))))

(define-server-test a-stop-that-cannot-wait-leaves-a-function-to-its-end
  (with-each-engine (engine)
    (let ((begun (make-gate)) (gate (make-gate)))
      (engine:schedule engine 0 (lambda () (open-gate begun) (await gate)))
      (await begun)
      (engine:stop-engine engine :timeout 0)
      (is (= 1 (length (engine:accounting-problems engine))) "It has not ended.")
      (open-gate gate)
      (eventually ("its end") (null (engine:accounting-problems engine)))
      (eventually ("the release of what the engine held") (not (engine-resources-held-p engine))))))

(define-server-test abandoning-destroys-who-runs-a-function
  (with-each-engine (engine)
    (let ((begun (make-gate)))
      (engine:schedule engine 0 (lambda () (open-gate begun) (await (make-gate) 60)))
      (await begun)
      (engine:abandon-engine engine)
      (is (null (engine:accounting-problems engine))))))

(define-server-test stop-in-a-function-is-refused
  (with-each-engine (engine)
    (let ((refusals (make-recorder)) (gate (make-gate)))
      (engine:schedule engine 0 (lambda ()
                                  (handler-case (engine:stop-engine engine)
                                    (engine:stop-from-worker (condition)
                                      (record refusals condition)))
                                  (open-gate gate)))
      (await gate)
      (is (= 1 (recorded-count refusals))))))

(define-server-test errors-are-noted-and-counted-and-others-go-on
  (with-each-engine (engine)
    (let ((gate (make-gate)))
      (loop repeat 3 do (engine:schedule engine 0 (lambda () (error "No luck today."))))
      (engine:schedule engine 0 'there-is-no-such-function)
      (engine:schedule engine 0 (lambda () (open-gate gate)))
      (await gate)
      (is-true (wait-for-timers engine :failed 4))
      (is (= 5 (timer-statistic engine :run)))
      (is (= 3 (count-if (lambda (note)
                           (and (eq :error (car note)) (search "No luck today." (cdr note))))
                         (recorded (fake-notes *service*)))))
      (is (zerop (statistic engine :failed)) "That counts failures of ours."))))

(define-condition unprintable (error)
  ()
  (:report (lambda (condition stream)
             (declare (ignore stream))
             (error "Nobody can tell what ~S is." (type-of condition)))))

(define-server-test an-error-that-cannot-be-printed-is-noted-by-its-type
  (with-each-engine (engine)
    (engine:schedule engine 0 (lambda () (error 'unprintable)))
    (is-true (wait-for-timers engine :failed 1))
    (is (= 1 (count-if (lambda (note)
                         (and (eq :error (car note)) (search "UNPRINTABLE" (cdr note))))
                       (recorded (fake-notes *service*)))))))

(define-server-test a-thread-that-is-destroyed-in-a-function-loses-that-one-only
  (with-each-engine (engine)
    (with-globals ((*tick* 1/100) (*idle-tick* 1/100))
      (let ((thread nil) (begun (make-gate)) (gate (make-gate)))
        (engine:schedule engine 0 (lambda ()
                                    (setf thread (bt:current-thread))
                                    (open-gate begun)
                                    (await (make-gate) 60)))
        (loop repeat 10 do (engine:schedule engine 0.05 (constantly nil)))
        (await begun)
        (platform:destroy-thread thread)
        (engine:schedule engine 0.1 (lambda () (open-gate gate)))
        (await gate)
        (is-true (wait-for-timers engine :run 12))
        (is-true (wait-for-timers engine :failed 1))
        (is (zerop (timer-statistic engine :pending)))))))

(define-server-test (a-thread-that-is-destroyed-before-it-calls-a-function-leaves-that-to-another
                     :needs (:deferred-ends :calls-by-name))
  (with-each-engine (engine)
    (with-globals ((*tick* 1/100) (*idle-tick* 1/100))
      (let ((first-p t) (gate (make-gate)))
        (with-function (next-due-function (original engine now)
                         (multiple-value-bind (function more-p) (funcall original engine now)
                           (when (and function (shiftf first-p nil))
                             (let* ((thread (bt:current-thread))
                                    (other (bt:make-thread (lambda ()
                                                             (platform:destroy-thread thread)))))
                               (platform:join-thread other 10)))
                           (values function more-p)))
          (engine:schedule engine 0 (lambda () (open-gate gate)))
          (await gate))
        (is (null first-p))
        (is-true (wait-for-timers engine :run 1))
        (is (zerop (timer-statistic engine :failed)))))))

(defun schedule-until (over-p engine seed)
  "Schedules functions of ENGINE, and cancels some by SEED, until OVER-P is true; returns how many
it scheduled."
  (loop with state = (seeded-state seed)
        until (funcall over-p)
        count t
        do (let ((timer (engine:schedule engine (/ (random 3 state) 1000) (constantly nil))))
             (when (zerop (random 4 state))
               (engine:cancel timer)))
           (when (> (timer-statistic engine :pending) 5000)
             (poll (constantly nil) 1/500))))

(define-server-test whoever-schedules-while-the-engine-stops-gets-a-call-or-a-drop
  (let* ((seed (fresh-seed)) (state (seeded-state seed)))
    (format t "~&[seed ~D] " seed)
    (loop repeat 5
          do (with-each-engine (engine)
               (let* ((pause (/ (random 30 state) 1000))
                      (over nil)
                      (schedulers (loop for number below 4
                                        collect (let ((number number))
                                                  (in-background ("scheduler")
                                                    (schedule-until (lambda () over) engine
                                                                    (+ seed number)))))))
                 (poll (constantly nil) pause)
                 (engine:stop-engine engine :soft (zerop (random 2 state)))
                 (poll (constantly nil) 1/100)
                 (setf over t)
                 (let ((scheduled (reduce #'+ (mapcar #'task-result schedulers)))
                       (counts (statistic engine :timers)))
                   (is (= scheduled (+ (getf counts :run) (getf counts :cancelled)
                                       (getf counts :dropped)))
                       "~D were scheduled: ~S." scheduled counts)
                   (is (zerop (getf counts :pending)))
                   (is (zerop (getf counts :failed)))
                   (is (null (engine:accounting-problems engine)))))))))

(define-server-test (the-thread-that-sets-the-alarm-sets-it-again-when-others-want-it-earlier
                     :needs :calls-by-name)
  (with-running-engine (engine (constantly :close))
    (let ((moments (make-recorder)) (first-p t))
      (with-function (set-alarm-clock (original engine moment)
                       (record moments moment)
                       (when (shiftf first-p nil)
                         (task-result (in-background ("another")
                                        (engine:schedule engine 500 (constantly nil))))))
        (engine:schedule engine 1000 (constantly nil)))
      (is (= 2 (recorded-count moments)))
      (is (apply #'> (recorded moments)))
      (is (null (timers-setting (engine-timers engine)))))))

;;; Where the timer thread is

(define-server-test an-engine-without-timers-has-no-thread-for-them
  (with-each-engine (engine)
    (is (null (timers-thread (engine-timers engine))))))

(define-server-test a-thread-for-timers-that-cannot-be-made-is-made-later
  (with-globals ((*tick* 1/100) (*idle-tick* 1/100))
    (with-each-engine (engine)
      (let ((failures 2) (gate (make-gate)))
        (with-function (engine:make-engine-thread (original service role thunk)
                         (when (and (eq :timers role) (plusp failures))
                           (decf failures)
                           (error "No more threads."))
                         (funcall original service role thunk))
          (engine:schedule engine 0 (lambda () (open-gate gate)))
          (await gate))
        (is (= 1 (timer-statistic engine :run)))))))

(define-server-test a-thread-for-timers-that-is-destroyed-before-it-begins-has-a-successor
  (with-globals ((*tick* 1/100) (*idle-tick* 1/100))
    (with-each-engine (engine)
      (let ((first-p t) (gate (make-gate)))
        (with-function (engine:make-engine-thread (original service role thunk)
                         (if (and (eq :timers role) (shiftf first-p nil))
                             (thread-that-never-began)
                             (funcall original service role thunk)))
          (engine:schedule engine 0 (lambda () (open-gate gate)))
          (await gate))
        (is (= 1 (timer-statistic engine :run)))))))

(define-server-test (a-thread-for-timers-that-dies-when-the-alarm-has-rung-loses-nothing
                     :needs :deferred-ends)
  (with-globals ((*tick* 1/100) (*idle-tick* 1/100))
    (with-running-engine (engine (constantly :close))
      (let ((first-p t) (gate (make-gate)))
        (with-function (call-due-functions (original engine)
                         (if (shiftf first-p nil)
                             (kill-this-thread)
                             (funcall original engine)))
          (engine:schedule engine 0 (lambda () (open-gate gate)))
          (await gate))
        (is (= 1 (timer-statistic engine :run)))))))

(define-server-test a-stop-waits-for-the-thread-of-the-timers
  (with-running-engine (engine (constantly :close))
    (let ((begun (make-gate)) (gate (make-gate)) (ended nil))
      (engine:schedule engine 0 (lambda ()
                                  (open-gate begun)
                                  (await gate)
                                  (setf ended t)))
      (await begun)
      (let ((stopping (in-background ("stop") (engine:stop-engine engine :soft t))))
        (eventually ("all else to have stopped") (engine:engine-stopped-p engine))
        (is (not (poll (lambda () (task-done-p stopping)) 1/5)))
        (open-gate gate)
        (is (null (task-result stopping)))
        (is-true ended)))))

(define-server-test (an-error-of-an-interrupt-costs-no-timer :needs :calls-by-name)
  (let ((first-p t) (gate (make-gate)))
    (with-function (await-alarm (original timers)
                     (prog1 (funcall original timers)
                       (when (shiftf first-p nil)
                         (error "Of an interrupt."))))
      (with-running-engine (engine (constantly :close))
        (engine:schedule engine 1/50 (lambda () (open-gate gate)))
        (is-true (await gate))
        (is (not first-p))
        (is (= 1 (statistic engine :failed)))))))

(test a-thread-for-timers-is-noted-by-who-made-it-only-until-it-begins
  (let* (*listener* *service* (engine (make-engine (constantly :close)))
         (mine (thread-that-never-began)) (other (bt:current-thread)))
    (flet ((noted-after (place)
             (setf (timers-thread (engine-timers engine)) place)
             (record-timer-thread engine mine)
             (timers-thread (engine-timers engine))))
      (dolist (place (list nil :missing other))
        (is (eq place (noted-after place))))
      (is (eq mine (noted-after :starting))))))

(define-server-test a-thread-for-timers-is-made-by-the-sentinel-at-once
  (with-globals ((*tick* 60) (*idle-tick* 60))
    (with-running-engine (engine (constantly :close))
      (let ((gate (make-gate)))
        (engine:schedule engine 0 (lambda () (open-gate gate)))
        (is-true (await gate))))))

(define-server-test functions-of-the-blocking-engine-are-called-one-after-the-other
  (with-running-engine (engine (constantly :close))
    (let ((gate (make-gate)) (begun (make-gate)) (calls (make-recorder)))
      (engine:schedule engine 0 (lambda () (open-gate begun) (await gate) (record calls 1)))
      (await begun)
      (loop for number from 2 to 9
            do (let ((number number))
                 (engine:schedule engine 0 (lambda () (record calls number)))))
      (is (zerop (recorded-count calls)))
      (open-gate gate)
      (eventually ("all calls") (= 9 (recorded-count calls)))
      (is (equal '(1 2 3 4 5 6 7 8 9) (recorded calls))))))

;;; The ready engine's workers

(defmacro with-each-ready-engine ((engine) &body body)
  "Like WITH-EACH-ENGINE, with ready ones alone."
  `(where-supported
    (with-each-engine (,engine)
      (when (parks-p ,engine)
        ,@body))))

(define-server-test functions-are-called-by-workers-that-count-as-busy
  (with-each-ready-engine (engine)
    (let ((gate (make-gate)) (begun (make-gate)) (worker nil))
      (engine:schedule engine 0 (lambda ()
                                  (setf worker engine:*worker*)
                                  (open-gate begun)
                                  (await gate)))
      (await begun)
      (is (eq engine (engine:worker-engine worker)))
      (is (= 1 (statistic engine :busy)))
      (open-gate gate)
      (wait-for-statistic engine :busy 0))))

(define-server-test functions-that-block-hold-up-nobody
  (with-each-ready-engine (engine)
    (let ((gate (make-gate)) (blocked (make-latch 20)) (others (make-latch 100)))
      (unwind-protect
           (progn
             (loop repeat 20
                   do (engine:schedule engine 0.01 (lambda () (count-down blocked) (await gate)))
                      (loop repeat 5
                            do (engine:schedule engine 0.01 (lambda () (count-down others)))))
             (await blocked)
             (await others)
             (with-connection (connection *port*)
               (is (equal "q" (exchange-octets connection "q"))))
             (wait-for-statistic engine :busy 20))
        (open-gate gate)))))

(define-server-test timers-without-end-do-not-keep-connections-waiting
  (with-each-ready-engine (engine)
    (let ((over nil) (rounds (platform:make-counter)))
      (labels ((again ()
                 (platform:counter-add rounds 1)
                 (unless over
                   (engine:schedule engine 0 #'again))))
        (unwind-protect
             (progn
               (loop repeat 200 do (engine:schedule engine 0 #'again))
               (eventually ("many rounds") (> (platform:counter-count rounds) 5000))
               (with-connections (connections 5 *port*)
                 (dolist (connection connections)
                   (is (equal "abc" (exchange-octets connection "abc"))))))
          (setf over t)))
      (is-true (wait-for-timers engine :pending 0)))))

(define-server-test whoever-dies-when-the-alarm-has-rung-leaves-the-timers-to-another
  (with-each-ready-engine (engine)
    (let ((first-p t) (gate (make-gate)))
      (with-function (run-due-timers (original engine worker)
                       (when (shiftf first-p nil)
                         (platform:interruptibly (destroy-here (bt:current-thread))))
                       (funcall original engine worker))
        (engine:schedule engine 1/20 (lambda () (open-gate gate)))
        (await gate))
      (is (not first-p)))))

(define-server-test a-worker-that-has-run-many-timers-leaves-the-others-to-a-later-event
  (with-resting-engine (engine)
    (let ((worker (make-pool-worker engine 1))
          (calls (make-recorder)))
      (with-function (ring-again (original engine)
                       (record calls :ring))
        (with-function (next-due-function (original engine now)
                         (if (< (recorded-count calls) 1000)
                             (lambda () (record calls :run))
                             nil))
          (run-due-timers engine worker)))
      (is (= +timer-batch+ (recorded-count calls :run)))
      (is (= 1 (recorded-count calls :ring))))))

(define-server-test a-timer-descriptor-is-given-back-when-nobody-sets-it-any-more
  (where-supported
   (with-ready-engine (engine (constantly nil))
     (let ((within (make-gate)) (gate (make-gate)) (open-p nil))
       (with-function (platform:arm-timer-descriptor (original descriptor moment)
                        (open-gate within)
                        (await gate)
                        (setf open-p (descriptor-target descriptor))
                        (funcall original descriptor moment))
         (let ((scheduling (in-background ("scheduler")
                             (engine:schedule engine 1000 (constantly nil)))))
           (await within)
           (let ((stopping (in-background ("stop") (stop-patiently engine))))
             (eventually ("the workers to end") (zerop (statistic engine :threads)))
             (is (not (poll (lambda () (task-done-p stopping)) 1/10)))
             (open-gate gate)
             (task-result scheduling)
             (is (null (task-result stopping))))))
       (is-true open-p)
       (is (= -1 (engine-timer-descriptor engine)))))))

(define-server-test a-start-without-a-timer-descriptor-fails-and-leaves-nothing
  (where-supported
   (with-listener (listener)
     (let ((engine (engine:make-ready-engine
                    (make-instance 'octet-service :meanings (constantly nil)) listener :standby 1)))
       (with-function (platform:make-timer-descriptor (original) -24)
         (signals start-refused (engine:start-engine engine)))
       (is (zerop (statistic engine :threads)))))))
