(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite interrupts :in engine
  :description "Interrupts of threads that serve nobody, and events that keep a worker.")

(in-suite interrupts)

(defun interrupt-workers (engine function)
  "Has FUNCTION called in the thread of each worker of ENGINE, as soon as that can be interrupted;
returns how many there are."
  (eventually ("all workers to rest")   ; and not to begin, where nothing of ours could help them
    (= (length (engine-workers engine))
       (+ (worker-count engine :suspended)
          (platform:counter-count (pool-state-waiting (engine-pool-state engine))))))
  (let ((threads (mapcar #'worker-thread (engine-workers engine))))
    (dolist (thread threads (length threads))
      (bt:interrupt-thread thread function))))

(defmacro with-short-waits (&body body)
  "Evaluates BODY while an interrupt that comes just before a wait begins is seen soon."
  `(with-globals ((*poll-milliseconds* 50))
     ,@body))

(define-server-test (workers-that-interrupts-hold-up-are-made-up-for :needs :deferred-ends)
  (let ((gate (make-gate)) (held (make-recorder)))
    (with-short-waits
      (with-globals ((*processors* 1))
        (with-ready-engine (engine (constantly nil) :standby 3)
          (with-connection (connection *port*)
            (exchange-octets connection "a")
            (let ((count (interrupt-workers engine (lambda () (record held t) (await gate)))))
              (unwind-protect
                   (progn
                     (is (<= 3 count))
                     (eventually ("all to be held up") (= count (recorded-count held)))
                     (is (equal "b" (exchange-octets connection "b")))
                     (with-connection (other *port*)
                       (is (equal "c" (exchange-octets other "c")))))
                (open-gate gate)))))))))

(define-server-test (whoever-is-resumed-has-time-to-come :needs :parking)
  (with-still-pool (engine controller)
    (let* ((worker (first (pretend-workers engine 1 :suspended)))
           (tick (pool-state-tick (engine-pool-state engine)))
           (late (+ tick *brief-ticks* 2)))
      (setf (engine-suspended engine) (list worker))
      (with-function (asleep-p (original worker) t)
        (flet ((blocked (tick) (third (look engine controller tick))))
          (is (= 1 (resume-workers engine 1)))
          (is (= 0 (blocked (1- late))))
          (is (= 1 (blocked late)))
          (end-suspension engine worker)
          (is (= 0 (blocked (1+ late))))))
      (forget-workers engine))))

(define-server-test (errors-of-interrupts-cost-no-worker :needs :deferred-ends)
  (with-short-waits
    (with-ready-engine (engine (constantly nil) :standby 3)
      (with-connection (connection *port*)
        (exchange-octets connection "a")
        (let* ((threads (mapcar #'worker-thread (engine-workers engine)))
               (count (interrupt-workers engine (lambda () (error "Of an interrupt.")))))
          (wait-for-statistic engine :failed count)
          (is (every #'bt:thread-alive-p threads))
          (is (= count (length (error-notes *service*))))
          (is (equal "b" (exchange-octets connection "b"))))))))

(define-server-test (a-list-of-workers-does-not-change-while-it-is-read :needs :parking)
  (with-still-pool (engine controller)
    (let* ((workers (pretend-workers engine 3 :active))
           (listed (engine-workers engine))
           (copy (copy-list listed)))
      (with-engine (engine) (retire (second workers)))
      (is (equal copy listed))
      (is (= 2 (length (engine-workers engine))))
      (forget-workers engine))))

;;; Threads that wait

(defmacro with-brief-ticks (&body body)
  `(with-globals ((*tick* 1/50) (*idle-tick* 1/50))
     ,@body))

(define-server-test (no-interrupt-of-a-sentinel-runs-under-the-lock :needs :deferred-ends)
  (with-brief-ticks
    (let* (*listener* *service*
           (engine (make-engine (constantly :close)))
           (lock (engine-lock engine)))
      (is (equal '(nil) (found-by-interrupts lock (lambda () (wait-a-tick engine)))))
      (is (equal '(nil) (found-by-interrupts lock (lambda () (pause-after-failure engine))))))))

(define-server-test (nor-while-the-sentinel-waits-idly :needs (:parking :calls-by-name))
  (with-brief-ticks
    (with-still-pool (engine controller)
      (pretend-to-wait engine)
      (is (equal '(nil) (found-by-interrupts (engine-lock engine)
                                             (lambda ()
                                               (idle-wait engine (platform:milliseconds)))))))))

(define-server-test (nor-while-a-worker-is-suspended :needs (:parking :calls-by-name))
  (with-still-pool (engine controller)
    (let ((worker (first (pretend-workers engine 1 :suspended))) (resumed-p nil))
      (setf (engine-suspended engine) (list worker))
      (is (equal '(nil) (found-by-interrupts (engine-lock engine)
                                             (lambda ()
                                               (platform:deferring-interrupts
                                                 (setf resumed-p (await-resume engine worker))))
                                             (lambda () (resume-workers engine 1)))))
      (is-true resumed-p)
      (with-engine (engine) (retire worker))
      (is (not (await-resume engine worker)) "It has left the pool.")
      (forget-workers engine))))

(define-server-test (nor-while-a-thread-waits-for-an-alarm :needs :deferred-ends)
  (let ((timers (make-timers)))
    (setf (timers-alarm timers) (+ (platform:microseconds) 1000000000))
    (is (equal '(nil) (found-by-interrupts (timers-lock timers)
                                           (lambda () (await-alarm timers))
                                           (lambda ()
                                             (bt:with-lock-held ((timers-lock timers))
                                               (setf (timers-alarm timers) 0)
                                               (bt:condition-notify
                                                (engine::timers-changed timers)))))))
    (is-true (take-alarm timers))
    (is (not (take-alarm timers)) "It rings for one thread.")))

;;; Clients that never pause

(define-server-test (a-client-that-never-pauses-lets-others-and-timers-have-their-turn
                     :needs :parking)
  (let ((floods 0) (turns (make-recorder)) (held (make-gate)) (gate (make-gate)))
    (with-globals ((*processors* 1))
      (with-ready-engine (engine (lambda (char)
                                   (case char
                                     (#\h (open-gate held) (await gate))
                                     (#\f (incf floods))
                                     (#\o (record turns floods)))
                                   nil)
                                 :standby 1 :thread-limit 1)
        (with-connections (connections 2 *port*)
          (destructuring-bind (flood other) connections
            (exchange-octets flood "f")
            (exchange-octets other "x")
            (send flood "h" (make-string 1000 :initial-element #\f))
            (await held)
            (send other "o")
            (engine:schedule engine 0 (lambda () (record turns floods)))
            (open-gate gate)
            (is (equal "o" (decode (read-octets other 1))))
            (is (= 1001 (length (read-octets flood 1001))))
            (eventually ("both to have their turn") (= 2 (recorded-count turns)))
            (is (> 900 (reduce #'max (recorded turns))) "The first one was not done yet.")))))))

(defun check-queued-is-not-idle (queue)
  "Checks that a connection that QUEUE, a function of an engine and the connection, leaves to
workers is parked, and not taken for idle."
  (with-connections-at-rest (engine connections clients 1)
    (let ((connection (first connections)))
      (funcall queue engine connection)
      (is-true (parked-p connection))
      (is (equal (list (connection-token connection)) (take-all engine)))
      (evict-idle-connections engine)
      (with-function (engine:drain-over-p (original engine now) t)
        (time-out-if-due engine connection (platform:milliseconds)))
      (end-input engine :keep-alive)
      (is-true (parked-p connection))
      (is-true (find :queued (unanswered-connections engine)
                     :key (lambda (plist) (getf plist :state)))))))

(define-server-test (a-client-that-waits-for-its-next-turn-is-not-idle :needs :parking)
  (check-queued-is-not-idle #'queue-for-next-turn))

(define-server-test (a-client-that-is-left-to-workers-by-a-visitor-is-not-idle :needs :parking)
  (check-queued-is-not-idle (lambda (engine connection)
                              (end-resumption engine connection :again))))

(define-server-test what-is-queued-by-thousands-takes-no-longer
  (with-resting-engine (engine)
    (loop for number below 100000
          do (queue-events engine (list number)))
    (is (equal (loop for number below 100000 collect number) (take-all engine)))
    (is (null (engine-event-queue engine)))))

;;; What the sentinel and resuming threads see to

(define-server-test (a-request-that-is-served-while-a-visit-ends-counts-once :needs :parking)
  (with-connections-at-rest (engine connections clients 1)
    (let ((connection (first connections)))
      (is (eq :parked (settle-outcome engine connection :deferred 0)))
      (with-function (serve-resumption (original engine connection)
                       (engine:count-request connection 0)
                       (prog1 (settle-outcome engine connection :deferred 0)
                         ;; Its next owner.
                         (incf (engine:connection-served connection))))
        (task-result (in-background ("a resuming thread")
                       (engine:resume-connection engine connection))))
      (is (= 1 (statistic engine :served))))))

(define-server-test (that-connections-cannot-be-watched-is-told-once :needs :parking)
  (with-ready-engine (engine (constantly nil))
    (flet ((exchange ()
             (with-connection (connection *port*)
               (try-to-send connection "x")
               (receive-rest connection)))) ; it may be closed before it is served
      (with-function (platform:watch (original poller descriptor token &optional output-p) -28)
        (loop repeat 2 do (exchange))
        (is (= 1 (length (error-notes *service*)))))
      (with-connection (connection *port*)
        (exchange-octets connection "x")
        (wait-for-statistic engine :busy 0)
        (is (equal "y" (exchange-octets connection "y"))))
      (with-function (platform:watch (original poller descriptor token &optional output-p) -28)
        (exchange))
      (is (= 2 (length (error-notes *service*))) "It has come again."))))

(define-server-test (the-clock-does-not-stand-while-the-sentinel-waits-for-a-log :needs :parking)
  (with-resting-engine (engine)
    (let ((pool (engine-pool-state engine)) (stopped-p nil))
      (resume-clock pool)
      (flet ((note-in-log ()
               (with-function (engine:note (original service level control &rest arguments)
                                (setf stopped-p (pool-state-clock-stopped-p pool)))
                 (engine:log-message engine :info "Of a test."))))
        (note-in-log)
        (is (not stopped-p))
        (setf (sentinel-thread (engine-sentinel engine)) (bt:current-thread))
        (note-in-log)
        (is-true stopped-p)
        (is (not (pool-state-clock-stopped-p pool)))
        (setf (sentinel-thread (engine-sentinel engine)) nil)))))
