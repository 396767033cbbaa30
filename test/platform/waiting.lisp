(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite waiting-of-the-platform :in platform
  :description "Threads that are destroyed while they wait.")

(in-suite waiting-of-the-platform)

(test a-thread-that-is-destroyed-while-it-waits-ends-and-signals-nothing
  (let* ((lock (bt:make-lock "waiting")) (never (bt:make-condition-variable))
         (waiting-p nil) (left-p nil) (signalled '())
         (thread (bt:make-thread
                  (lambda ()
                    (unwind-protect
                         (handler-bind ((serious-condition (lambda (condition)
                                                             (push condition signalled))))
                           (platform:wait-until (lambda ()
                                                  (setf waiting-p t)
                                                  nil)
                                                never lock (* 2 *patience*) nil))
                      (setf left-p t)))
                  :name "waiting")))
    (eventually ("it to wait") (bt:with-lock-held (lock) waiting-p))
    (platform:destroy-thread thread)
    (eventually ("its end") (not (bt:thread-alive-p thread)))
    (is-true left-p)
    (is (null signalled))
    (is-true (bt:acquire-lock lock nil) "The thread has released the lock.")))

;;; Interrupts may last long, for example if one enters the debugger.

(define-server-test (an-interrupt-of-a-thread-that-waits-finds-the-lock-free :needs :deferred-ends)
  (dolist (period (list nil 1/100 (constantly 1/100)))
    (let* ((lock (bt:make-lock "waiting")) (changed (bt:make-condition-variable))
           (first-p t) (over-p nil) (found (make-recorder))
           (task (in-background ("waiter")
                   (platform:wait-until (lambda ()
                                          (when (shiftf first-p nil)
                                            (interrupt-this-thread
                                             (lambda () (record found (lock-held-p lock)))))
                                          over-p)
                                        changed lock nil period))))
      (eventually ("the interrupt") (recorded found))
      (bt:with-lock-held (lock)
        (setf over-p t)
        (bt:condition-notify changed))
      (is-true (task-result task))
      (is (equal '(nil) (recorded found))))))

(test an-interrupt-may-leave-a-wait
  (let* ((lock (bt:make-lock "waiting")) (first-p t)
         (task (in-background ("waiter")
                 (catch 'left
                   (platform:wait-until (lambda ()
                                          (when (shiftf first-p nil)
                                            (interrupt-this-thread (lambda () (throw 'left :left))))
                                          nil)
                                        (bt:make-condition-variable) lock nil nil)))))
    (is (eq :left (task-result task)))
    (is (not (lock-held-p lock)))))

(test a-wait-looks-as-often-as-it-is-told-each-time
  (let ((periods (list 1/100 1/50 600)) (lock (bt:make-lock "waiting")) (looks 0))
    (is (eql 3 (platform:wait-until (lambda () (and (= 3 (incf looks)) looks))
                                    (bt:make-condition-variable) lock nil
                                    (lambda () (pop periods)))))
    (is (equal '(600) periods))))

(test a-thread-that-waits-once-looks-at-the-rest-itself
  (let ((lock (bt:make-lock "waiting")) (changed (bt:make-condition-variable)))
    (is (eq :needed (platform:wait-once (constantly :needed) changed lock 600)))
    (platform:wait-once (constantly nil) changed lock 1/100)
    (let* ((waiting-p nil)
           (task (in-background ("waiter")
                   (platform:wait-once (lambda ()
                                         (setf waiting-p t)
                                         nil)
                                       changed lock 600))))
      (eventually ("it to wait") (bt:with-lock-held (lock) waiting-p))
      (bt:with-lock-held (lock)
        (bt:condition-notify changed))
      (task-result task)
      (pass))))

#+sbcl
(test a-programs-deadline-keeps-nobody-from-what-is-not-to-be-interrupted
  (dolist (function (list (lambda (lock) (platform:with-lock-briefly (lock) t))
                          (lambda (lock) (platform:uninterruptibly (bt:with-lock-held (lock) t)))
                          (lambda (lock)
                            (platform:with-acquired (taken-p (bt:with-lock-held (lock) t)
                                                             (bt:with-lock-held (lock)))
                              taken-p))))
    (let* ((lock (bt:make-lock "held"))
           (held (make-gate "the lock to be held"))
           (go-on (make-gate "permission to release it"))
           (holder (in-background ("holder")
                     (bt:with-lock-held (lock)
                       (open-gate held)
                       (await go-on)))))
      (await held)
      (let ((waiter (in-background ("waiter")
                      (sb-sys:with-deadline (:seconds 1/1000)
                        (funcall function lock)))))
        (is (not (poll (lambda () (task-done-p waiter)) 1/20)))
        (open-gate go-on)
        (is-true (task-result waiter))
        (task-result holder)))))

(test a-thread-that-is-destroyed-before-cleanup-does-all-of-it-and-ends
  (let* ((running (list nil)) (go-on (list nil)) (done '()) (lock (bt:make-lock "cleanup"))
         (thread (bt:make-thread
                  (lambda ()
                    (platform:unwind-protect-whole
                        (progn
                          (setf (first running) t)
                          (loop until (first go-on))) ; on ABCL nothing ends that
                      (bt:with-lock-held (lock)
                        (push :cleaned done)))
                    (push :went-on done))
                  :name "cleanup")))
    (eventually ("it to run") (first running))
    (bt:with-lock-held (lock)
      (platform:destroy-thread thread)
      (setf (first go-on) t))
    (eventually ("its end") (not (bt:thread-alive-p thread)))
    (is (equal '(:cleaned) done))))

(test a-thread-that-nobody-destroys-goes-on-after-its-cleanup
  (let ((done '()))
    (is (equal '(1 2) (multiple-value-list
                       (platform:unwind-protect-whole (values 1 2)
                         (push :cleaned done)))))
    (is (equal '(:cleaned) done))))
