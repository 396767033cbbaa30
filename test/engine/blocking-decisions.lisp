(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What an engine decides, one decision at a time, in a blocking engine without threads.

(in-suite blocking)

(defmacro with-still-engine ((engine &rest options) &body body)
  "Evaluates BODY with an ENGINE, made by MAKE-ENGINE of OPTIONS, that seems to run and has no
threads."
  `(let* (*listener* *service*
          (,engine (make-engine (constantly :close) ,@options)))
     (setf (engine-phase ,engine) :running
           (accept-open-p (engine-accept-state ,engine)) t)
     ,@body))

(defun still-worker (engine &optional (state :starting))
  "A worker of ENGINE in STATE that has no thread."
  (with-engine (engine)
    (let ((worker (reserve-worker engine)))
      (unless (eq state :starting)
        (set-worker-state worker state))
      worker)))

(defun fake-connection ()
  (make-connection (make-instance 'fake-socket)))

(defun queue-connections (engine count)
  "Puts COUNT new connections at the end of the queue of ENGINE; returns them."
  (let ((connections (loop repeat count collect (fake-connection))))
    (setf (engine-queue engine) (append (engine-queue engine) connections))
    connections))

;;; What a worker does next

(define-server-test a-worker-that-is-free-takes-the-oldest-client-that-is-queued
  (with-still-engine (engine :thread-limit 1 :accept-limit 9)
    (destructuring-bind (first second) (queue-connections engine 2)
      (let ((worker (still-worker engine)))
        (is (eq first (next-step engine worker)))
        (is (eq first (worker-connection worker)))
        (is (eq :serving (worker-state worker)))
        (let ((acceptor (still-worker engine :waiting)))
          (is (eq :accept (next-step engine acceptor)) "As many serve as may."))
        (is (eq second (next-step engine worker)) "It gives its own place up.")
        (is (null (engine-queue engine)))))))

(define-server-test nobody-takes-who-is-queued-when-the-engine-stops
  (with-still-engine (engine :thread-limit 1 :accept-limit 9)
    (let ((queued (queue-connections engine 1)))
      (loop for (phase accepting-p taken-p) in '((:draining nil t) (:stopping nil nil))
            do (setf (engine-phase engine) phase
                     (accept-open-p (engine-accept-state engine)) accepting-p
                     (engine-queue engine) queued)
               (let* ((worker (still-worker engine :serving))
                      (step (next-step engine worker)))
                 (is (eq (if taken-p (first queued) :end) step))
                 (unless taken-p
                   (is (eq :ended (worker-state worker)))
                   (is (not (member worker (engine-workers engine))))))))))

(define-server-test nobody-takes-who-is-queued-when-more-serve-than-a-lowered-limit-allows
  (with-still-engine (engine :thread-limit 4 :accept-limit 60)
    (let* ((queued (queue-connections engine 2))
           (acceptor (still-worker engine :waiting))
           (workers (loop repeat 4 collect (still-worker engine :serving))))
      (engine:resize-pool engine :thread-limit 2)
      (flet ((next-steps (workers)
               (mapcar (lambda (worker) (next-step engine worker)) workers)))
        (is (equal '(:end :end) (next-steps (subseq workers 0 2))))
        (is (equal queued (next-steps (subseq workers 2))))
        (is (eq :accept (next-step engine acceptor)))
        (is (= 3 (statistic engine :threads)))))))

(define-server-test a-worker-that-is-beyond-a-lowered-limit-accepts-where-nobody-else-does
  (with-still-engine (engine :thread-limit 2 :accept-limit 60)
    (queue-connections engine 1)
    (let ((workers (loop repeat 2 collect (still-worker engine :serving))))
      (engine:resize-pool engine :thread-limit 1)
      (is (eq :accept (next-step engine (first workers)))))))

(define-server-test a-worker-that-is-free-waits-where-too-few-do-and-ends-where-enough-do
  (with-still-engine (engine :standby 2)
    (let ((workers (loop repeat 3 collect (still-worker engine :serving))))
      (is (equal '(:accept :accept :end)
                 (mapcar (lambda (worker) (next-step engine worker)) workers)))
      (is (equal '(:waiting :waiting :ended) (mapcar #'worker-state workers)))
      (is (eq :accept (next-step engine (first workers))) "It is one of those who wait.")
      (let ((starting (still-worker engine)))
        (is (eq :end (next-step engine starting)))
        (is (= 2 (statistic engine :threads)))))))

(define-server-test nobody-accepts-what-is-not-the-engines-any-more
  (with-still-engine (engine :standby 2)
    (setf (accept-open-p (engine-accept-state engine)) nil)
    (is (eq :end (next-step engine (still-worker engine :serving))))))

;;; What becomes of who comes

(define-server-test a-client-that-comes-is-served-queued-or-refused-and-counted
  (with-still-engine (engine :thread-limit 1 :accept-limit 3)
    (let ((worker (still-worker engine :waiting))
          (acceptor (still-worker engine :waiting))
          (connections (loop repeat 4 collect (fake-connection))))
      (setf (accept-trouble (engine-accept-state engine)) 'platform:accept-failed
            (accept-again-p (engine-accept-state engine)) t)
      (is (eq :serve (admit engine worker (first connections))))
      (is (null (accept-trouble (engine-accept-state engine))) "That is over.")
      (is (not (accept-again-p (engine-accept-state engine))))
      (is (eq (first connections) (worker-connection worker)))
      (is (not (engine:winding-down-p engine)))
      (is (equal '(:queued :queued :refused)
                 (loop for connection in (rest connections)
                       collect (values (admit engine acceptor connection)))))
      (is (equal (subseq connections 1 3) (engine-queue engine)) "The oldest is the first.")
      (is (engine:winding-down-p engine) "Others wait.")
      (loop for (name value) in '((:accepted 4) (:open 3) (:queued 2) (:busy 1))
            do (is (eql value (statistic engine name)) "~A" name)))))

(define-server-test (a-worker-that-cannot-accept-backs-off-unless-the-network-is-in-trouble
                     :needs :calls-by-name)
  (with-still-engine (engine)
    (loop with network-trouble = (make-condition 'platform:network-trouble :cause "ENETDOWN")
          for (trouble times) in `((,(exhausted) 1) (,network-trouble 0))
          do (let ((count 0))
               (forget-accept-trouble engine)
               (hand-over *listener* trouble)
               (with-function (back-off (original engine) (incf count))
                 (is (null (accept-or-back-off engine (still-worker engine :waiting)))))
               (is (= times count) "~A" trouble)))))

