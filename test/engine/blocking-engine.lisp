(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite blocking :in engine
  :description "The blocking engine.")

(in-suite blocking)

(defun holding (entered gate)
  "What serves a fake connection: counts the latch ENTERED down, awaits GATE, and closes it."
  (lambda (socket)
    (declare (ignore socket))
    (count-down entered)
    (await gate)
    :close))

(define-server-test a-connection-is-served-and-closed
  (with-running-engine (engine (constantly :close))
    (is (closed-p (connect-fake *listener*)))
    (wait-for-statistic engine :open 0)
    (is (= 1 (statistic engine :served)))
    (is (= 1 (statistic engine :accepted)))))

(define-server-test a-sibling-serves-while-a-worker-is-busy
  (let ((first (make-gate)) (entered (make-latch 1)))
    (with-running-engine (engine (lambda (socket)
                                   (when (plusp (fake-requests socket))
                                     (count-down entered)
                                     (await first))
                                   :close))
      (let ((blocked (connect-fake *listener* 2)))
        (await entered)
        (is (closed-p (connect-fake *listener*)))
        (is (not (fake-closed blocked)))
        (open-gate first)
        (is (closed-p blocked))))))

(define-server-test nobody-makes-two-siblings-for-one-need
  (let ((held (make-gate)) (making (make-latch 1)))
    (with-running-engine (engine (constantly :close)
                                 :making (lambda (number)
                                           (when (= number 2)
                                             (count-down making)
                                             (await held))))
      ;; The worker that accepts makes the sibling itself, and is held in doing so.
      (connect-fake *listener*)
      (await making)
      (connect-fake *listener*)
      (housekeep engine)
      (housekeep engine)
      (is (= 2 (statistic engine :made)))
      (open-gate held)
      (wait-for-statistic engine :served 2))))

