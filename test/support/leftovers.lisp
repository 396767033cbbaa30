(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What single test files use, and is to go with them.

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
