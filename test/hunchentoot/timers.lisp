(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite acceptor-timers :in acceptors
  :description "RUN-AFTER and CANCEL-TIMER as programs use them.")

(in-suite acceptor-timers)

(defun timer-figure (name)
  "One of the figures of the timers of *SERVER*."
  (getf (figure :timers) name))

(defun await-timers (name count)
  (is-true (eventually ((format nil "~D timers to be ~A" count name))
             (eql count (timer-figure name)))))

(define-server-test (a-handler-has-a-function-called-later :needs :our-engine)
  (let ((gate (make-gate)) (calls (make-recorder)))
    (serving () (("/later" (recycling:run-after 0.01 (lambda ()
                                                       (record calls
                                                               (boundp 'hunchentoot:*request*))
                                                       ;; It need not tell whose threads.
                                                       (recycling:run-after
                                                        0 (lambda () (open-gate gate)))))
                           "soon"))
      (is (equal "soon" (ask-text "/later")))
      (await gate)
      (is (equal '(nil) (recorded calls)) "There is no request around it.")
      (await-timers :run 2)))
  (with-acceptor (other)
    (serving () (("/elsewhere" (recycling:run-after 0 'list :server other) "soon"))
      (ask "/elsewhere"))
    (await-timers :run 1)))

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

(define-server-test (timers-run-in-their-order-and-none-before-its-time :needs :our-engine)
  (with-acceptor (acceptor)
    (let ((calls (make-recorder)) (began (platform:microseconds)))
      (loop for (seconds name) in '((0.3 :third) (0.1 :first) (0.2 :second))
            do (let ((seconds seconds) (name name))
                 (recycling:run-after
                  seconds (lambda ()
                            (when (<= (* seconds 1000000) (- (platform:microseconds) began))
                              (record calls name)))
                  :server acceptor)))
      (await-timers :run 3)
      (is (equal '(:first :second :third) (recorded calls))))))

(define-server-test (timers-ring-without-a-pause :needs :our-engine)
  (with-acceptor (acceptor)
    (labels ((ring (left)
               (when (plusp left)
                 (recycling:run-after 1/1000 (lambda () (ring (1- left))) :server acceptor))))
      (ring 60))
    (await-timers :run 60)))

(define-server-test (timers-that-fail-or-block-hold-up-nobody :needs :parking)
  (let ((gate (make-gate)) (entered (make-latch 20)) (over nil) (log (make-string-output-stream)))
    (serving (:message-log-destination log) (("/yo" "Hey!"))
      (recycling:run-after 0 (lambda () (error "No luck today.")) :server *server*)
      (await-timers :failed 1)
      (eventually ("the error to be told")
        (search "[ERROR]] The function of a timer failed: No luck today."
                (taken-from-log log)))
      (labels ((again ()
                 (unless over
                   (recycling:run-after 0 #'again))))
        (unwind-protect
             (progn
               (loop repeat 20
                     do (recycling:run-after 0 (lambda () (count-down entered) (await gate))
                                             :server *server*)
                        (recycling:run-after 0 #'again :server *server*))
               (await entered)
               (is (equal "Hey!" (ask-text "/yo"))))
          (setf over t)
          (open-gate gate)))
      (await-timers :pending 0))))

(define-server-test (a-stop-drops-timers-and-waits-for-one-that-runs :needs :our-engine)
  (with-acceptor (acceptor)
    (let ((begun (make-gate)) (gate (make-gate)) (ended nil) (other nil))
      (loop repeat 10
            do (recycling:run-after 1000 (constantly nil) :server acceptor))
      (recycling:run-after 0 (lambda () (open-gate begun) (await gate) (setf ended t))
                           :server acceptor)
      (await begun)
      (recycling:run-after 0 (lambda () (setf other t)) :server acceptor)
      (is (eq *parking-p* (poll (lambda () other) 1)) "Without parking it is called in turn.")
      (let ((stopping (in-background ("stop") (hunchentoot:stop acceptor :soft t))))
        (is (not (poll (lambda () (task-done-p stopping)) 1/10)))
        (open-gate gate)
        (task-result stopping)
        (is-true ended)
        (is (eql 0 (timer-figure :pending)))))
    (hunchentoot:start acceptor)
    (is (equal '(:pending 0 :run 0 :failed 0) (figure :timers)))))

(define-server-test (a-soft-stop-lets-timers-run-that-a-request-waits-for :needs :our-engine)
  (let ((gate (make-gate)) (begun (make-gate)))
    (serving () (("/wait" (open-gate begun) (await gate) "done"))
      (let ((asking (as-client ("client") (ask-text "/wait"))))
        (await begun)
        (let* ((acceptor *server*)
               (stopping (in-background ("stop") (hunchentoot:stop acceptor :soft t))))
          (recycling:run-after 0.05 (lambda () (open-gate gate)) :server acceptor)
          (is (equal "done" (task-result asking)))
          (task-result stopping))))))

(defmacro tells-of-timers (words &body body)
  "Checks that BODY is refused with a sentence that has WORDS in it."
  `(let ((condition (nth-value 1 (ignore-errors ,@body))))
     (is (typep condition 'recycling:unfit-argument))
     (is (search ,words (princ-to-string condition)) "~A" condition)))

(define-server-test (what-makes-no-sense-is-refused-with-what-to-do :needs :our-engine)
  (tells-of-timers "outside of requests" (recycling:run-after 1 'list))
  (tells-of-timers "a started" (recycling:run-after 1 'list :server (make-test-acceptor)))
  (tells-of-timers "SERVER" (recycling:run-after 1 'list :server 42))
  (with-acceptor (acceptor)
    (tells-of-timers "SECONDS" (recycling:run-after -1 'list :server acceptor))
    (tells-of-timers "SECONDS" (recycling:run-after (no-number) 'list :server acceptor))
    (tells-of-timers "FUNCTION" (recycling:run-after 1 nil :server acceptor))
    (tells-of-timers "TIMER" (recycling:cancel-timer 42))
    (hunchentoot:stop acceptor)
    (tells-of-timers "a started" (recycling:run-after 1 'list :server acceptor))))
