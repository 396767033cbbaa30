(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite process-exits :in all
  :description "Processes that end while their servers are busy.")

(in-suite process-exits)

(defun exiting-program-output ()
  "What exiting-program.lisp prints, the lines that tell of the ends of processes, in a list."
  (remove-if-not (lambda (line) (uiop:string-prefix-p "parking " line))
                 (uiop:run-program
                  (mapcar #'project-file
                          '("scripts/lisp" "test/hunchentoot/exiting-program.lisp"))
                  :output :lines :error-output nil :ignore-error-status t)))

(test a-process-that-exits-while-threads-are-made-ends-soon
  (if (and *parking-p* (uiop:featurep :sbcl)) ; it tries both
      (let ((lines (exiting-program-output)))
        (is (= 12 (length lines)))
        (dolist (line lines)
          (is (uiop:string-suffix-p line ": 7") "~A" line)))
      (skip "Once is enough, and on another Lisp a second process would take long to begin.")))

(test no-thread-is-made-once-the-process-exits
  (with-globals ((platform::*exiting-p* nil))
    (is (= 4 (platform:call-making-thread (lambda () 4))))
    (let* ((entered (make-latch 1))
           (gate (make-gate))
           (maker (in-background ("a thread that makes another one")
                    (platform:call-making-thread (lambda () (count-down entered) (await gate) 5)))))
      (await entered)
      (platform::end-thread-making 1/100)
      (is-true (platform:process-exits-p))
      (signals platform:process-exits
        (platform:call-making-thread (lambda () (error "A thread was made."))))
      (let ((hook (in-background ("the hook") (platform::end-thread-making *patience*))))
        (open-gate gate)
        (is (= 5 (task-result maker)))
        (is-true (task-result hook) "It has waited for who was at it.")))))
