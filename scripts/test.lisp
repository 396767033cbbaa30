;;;; Runs the tests: all of them, or the one suite or test that SUITE names; as if there were as
;;;; many processors as PROCESSORS says, if it says anything.  The test runner prints "N passed, N
;;;; failed" as its last line; the exit code is 0 only when nothing failed.  A run that hangs fails
;;;; after TEST_MINUTES.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(load-tests "hunchentoot-recycling-taskmaster-test")

(defun limit-run (minutes)
  "Ends this process if it still runs after MINUTES, telling where the tests hang."
  (let ((tests (bt:current-thread))
        (condition (make-condition 'simple-error
                                   :format-control "The tests were not done after ~D minutes."
                                   :format-arguments (list minutes))))
    (bt:make-thread (lambda ()
                      (sleep (* 60 minutes))
                      (bt:interrupt-thread tests (lambda () (fail condition nil)))
                      (sleep 20)
                      (leave 1))
                    :name "time limit of the tests")))

(defun run-tests (&optional suite processors)
  "Runs SUITE, or all, as if there were PROCESSORS, a number in a string, or as many as there are;
true if nothing failed.  Gives up when there is no SUITE."
  (handler-bind ((error (lambda (condition)
                          (when (typep condition
                                       (uiop:find-symbol* '#:unknown-suite
                                                          '#:hunchentoot-recycling-taskmaster-test))
                            (give-up "~A" condition)))))
    (apply #'uiop:symbol-call '#:hunchentoot-recycling-taskmaster-test '#:run-all
           :processors (and processors (parse-integer processors))
           (when suite (list :suite suite)))))

;; A run takes a quarter of an hour at most where nothing else uses the processors, and several
;; times that where much does.
(limit-run (parse-integer (setting "TEST_MINUTES" "60")))
(let ((passed (run-tests (setting "SUITE") (setting "PROCESSORS"))))
  (finish-output)
  (finish-output *error-output*)
  ;; At once: a thread that some test left behind can't hold this up.
  (leave (if passed 0 1)))
