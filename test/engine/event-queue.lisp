(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite event-queue :in engine
  :description "What the poller told and nobody follows yet.")

(in-suite event-queue)

(defun call-with-resting-engine (function)
  (with-listener (listener)
    (let* ((service (make-instance 'octet-service :meanings (constantly nil)))
           (engine (engine:make-ready-engine service listener :standby 1)))
      (setf (engine-poller engine) (platform:make-poller))
      (unwind-protect (funcall function engine)
        (platform:close-poller (engine-poller engine))))))

(defmacro with-resting-engine ((engine) &body body)
  "Evaluates BODY with a ready ENGINE that is not started.  Where there are no pollers, does
nothing."
  `(where-supported
    (call-with-resting-engine (lambda (,engine) ,@body))))

(defun take-all (engine)
  (loop for token = (take-event engine)
        while token collect token))

(defun pretend-to-wait (engine)
  (platform:counter-add (pool-state-waiting (engine-pool-state engine)) 1))

(defun told-now (engine)
  (platform:await-ready (engine-poller engine) 0))

(define-server-test what-is-queued-is-taken-in-its-order
  (with-resting-engine (engine)
    (is (null (take-event engine)))
    (queue-events engine (list 1 2 3))
    (is (eql 1 (take-event engine)))
    (queue-events engine (list 4))
    (is (equal '(2 3 4) (take-all engine)))))

(define-server-test nobody-is-woken-where-nobody-waits
  (with-resting-engine (engine)
    (queue-events engine (list 1 2))
    (take-all engine)
    (is (null (told-now engine)))))

(define-server-test a-worker-that-waits-is-woken-once-until-somebody-comes
  (with-resting-engine (engine)
    (pretend-to-wait engine)
    (queue-events engine (list 1))
    (queue-events engine (list 2))
    (is (eq :wakeup (told-now engine)))
    (queue-events engine (list 3))
    (is (null (told-now engine)) "Whoever was told has not looked yet.")
    (clear-wakeup engine)
    (queue-events engine (list 4))
    (is (eq :wakeup (told-now engine)))))

(define-server-test a-wakeup-that-a-busy-worker-got-is-sent-again
  (with-resting-engine (engine)
    (pretend-to-wait engine)
    (queue-events engine (list 1))
    (is (eq :wakeup (told-now engine)))
    (queue-other-events engine (list 2 :wakeup 3))
    (is (eq :wakeup (told-now engine)))
    (is (equal '(1 2 3) (take-all engine)))))

(define-server-test a-wakeup-that-came-alone-to-a-busy-worker-is-sent-again
  (with-resting-engine (engine)
    (pretend-to-wait engine)
    (queue-events engine (list 1))
    (is (eq :wakeup (told-now engine)))
    (queue-other-events engine (list :wakeup))
    (is (eq :wakeup (told-now engine)))
    (is (equal '(1) (take-all engine)))))

(define-server-test a-worker-that-takes-one-of-several-wakes-another
  (with-resting-engine (engine)
    (queue-events engine (list 1 2))
    (pretend-to-wait engine)
    (is (eql 1 (take-event engine)))
    (is (eq :wakeup (told-now engine)))
    (clear-wakeup engine)
    (is (eql 2 (take-event engine)))
    (is (null (told-now engine)) "Nothing was left.")))

(define-server-test many-who-leave-and-take-lose-nothing
  (with-resting-engine (engine)
    (let* ((size 20000)
           (givers (loop for giver below 2
                         collect (let ((first (* giver size)))
                                   (in-background ("giver")
                                     (loop for token from first below (+ first size) by 4
                                           do (queue-events
                                               engine (loop for n below 4 collect (+ token n))))))))
           (taken (make-recorder))
           (takers (loop repeat 3
                         collect (in-background ("taker")
                                   (loop until (and (every #'task-done-p givers)
                                                    (null (engine-event-queue engine)))
                                         for token = (take-event engine)
                                         when token do (record taken token))))))
      (mapc #'task-result givers)
      (mapc #'task-result takers)
      (is (equal (loop for token below (* 2 size) collect token)
                 (sort (copy-list (recorded taken)) #'<))))))

;;; In an engine that runs

(define-server-test handlers-that-block-leave-what-was-told-with-them-to-others
  ;; All that comes at once is told to whoever is awake, and each of them blocks.
  (with-gated-engine (engine gate connections 30)
    (dolist (connection connections)
      (exchange-octets connection "a"))
    (let* ((blocked (loop for connection in connections by #'cdddr collect connection))
           (others (set-difference connections blocked)))
      (dolist (connection connections)
        (send connection (if (member connection blocked) "w" "q")))
      (expect-each others "q")
      (wait-for-statistic engine :busy 10)
      (open-gate gate)
      (expect-each blocked "w"))))

(define-server-test a-handler-that-blocks-leaves-the-listener-to-others
  (with-gated-engine (engine gate blocked 5 :standby 1)
    (send-each blocked "w")
    (wait-for-statistic engine :busy 5)
    (loop repeat 20
          do (with-connection (connection *port*)
               (is (equal "q" (exchange-octets connection "q")))))
    (open-gate gate)
    (expect-each blocked "w")))

(define-server-test what-is-queued-is-taken-before-the-poller-is-asked
  (with-resting-engine (engine)
    (with-globals ((*poll-milliseconds* (* 1000 (ceiling *patience*))))
      (let ((worker (make-pool-worker engine 1)))
        (queue-events engine (list 7))
        (is (eql 7 (await-event engine worker nil)))
        (is (null (somebody-waits-p engine)))))))