(define-server-test a-client-that-comes-when-the-engine-stops-is-late
  (with-still-engine (engine)
    (setf (engine-phase engine) :stopping)
    (let ((socket (connect-fake *listener*)))
      (is (null (accept-one engine (still-worker engine :waiting))))
      (is (fake-closed socket))
      (is (zerop (statistic engine :open)))
      (is (= 1 (statistic engine :accepted))))))

(define-server-test a-connection-beyond-the-limit-of-its-address-is-refused
  (with-globals ((*address-limit* 1))
    (with-still-engine (engine)
      (let ((worker (still-worker engine :waiting))
            (acceptor (still-worker engine :waiting)))
        (connect-fake *listener*)
        (let ((served (accept-one engine worker)))
          (is (eq served (worker-connection worker)))
          (let ((refused (connect-fake *listener*)))
            (is (null (accept-one engine acceptor)))
            (is (fake-closed refused)))
          (is (equal '(:threads 0 :address 1 :descriptors 0) (statistic engine :refused-by)))
          (is (= 1 (statistic engine :refused) (statistic engine :open)))
          (engine::close-orphaned-connection engine served)
          (is (zerop (counted-connections engine))))))))

(define-server-test a-connection-that-is-not-served-counts-for-no-address
  (with-still-engine (engine :thread-limit 1 :accept-limit 2)
    (let ((worker (still-worker engine :waiting))
          (acceptor (still-worker engine :waiting)))
      (flet ((accept (worker)
               (connect-fake *listener*)
               (accept-one engine worker)))
        (is (typep (accept worker) 'engine:connection))
        (is (null (accept acceptor)))
        (is (= 2 (counted-connections engine)) "One is queued.")
        (is (null (accept acceptor)))
        (is (= 2 (counted-connections engine)) "One was refused.")
        (engine::drop-queue engine)
        (is (= 1 (counted-connections engine) (statistic engine :open)))
        (setf (engine-phase engine) :stopping)
        (is (null (accept acceptor)))
        (is (= 1 (counted-connections engine)) "One was late.")))))

(define-server-test (a-connection-whose-address-cannot-be-told-is-served :needs :calls-by-name)
  (with-still-engine (engine)
    (let ((worker (still-worker engine :waiting)))
      (still-worker engine :waiting)    ; so no sibling is made
      (connect-fake *listener*)
      (with-function (engine:address-limit (original service connection) (error "No address."))
        (is (typep (accept-one engine worker) 'engine:connection)))
      (is (= 1 (statistic engine :failed))))))

(define-server-test a-sibling-is-made-for-the-last-one-who-waits-and-no-other
  (with-still-engine (engine)
    (let ((workers (list (still-worker engine :waiting) (still-worker engine :waiting))))
      (is (null (nth-value 1 (admit engine (first workers) (fake-connection)))))
      (let ((sibling (nth-value 1 (admit engine (second workers) (fake-connection)))))
        (is (typep sibling 'worker))
        (is (eq :starting (worker-state sibling)))
        (is (= 3 (statistic engine :made) (statistic engine :threads)))))))

(defclass failing-service (fake-service)
  ((failure :initarg :failure :reader service-failure :documentation "A type of conditions."))
  (:documentation "Fails to refuse and to release."))

(defmethod engine:give-notice ((service failing-service) connection)
  (declare (ignore connection))
  (error (service-failure service)))

(defmethod engine:release ((service failing-service) connection)
  (declare (ignore connection))
  (error (service-failure service)))

(define-server-test a-client-that-cannot-be-told-that-it-is-refused-is-closed-and-counted
  (dolist (failure '(error storage-condition))
    (with-still-engine (engine)
      (change-class *service* 'failing-service :failure failure)
      (let ((refused (fake-connection)) (served (fake-connection)))
        (refuse-and-close engine refused :threads)
        (is (fake-half-closed (engine:connection-socket refused)) "So it is not reset.")
        (is (fake-closed (engine:connection-socket refused)))
        (is (= 1 (statistic engine :failed) (statistic engine :refused)))
        (close-connection engine served nil)
        (is (fake-closed (engine:connection-socket served)))
        (is (= 2 (statistic engine :failed)))))))

;;; Overload and drains

(define-server-test a-client-that-has-just-become-idle-is-spared-in-overload
  (with-still-engine (engine)
    (let ((worker (still-worker engine :keep-alive)))
      (is (not (idle-too-long-p worker)))
      (decf (worker-since worker) (+ 10 *overload-idle-milliseconds*))
      (is (idle-too-long-p worker))
      (setf (worker-state worker) :serving)
      (is (not (idle-too-long-p worker)))
      (setf (worker-state worker) :keep-alive))))

(define-server-test there-is-overload-where-all-serve-and-somebody-waits
  (with-still-engine (engine :thread-limit 1)
    (flet ((overload-p ()
             (with-engine (engine)
               (end-idle-connections engine)
               (engine:winding-down-p engine))))
      (let ((worker (still-worker engine :waiting)))
        (connect-fake *listener*)
        (is (not (overload-p)) "Somebody is free.")
        (with-engine (engine) (assign-connection worker (fake-connection)))
        (is (overload-p))
        (take-from-backlog *listener*)
        (is (not (overload-p)) "Nobody waits.")
        (queue-connections engine 1)
        (is (overload-p))))))

(define-server-test idle-connections-end-when-the-drain-has-waited-for-them
  (with-still-engine (engine)
    (let ((idle (fake-connection)) (served (fake-connection)) (now (platform:milliseconds)))
      (loop for (connection state) in `((,idle :keep-alive) (,served :serving))
            do (setf (worker-connection (still-worker engine state)) connection))
      (flet ((ended-p (connection)
               (fake-ended (engine:connection-socket connection)))
             (tend ()
               (with-engine (engine) (end-idle-connections engine)))
             (may-idle-p ()
               (let ((worker (still-worker engine :serving)))
                 (prog1 (become-idle engine worker)
                   (with-engine (engine) (retire worker))))))
        (tend)
        (is (not (ended-p idle)))
        (setf (tally-drain-end (engine-tally engine)) (+ now 100000)
              (engine-phase engine) :draining)
        (tend)
        (is (not (ended-p idle)) "It may still send a request.")
        (is (may-idle-p))
        (setf (tally-drain-end (engine-tally engine)) (- now 1))
        (tend)
        (is (ended-p idle))
        (is (not (ended-p served)))
        (is (not (may-idle-p)))
        (setf (tally-drain-end (engine-tally engine)) nil
              (engine-phase engine) :stopping)
        (is (not (may-idle-p)))))))

;;; The size of the pool

(define-server-test as-many-workers-are-made-as-are-missing
  (with-still-engine (engine :standby 3)
    (flet ((missing () (with-engine (engine) (missing-workers engine))))
      (is (= 3 (missing)))
      (still-worker engine :waiting)
      (is (= 2 (missing)))
      (setf (engine:engine-thread-limit engine) 2)
      (is (= 1 (missing)) "The limit is lower.")
      (setf (engine:engine-accept-limit engine) 5)
      (is (= 2 (missing)) "One more accepts the others.")
      (setf (engine:engine-accept-limit engine) :unlimited
            (engine:engine-thread-limit engine) nil)
      (loop repeat 2 do (still-worker engine :waiting))
      (is (= 0 (missing)))
      (dolist (worker (engine-workers engine))
        (with-engine (engine) (set-worker-state worker :serving)))
      (is (= 1 (missing)) "Nobody waits.")
      (setf (engine:engine-thread-limit engine) 3)
      (is (= 0 (missing)))
      (setf (engine:engine-thread-limit engine) nil
            (launch-after engine) (+ (platform:milliseconds) 100000))
      (is (= 0 (missing)) "A thread could not be made a moment ago.")
      (setf (launch-after engine) (- (platform:milliseconds) 1))
      (is (= 1 (missing)))
      (setf (engine-phase engine) :stopping)
      (is (= 0 (missing))))))

(define-server-test one-more-is-made-for-who-is-queued-where-all-others-wait-in-an-accept
  (with-still-engine (engine :standby 2 :thread-limit 2 :accept-limit 60)
    (flet ((missing () (with-engine (engine) (missing-workers engine))))
      (let ((workers (loop repeat 2 collect (still-worker engine :serving)))
            (queued (first (queue-connections engine 1))))
        (loop repeat 2 do (still-worker engine :waiting))
        (is (= 0 (missing)) "As many serve as may.")
        (with-engine (engine) (retire (first workers)))
        (is (= 1 (missing)))
        (setf (launch-after engine) (+ (platform:milliseconds) 100000))
        (is (= 0 (missing)) "A thread could not be made a moment ago.")
        (setf (launch-after engine) 0)
        (let ((another (still-worker engine)))
          (is (= 0 (missing)) "It is about to take it.")
          (is (eq queued (next-step engine another))))
        (is (= 0 (missing)) "Nobody is queued.")))))

(define-server-test trouble-with-threads-is-noted-once-until-it-is-over
  (with-still-engine (engine)
    (flet ((fail-to-launch ()
             (note-thread-trouble engine (make-condition 'simple-error
                                                         :format-control "No threads."))))
      (loop repeat 2 do (fail-to-launch))
      (is (not (may-launch-p engine)) "Nobody tries again at once.")
      (is (= 2 (statistic engine :failed)))
      (is (= 1 (length (error-notes *service*))))
      (forget-thread-trouble engine)
      (is (may-launch-p engine))
      (fail-to-launch)
      (is (= 2 (length (error-notes *service*)))))))

(define-server-test whoever-wants-a-thread-is-told-whether-it-was-made
  (with-still-engine (engine)
    (let ((gate (make-gate)))
      (is-true (engine:call-in-thread engine "test" (lambda () (open-gate gate))))
      (await gate)
      (note-thread-trouble engine (make-condition 'simple-error :format-control "No threads."))
      (is (not (engine:call-in-thread engine "test" (constantly nil)))))))

(define-server-test trouble-with-accepting-is-noted-once-of-each-kind-until-it-is-over
  (with-still-engine (engine)
    (flet ((fail-to-accept (class)
             (note-accept-trouble engine (make-condition class :cause "Of a test."))))
      (is (not (fail-to-accept 'platform:accept-failed)))
      (is (fail-to-accept 'platform:accept-failed) "It lasts.")
      (is (not (engine:winding-down-p engine)))
      (is (not (fail-to-accept 'platform:descriptors-exhausted)))
      (is (engine:winding-down-p engine) "Others are to go.")
      (is (= 2 (length (error-notes *service*))))
      (is (= 3 (statistic engine :failed)))
      (is (accept-again-p (engine-accept-state engine)))
      (forget-accept-trouble engine)
      (is (not (engine:winding-down-p engine)))
      (is (not (accept-again-p (engine-accept-state engine))))
      (is (not (fail-to-accept 'platform:descriptors-exhausted)))
      (is (not (fail-to-accept 'platform:listener-closed)))
      (is (not (accept-again-p (engine-accept-state engine))) "It will never give another."))))

(define-server-test a-worker-that-was-given-back-does-not-begin
  (with-still-engine (engine)
    (let ((worker (still-worker engine)) (begun nil))
      (setf (slot-value *service* 'ending) (lambda () (setf begun t)))
      (with-engine (engine) (retire worker))
      (run-worker worker)
      (is (not begun))
      (is (null (worker-thread worker)))
      (is (= 1 (statistic engine :ended))))))

(define-server-test a-worker-whose-thread-died-without-unwinding-gives-its-connection-up
  (with-running-engine (engine (constantly :close))
    (let ((connection (fake-connection))
          (thread (bt:make-thread (constantly nil))))
      (eventually ("a thread to end") (not (bt:thread-alive-p thread)))
      (with-engine (engine)
        (let ((worker (reserve-worker engine)))
          (platform:counter-add (tally-open (engine-tally engine)) 1)
          (setf (worker-thread worker) thread)
          (assign-connection worker connection)))
      (housekeep engine)
      (is (closed-p (engine:connection-socket connection)))
      (wait-for-statistic engine :open 0)
      (is (= 1 (statistic engine :ended)))
      (wait-for-statistic engine :busy 0))))

;;; The sentinel's successor

(define-server-test a-lost-sentinel-is-replaced-once
  (with-still-engine (engine)
    (flet ((replace-p () (and (replace-sentinel-p engine) t)))
      (is (not (replace-p)) "None was lost.")
      (setf (sentinel-lost-p (engine-sentinel engine)) t
            (launch-after engine) (+ (platform:milliseconds) 100000))
      (is (not (replace-p)) "A thread could not be made a moment ago.")
      (setf (launch-after engine) 0
            (engine-phase engine) :stopping)
      (is (not (replace-p)))
      (setf (engine-phase engine) :running)
      (is (replace-p))
      (is (= 1 (sentinel-count (engine-sentinel engine))))
      (is (not (replace-p)))
      (let ((thread (bt:make-thread (constantly nil))))
        (setf (sentinel-thread (engine-sentinel engine)) thread)
        (eventually ("a thread to end") (not (bt:thread-alive-p thread))))
      (is (replace-p) "It died without its last act."))))

(defclass lonely-service (fake-service)
  ()
  (:documentation "Has no thread for a sentinel."))

(defmethod engine:make-engine-thread ((service lonely-service) (role (eql :sentinel)) thunk)
  (declare (ignore thunk))
  (error "No thread for a sentinel."))

(define-server-test a-successor-that-cannot-be-made-is-made-later
  (with-still-engine (engine)
    (setf (sentinel-lost-p (engine-sentinel engine)) t)
    (change-class *service* 'lonely-service)
    (ensure-sentinel engine)
    (is (zerop (sentinel-count (engine-sentinel engine))))
    (is (lost-sentinel-p engine))
    (is (= 1 (statistic engine :failed)))
    (is (= 1 (length (error-notes *service*))))
    (change-class *service* 'fake-service)
    (ensure-sentinel engine)
    (is (= 1 (statistic engine :failed)) "It is too early.")
    (setf (launch-after engine) 0)
    (ensure-sentinel engine)
    (is (not (lost-sentinel-p engine)))
    (is (find-if (lambda (note) (search "successor" (rest note)))
                 (recorded (fake-notes *service*))))
    (eventually ("it to begin") (sentinel-of engine))
    (is (null (stop-patiently engine)))))

;;; Figures

(define-server-test figures-stay-as-they-were-when-they-were-told
  (with-still-engine (engine)
    (let ((told (engine:engine-statistics engine)))
      (with-engine (engine) (count-expired engine :idle))
      (is (zerop (getf (getf told :expired-by) :idle)))
      (is (= 1 (getf (statistic engine :expired-by) :idle)))
      (is (= 1 (statistic engine :expired))))))

(define-server-test time-is-counted-from-the-start-to-the-stop
  (with-still-engine (engine)
    (is (zerop (statistic engine :uptime)) "It was not started.")
    (let ((now (platform:milliseconds)))
      (setf (tally-started (engine-tally engine)) (- now 5000))
      (is (<= 5 (statistic engine :uptime) 100))
      (setf (tally-stopped (engine-tally engine)) (- now 3000))
      (is (= 2 (statistic engine :uptime))))))

(define-server-test what-workers-did-counts-when-they-have-ended
  (with-still-engine (engine)
    (let ((workers (list (still-worker engine) (still-worker engine))))
      (dolist (worker workers)
        (loop repeat 3 do (note-duration (worker-durations worker) 1000)))
      (is (= 6 (statistic engine :served)))
      (loop repeat 2 do (with-engine (engine) (retire (first workers))))
      (is (= 6 (statistic engine :served)))
      (is (= 1 (statistic engine :ended) (statistic engine :threads)))
      (is (= 2 (statistic engine :made))))))

;;; How long requests took

(define-server-test durations-are-counted-in-buckets-that-each-include-the-shorter-ones
  (with-still-engine (engine)
    (let ((worker (still-worker engine)))
      (loop for microseconds in '(0 100 101 1000 99999999)
            do (note-duration (worker-durations worker) microseconds))
      ;; By a thread that is no worker.
      (note-shared-duration
       (tally-served-by-resuming-threads (engine-tally engine)) 251)
      (with-engine (engine) (retire worker))
      (destructuring-bind (&key (count 0) (sum 0) buckets) (statistic engine :durations)
        (is (= 6 count (statistic engine :served)))
        (is (= 100.001451d0 sum))
        (is (equal '(0.0001 2 0.00025 3 0.0005 4 0.001 5) (subseq buckets 0 8)))
        (is (equal '(10.0 5) (last buckets 2)) "One took longer.")))))

;;; Stopping

(define-server-test all-is-worked-off-when-nothing-is-left-that-could-be-served
  (with-still-engine (engine)
    (flet ((work-finished-p () (with-engine (engine) (work-finished-p engine))))
      (is (work-finished-p))
      (queue-connections engine 1)
      (is (not (work-finished-p)))
      (setf (engine-queue engine) '())
      (platform:counter-add (tally-open (engine-tally engine)) 1)
      (is (not (work-finished-p)))
      (platform:counter-add (tally-open (engine-tally engine)) -1)
      (dolist (state '(:starting :waiting :serving :keep-alive))
        (let ((worker (still-worker engine state)))
          (is (not (work-finished-p)) "~A" state)
          (with-engine (engine) (retire worker))))
      (is (work-finished-p)))))

(define-server-test resources-are-released-once-when-all-have-left
  (with-still-engine (engine)
    (setf (engine-phase engine) :stopped
          (engine-resources-held-p engine) t)
    (flet ((closed-p ()
             (release-resources-when-empty engine)
             (not (engine-resources-held-p engine))))
      (let ((worker (still-worker engine)))
        (is (not (closed-p)))
        (with-engine (engine) (retire worker)))
      (setf (sentinel-count (engine-sentinel engine)) 1)
      (is (not (closed-p)))
      (setf (sentinel-count (engine-sentinel engine)) 0
            (engine-phase engine) :stopping)
      (is (not (closed-p)))
      (setf (engine-phase engine) :stopped)
      (is (closed-p)))))

(define-server-test a-worker-of-one-engine-may-stop-another
  (let ((results (make-recorder)))
    (with-running-engine (other (constantly :close))
      (with-running-engine (engine (lambda (socket)
                                     (declare (ignore socket))
                                     (record results (list (engine:stop-engine other)))
                                     :close))
        (is (closed-p (connect-fake *listener*)))
        (is (equal '((nil)) (recorded results)))
        (is (engine:engine-stopped-p other))
        (is (not (engine:engine-stopped-p engine)))))))

(defclass barren-service (fake-service)
  ()
  (:documentation "Its workers do nothing."))

(defmethod engine:call-as-worker ((service barren-service) thunk)
  (declare (ignore thunk))
  nil)

(define-condition no-threads (error) ())

(define-server-test a-start-that-fails-says-why
  (with-still-engine (engine)
    (setf (engine-phase engine) :new)
    (change-class *service* 'barren-service)
    (signals no-workers (engine:start-engine engine))
    (is (engine:engine-stopped-p engine)))
  (with-still-engine (engine :making (lambda (number)
                                       (declare (ignore number))
                                       (error 'no-threads)))
    (setf (engine-phase engine) :new)
    (signals no-threads (engine:start-engine engine))
    (is (engine:engine-stopped-p engine)))
  (with-still-engine (engine)
    (setf (engine-phase engine) :new)
    (change-class *service* 'lonely-service)
    (signals error (engine:start-engine engine))
    (is (engine:engine-stopped-p engine))
    (is (zerop (statistic engine :threads)))
    (is (zerop (sentinel-count (engine-sentinel engine))))
    (is (not (engine-resources-held-p engine)) "All was given back.")))
