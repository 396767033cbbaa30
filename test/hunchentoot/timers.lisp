(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite acceptor-timers :in acceptors
  :description "RUN-AFTER and CANCEL-TIMER as programs use them.")

(in-suite acceptor-timers)

(defun timer-figure (name)
  "One of the figures of the timers of *SERVER*."
  (getf (getf (recycling:stats *server*) :timers) name))

(define-server-test (a-handler-has-a-function-called-later :needs :our-engine)
  (let ((gate (make-gate)) (calls (make-recorder)))
    (serving () (("/later" (recycling:run-after 0.01 (lambda ()
                                                       (record calls
                                                               (boundp 'hunchentoot:*request*))
                                                       (open-gate gate)))
                           "soon"))
      (is (equal "soon" (ask-text "/later")))
      (await gate)
      (is (equal '(nil) (recorded calls)) "There is no request around it.")
      (eventually ("it to be counted") (eql 1 (timer-figure :run))))))

(define-server-test (a-timer-schedules-the-next-without-being-told-where :needs :our-engine)
  (let ((gate (make-gate)))
    (serving () (("/later" (recycling:run-after
                            0 (lambda ()
                                (recycling:run-after 0 (lambda () (open-gate gate)))))
                           "soon"))
      (is (equal "soon" (ask-text "/later")))
      (is-true (await gate)))))

(define-server-test (any-thread-may-say-whose-threads-are-to-run-a-timer :needs :our-engine)
  (let ((gate (make-gate)))
    (with-acceptor (acceptor)
      (recycling:run-after 0 (lambda () (open-gate gate)) :server acceptor)
      (is-true (await gate)))))

(define-server-test (a-thread-in-the-context-of-a-reply-has-its-server-run-a-timer
                     :needs :our-engine)
  (let ((gate (make-gate)) (replies (make-recorder)))
    (serving () (("/later" (recycling:defer-reply (reply) (record replies reply))))
      (with-connection (connection)
        (send-request connection "/later")
        (let ((reply (nth-reply replies)))
          (task-result (in-background ("another thread")
                         (recycling:with-reply-context (reply)
                           (recycling:run-after 0 (lambda () (open-gate gate))))))
          (is-true (await gate))
          (recycling:complete-reply reply "done"))))))

(define-server-test (a-timer-is-cancelled-in-a-handler :needs :our-engine)
  (serving () (("/never" (princ-to-string
                          (recycling:cancel-timer
                           (recycling:run-after 1000 (lambda () (error "Never.")))))))
    (is (equal "T" (ask-text "/never")))
    (is (eql 1 (timer-figure :cancelled)))
    (is (eql 0 (timer-figure :pending)))))

(define-server-test (an-acceptor-that-is-started-again-has-no-timers-of-before :needs :our-engine)
  (with-acceptor (acceptor)
    (loop repeat 10
          do (recycling:run-after 1000 (constantly nil) :server acceptor))
    (is (eql 10 (timer-figure :pending)))
    (hunchentoot:stop acceptor)
    (is (eql 10 (timer-figure :dropped)))
    (hunchentoot:start acceptor)
    (is (equal '(:pending 0 :run 0 :failed 0 :cancelled 0 :dropped 0)
               (getf (recycling:stats acceptor) :timers)))))

(define-server-test (a-soft-stop-lets-timers-run-that-a-request-waits-for :needs :our-engine)
  (let ((gate (make-gate)) (begun (make-gate)))
    (serving () (("/wait" (open-gate begun) (await gate) "done"))
      (let ((asking (in-background ("client") (ask-text "/wait"))))
        (await begun)
        (let ((stopping (in-background ("stop") (hunchentoot:stop *server* :soft t))))
          (recycling:run-after 0.05 (lambda () (open-gate gate)) :server *server*)
          (is (equal "done" (task-result asking)))
          (task-result stopping))))))

(defmacro tells-of-timers (words &body body)
  "Checks that BODY is refused with a sentence that has WORDS in it."
  `(let ((condition (nth-value 1 (ignore-errors ,@body))))
     (is (typep condition 'recycling:unfit-argument))
     (is (search ,words (princ-to-string condition)) "~A" condition)))

(define-server-test (what-makes-no-sense-is-refused-with-what-to-do :needs :our-engine)
  (tells-of-timers "SERVER must be passed" (recycling:run-after 1 'list))
  (tells-of-timers "START" (recycling:run-after 1 'list :server (make-test-acceptor)))
  (tells-of-timers "SERVER" (recycling:run-after 1 'list :server 42))
  (with-acceptor (acceptor)
    (tells-of-timers "SECONDS" (recycling:run-after -1 'list :server acceptor))
    (tells-of-timers "SECONDS" (recycling:run-after "1" 'list :server acceptor))
    (tells-of-timers "SECONDS" (recycling:run-after (no-number) 'list :server acceptor))
    (tells-of-timers "FUNCTION" (recycling:run-after 1 nil :server acceptor))
    (tells-of-timers "FUNCTION" (recycling:run-after 1 "list" :server acceptor))
    (tells-of-timers "TIMER" (recycling:cancel-timer 42))
    (hunchentoot:stop acceptor)
    (tells-of-timers "START" (recycling:run-after 1 'list :server acceptor))))