(define-server-test workers-end-when-enough-wait
  (let ((gate (make-gate)) (entered (make-latch 5)))
    (with-running-engine (engine (holding entered gate)
                                 :standby 2)
      (let ((sockets (loop repeat 5 collect (connect-fake *listener*))))
        (await entered)
        (is (= 5 (statistic engine :busy)))
        (open-gate gate)
        (is (every #'closed-p sockets))
        (wait-for-statistic engine :threads 2)
        (is (= 2 (statistic engine :standby)))
        (is (= (statistic engine :made) (+ 2 (statistic engine :ended))))))))

(define-server-test the-pool-keeps-to-its-maximum-and-serves-everybody
  (let ((gate (make-gate)) (entered (make-latch 3)))
    (with-running-engine (engine (holding entered gate)
                                 :thread-limit 3)
      (let ((sockets (loop repeat 10 collect (connect-fake *listener*))))
        (await entered)
        (housekeep engine)
        (is (= 3 (statistic engine :threads)))
        (is (notany #'fake-closed sockets))
        (open-gate gate)
        (is (every #'closed-p sockets))
        (is (<= (statistic engine :threads) 3))
        (is (zerop (statistic engine :refused)))))))

(defun call-with-full-engine (accept-limit function)
  "Calls FUNCTION with an engine whose only worker is busy, and the gate that frees it."
  (let ((gate (make-gate)) (entered (make-latch 1)))
    (with-running-engine (engine (holding entered gate)
                                 :thread-limit 1 :accept-limit accept-limit)
      (unwind-protect
           (progn
             (connect-fake *listener*)
             (await entered)
             (funcall function engine gate))
        (open-gate gate)))))

(define-server-test without-accept-limit-a-connection-beyond-the-maximum-is-refused
  (call-with-full-engine
   nil
   (lambda (engine gate)
     (declare (ignore gate))
     (let ((socket (connect-fake *listener*)))
       (is (closed-p socket))
       (is (equal (list socket) (recorded (fake-refusals *service*))))
       (is (= 1 (statistic engine :refused)))
       (is (= 1 (statistic engine :open)))))))

(define-server-test between-the-maxima-a-connection-waits-and-beyond-it-is-refused
  (call-with-full-engine
   2
   (lambda (engine gate)
     (let ((waiting (connect-fake *listener*)))
       (wait-for-statistic engine :queued 1)
       (let ((refused (connect-fake *listener*)))
         (is (closed-p refused))
         (is (equal (list refused) (recorded (fake-refusals *service*)))))
       (is (not (fake-closed waiting)))
       (open-gate gate)
       (is (closed-p waiting))
       (wait-for-statistic engine :served 2)))))

(define-server-test a-kept-connection-is-served-again-by-its-worker
  (let ((workers (make-recorder)))
    (with-running-engine (engine (lambda (socket)
                                   (declare (ignore socket))
                                   (record workers (bt:current-thread))
                                   :park))
      (let ((socket (connect-fake *listener*)))
        (wait-for-statistic engine :keep-alive-waiting 1)
        (arrive socket)
        (wait-for-statistic engine :served 2)
        (platform:shut-down socket :input)
        (is (closed-p socket))
        (is (= 1 (length (remove-duplicates (recorded workers)))))))))

(define-server-test a-pool-of-which-no-worker-is-free-proves-itself-by-a-request-that-it-has-served
  (let ((gates (list (make-gate) (make-gate))) (entered (make-latch 3)) (served (make-gate)))
    (with-running-engine (engine (lambda (socket)
                                   (count-down entered)
                                   (await (if (plusp (fake-requests socket))
                                              (first gates)
                                              (second gates)))
                                   :park)
                                 :thread-limit 2)
      (unwind-protect
           (progn
             (connect-fake *listener* 2) ; its first request awaits the first gate
             (connect-fake *listener*)
             (wait-for-statistic engine :busy 2)
             (engine:call-when-pool-serves engine (lambda () (open-gate served)))
             (is (not (poll (lambda () (open-p served)) 1/2)))
             (open-gate (first gates))
             (await entered)            ; the second one has begun
             ;; Before the handlers lose patience, and their workers are free.
             (is-true (await served (/ *patience* 2))))
        (mapc #'open-gate gates)))))

(define-server-test a-detached-connection-is-left-open
  (with-running-engine (engine (constantly :detached))
    (let ((socket (connect-fake *listener*)))
      (wait-for-statistic engine :served 1)
      (wait-for-statistic engine :open 0)
      (is (not (fake-closed socket))))))

(define-server-test a-connection-that-was-given-away-is-left-open-though-its-service-fails
  (with-running-engine (engine (lambda (socket)
                                 (declare (ignore socket))
                                 (setf (engine:connection-outcome
                                        (worker-connection engine:*worker*))
                                       :detached)
                                 (error "Of a test.")))
    (let ((socket (connect-fake *listener*)))
      (wait-for-statistic engine :failed 1)
      (wait-for-statistic engine :open 0)
      (let ((other (connect-fake *listener* 0)))
        (platform:shut-down other :input)
        (is (closed-p other) "The worker goes on."))
      (is (not (fake-closed socket))))))

(define-server-test an-idle-connection-gives-way-when-others-wait
  (with-running-engine (engine (constantly :park) :thread-limit 2)
    (let ((idle (list (connect-fake *listener*) (connect-fake *listener*))))
      (wait-for-statistic engine :keep-alive-waiting 2)
      (is (notany #'fake-closed idle))
      (let ((other (connect-fake *listener*)))
        (wait-for-statistic engine :served 3)
        (is (some #'fake-closed idle))
        (is (plusp (getf (statistic engine :expired-by) :evicted)))
        (eventually ("the overload to be gone") (not (engine:winding-down-p engine)))
        (is (not (fake-closed other)))))))

(define-server-test in-overload-connections-are-not-kept
  (let ((gate (make-gate)) (entered (make-latch 1)) (overloaded (make-recorder)))
    (with-running-engine (engine (lambda (socket)
                                   (declare (ignore socket))
                                   (count-down entered)
                                   (await gate)
                                   (record overloaded (engine:winding-down-p
                                                       (engine:worker-engine engine:*worker*)))
                                   :close)
                                 :thread-limit 1)
      (connect-fake *listener*)
      (await entered)
      (is (not (engine:winding-down-p engine)))
      (connect-fake *listener*)
      (eventually ("the overload to be noticed") (engine:winding-down-p engine))
      (open-gate gate)
      (wait-for-statistic engine :served 2)
      (is (eq t (first (recorded overloaded)))))))
