(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite waiting-of-the-platform :in platform
  :description "What becomes of a thread that is destroyed while it waits.")

(in-suite waiting-of-the-platform)

(test a-thread-that-is-destroyed-while-it-waits-ends-and-signals-nothing
  (let* ((lock (bt:make-lock "waiting")) (never (bt:make-condition-variable))
         (waiting-p nil) (left-p nil) (signalled '())
         (thread (bt:make-thread
                  (lambda ()
                    (unwind-protect
                         (handler-bind ((serious-condition (lambda (condition)
                                                             (push condition signalled))))
                           (bt:with-lock-held (lock)
                             (setf waiting-p t)
                             (loop (platform:wait-on never lock *patience*))))
                      (setf left-p t)))
                  :name "waiting")))
    (eventually ("it to wait") (bt:with-lock-held (lock) waiting-p))
    (platform:destroy-thread thread)
    (eventually ("its end") (not (bt:thread-alive-p thread)))
    (is-true left-p)
    (is (null signalled))
    (is-true (bt:acquire-lock lock nil) "It has given the lock back.")))
