(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite faults :in engine
  :description "What goes wrong, and is survived.")

(in-suite faults)

(defun exhausted ()
  (make-condition 'platform:descriptors-exhausted :cause "EMFILE"))

(define-server-test exhausted-descriptors-are-noted-once-and-accepting-goes-on
  (with-running-engine (engine (constantly :close))
    (with-globals ((*tick* 1/100))
      (loop repeat 3 do (hand-over *listener* (exhausted)))
      (is (closed-p (connect-fake *listener*)))
      (is (= 1 (recorded-count (fake-notes *service*))))
      (is (= 3 (statistic engine :failed))))))

(define-server-test exhausted-descriptors-are-noted-again-when-they-come-again
  (with-running-engine (engine (constantly :close))
    (loop repeat 2
          do (hand-over *listener* (exhausted))
             (is (closed-p (connect-fake *listener*))))
    (is (= 2 (recorded-count (fake-notes *service*))))))

(define-server-test a-connection-that-is-gone-again-is-no-fault
  (with-running-engine (engine (constantly :close))
    (hand-over *listener* nil)
    (is (closed-p (connect-fake *listener*)))
    (is (zerop (statistic engine :failed)))))

(define-server-test a-thread-that-cannot-be-made-is-made-later
  (let ((failures 2) (gate (make-gate)))
    (with-running-engine (engine (lambda (socket)
                                   (when (plusp (fake-requests socket))
                                     (await gate))
                                   :close)
                                 :making (lambda (number)
                                           (when (and (> number 1) (plusp failures))
                                             (decf failures)
                                             (error "No more threads."))))
      (connect-fake *listener* 2)       ; needs a sibling, which fails
      (is (closed-p (connect-fake *listener*)))
      (is (= 2 (statistic engine :failed)))
      (is (= 1 (recorded-count (fake-notes *service*))) "It is noted once.")
      (open-gate gate))))

(define-server-test trouble-with-threads-is-over-when-none-was-missing-for-long
  (with-globals ((*tick* 1/100)
                 (*trouble-seconds* 1/10))
    (with-running-engine (engine (constantly :close))
      (note-thread-trouble engine (make-condition 'simple-error :format-control "None."))
      (eventually ("the trouble to be over") (not (thread-trouble-p engine)))
      (setf *trouble-seconds* 1000)
      (note-thread-trouble engine (make-condition 'simple-error :format-control "None."))
      (is (= 2 (recorded-count (fake-notes *service*))) "It is noted again.")
      (housekeep engine)
      (is-true (thread-trouble-p engine) "It may last.")
      (forget-thread-trouble engine))))

(define-server-test a-thread-that-dies-before-its-worker-begins-is-replaced
  (with-running-engine (engine (constantly :close) :standby 2)
    (with-globals ((*tick* 1/100))
      (wait-for-statistic engine :standby 2)
      (let ((dead (bt:make-thread (constantly nil))))
        (eventually ("a thread to end") (not (bt:thread-alive-p dead)))
        (let ((worker (with-engine (engine) (reserve-worker engine))))
          (with-function (engine:make-engine-thread (original &rest arguments) dead)
            (is-true (launch worker)))
          (maintain-pool engine)
          (is (eq :ended (worker-state worker)))
          (wait-for-statistic engine :standby 2))))))

(define-server-test (a-thread-that-dies-amid-the-making-of-workers-makes-them-or-gives-them-back
                     :needs :deferred-ends)
  (let* (*listener* *service* (launched '())
         (engine (make-engine (constantly :close) :standby 3)))
    (setf (engine-phase engine) :running
          (accept-open-p (engine-accept-state engine)) t)
    (with-function (launch (original worker) (push worker launched) t)
      (with-function (launch-all (original engine workers)
                       (destroy-here (bt:current-thread))
                       (funcall original engine workers))
        (platform:join-thread (bt:make-thread (lambda ()
                                                (make-missing-workers engine)
                                                (await (make-gate))))
                              *patience*)))
    (is (null (set-exclusive-or launched (engine-workers engine))))
    (is (= 3 (length launched)))))

(define-server-test start-signals-when-no-thread-can-be-made
  (let* (*listener* *service*
         (engine (make-engine (constantly :close)
                              :making (lambda (number)
                                        (declare (ignore number))
                                        (error "No threads at all.")))))
    (signals error (engine:start-engine engine))
    (is (zerop (statistic engine :threads)))))

(define-server-test an-error-of-the-service-ends-its-connection-only
  (with-running-engine (engine (lambda (socket)
                                 (declare (ignore socket))
                                 (error "Broken.")))
    (is (closed-p (connect-fake *listener*)))
    (is (closed-p (connect-fake *listener*)))
    (wait-for-statistic engine :failed 2)
    (wait-for-statistic engine :open 0)
    (is (= 2 (recorded-count (fake-notes *service*))))))

(define-server-test a-throw-to-nowhere-ends-its-connection-only
  (with-running-engine (engine (lambda (socket)
                                 (declare (ignore socket))
                                 (throw 'nowhere nil)))
    (is (closed-p (connect-fake *listener*)))
    (is (closed-p (connect-fake *listener*)))
    (wait-for-statistic engine :open 0)))

(define-server-test notes-that-cannot-be-written-harm-nobody
  (with-running-engine (engine (lambda (socket)
                                 (declare (ignore socket))
                                 (error "Broken.")))
    (setf (slot-value *service* 'notes) "not a recorder")
    (is (closed-p (connect-fake *listener*)))
    (is (closed-p (connect-fake *listener*)))
    (wait-for-statistic engine :failed 4)))

(define-server-test what-is-exhausted-is-no-more-than-an-error
  (let ((making-p t))
    (with-running-engine (engine (lambda (socket)
                                   (declare (ignore socket))
                                   (error 'storage-condition))
                                 :making (lambda (number)
                                           (when (and (> number 1) making-p)
                                             (setf making-p nil)
                                             (error 'storage-condition))))
      (setf (slot-value *service* 'notes) (lambda () (error 'storage-condition)))
      (is (closed-p (connect-fake *listener*)))
      (is (closed-p (connect-fake *listener*)))
      (wait-for-statistic engine :open 0)
      (is (<= 4 (statistic engine :failed))))))

(define-server-test a-handler-that-kills-its-thread-is-replaced
  (with-running-engine (engine (lambda (socket)
                                 (if (plusp (fake-requests socket))
                                     (kill-this-thread)
                                     :close)))
    (let ((killer (connect-fake *listener* 2)))
      (is (closed-p killer)))
    (is (closed-p (connect-fake *listener*)))
    (wait-for-statistic engine :open 0)
    (wait-for-statistic engine :threads 1)))

(define-server-test a-waiting-worker-destroyed-from-outside-is-replaced
  (with-running-engine (engine (constantly :close) :standby 2)
    (eventually ("the workers to begin")
      (every #'worker-thread (engine-workers engine)))
    (platform:destroy-thread (worker-thread (first (engine-workers engine))))
    (wait-for-statistic engine :made 3)
    (wait-for-statistic engine :standby 2)
    (is (= 1 (statistic engine :ended)))
    (is (closed-p (connect-fake *listener*)))))

(define-server-test a-serving-worker-destroyed-from-outside-gives-its-connection-up
  (let ((entered (make-latch 1)) (gate (make-gate)) (victims (make-recorder)))
    (with-running-engine (engine (lambda (socket)
                                   (declare (ignore socket))
                                   (record victims (bt:current-thread))
                                   (count-down entered)
                                   (await gate)
                                   :close))
      (let ((socket (connect-fake *listener*)))
        (await entered)
        (platform:destroy-thread (first (recorded victims)))
        (is (closed-p socket))
        (wait-for-statistic engine :open 0)
        (open-gate gate)
        (is (closed-p (connect-fake *listener*)))))))

(define-server-test a-queued-client-is-served-when-a-worker-was-destroyed-and-all-others-wait
  (let ((served (make-recorder)))
    (with-running-engine (engine (lambda (socket)
                                   (record served (cons socket (bt:current-thread)))
                                   (poll (lambda () (fake-ended socket)) *patience*)
                                   :close)
                                 :standby 2 :thread-limit 4 :accept-limit 60)
      (flet ((end (socket)
               (platform:shut-down socket :input)
               (is (closed-p socket))))
        (destructuring-bind (done destroyed held) (loop repeat 3 collect (connect-fake *listener*))
          (wait-for-statistic engine :busy 3)
          (end done)
          (wait-for-statistic engine :standby 2)
          (engine:resize-pool engine :thread-limit 2)
          (let ((queued (connect-fake *listener*)))
            (wait-for-statistic engine :queued 1)
            (platform:destroy-thread (rest (assoc destroyed (recorded served))))
            (is (closed-p destroyed))
            (eventually ("the queued connection to be served") (assoc queued (recorded served)))
            (is (= 2 (statistic engine :busy)))
            (end queued)
            (end held)))))))

(define-server-test a-connection-that-overstays-its-deadline-is-ended
  (with-running-engine (engine (constantly :close))
    (with-globals ((*tick* 1/100))
      (let* ((socket (make-instance 'fake-socket))
             (connection (make-connection socket)))
        (setf (worker-connection (first (engine-workers engine))) connection)
        (engine:call-with-deadline
         connection :handshake 0
         (lambda ()
           (eventually ("the sentinel to end the connection") (fake-ended socket))))
        (is (eq :handshake (engine:connection-deadline-kind connection)))
        (is (= 1 (statistic engine :expired)))
        (is (= 1 (getf (statistic engine :expired-by) :handshake)))
        (setf (worker-connection (first (engine-workers engine))) nil)))))

(define-server-test a-client-that-is-to-be-served-at-its-deadline-is-left-to-its-worker
  (with-running-engine (engine (constantly :close))
    (let* ((socket (make-instance 'fake-socket))
           (connection (make-connection socket))
           (worker (first (engine-workers engine))))
      (flet ((ended-p (kind)
               (engine:set-deadline-at connection kind (- (platform:milliseconds) 1000))
               (with-engine (engine)
                 (setf (worker-connection worker) connection)
                 (end-overdue-connections engine)
                 (setf (worker-connection worker) nil))
               (fake-ended socket)))
        (is (not (ended-p :deferred)))
        (is (not (ended-p :pause)))
        (is (zerop (statistic engine :expired)))
        (is (ended-p :head))))))

;;; A thread may be destroyed at any line

(defun destroy-here (thread)
  "Has THREAD, the current one, destroyed by another, and gives it the time to die here."
  (task-result (in-background ("destroyer") (platform:destroy-thread thread))))

(defun call-with-destruction (name moment function)
  "Calls FUNCTION while the first worker that calls the function NAME is destroyed there, :BEFORE
or :AFTER that call as MOMENT says; checks that one was."
  (let ((original (fdefinition name))
        (armed (list t)))
    (flet ((strike (now)
             (when (and (eq now moment) engine:*worker* (pop armed))
               (destroy-here (bt:current-thread)))))
      (with-globals (((fdefinition name)
                      (lambda (&rest arguments)
                        (strike :before)
                        (multiple-value-prog1 (apply original arguments)
                          (strike :after)))))
        (funcall function))
      (is (null armed) "No worker called ~A." name))))

(defparameter *steps-of-a-connection*
  '(platform:accept-connection make-connection admit assign-connection
    handle-connection serve-to-the-end become-idle close-connection
    release-connection next-step)
  "Functions that a worker of the blocking engine calls for a connection.")

(define-server-test (a-worker-destroyed-at-any-step-leaks-no-connection :needs :deferred-ends)
  (dolist (name *steps-of-a-connection*)
    (dolist (moment '(:before :after))
      (with-running-engine (engine (constantly :park) :standby 2)
        (let ((sockets '()))
          (call-with-destruction name moment
                                 (lambda ()
                                   (loop repeat 3 do (push (connect-fake *listener*) sockets))
                                   (dolist (socket sockets)
                                     (setf (fake-ended socket) t))
                                   (is (every #'closed-p sockets) "~A ~A" moment name)
                                   (eventually ("the worker to end")
                                     (plusp (statistic engine :ended))))))
        (wait-for-statistic engine :open 0)
        (wait-for-statistic engine :standby 2)))))
