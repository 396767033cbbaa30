(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* unwinding :in architecture
  :description "What is done only where a form is left.")

(test a-form-that-returns-has-its-values-and-no-cleanup
  (let ((cleaned 0))
    (is (equal '(1 2) (multiple-value-list (base:unless-returned (values 1 2) (incf cleaned)))))
    (is (null (multiple-value-list (base:unless-returned (values) (incf cleaned)))))
    (is (null (base:unless-returned nil (incf cleaned)))) ; a false value is one
    (is (zerop cleaned))))

(test a-form-that-is-left-has-all-of-its-cleanup-once
  (let ((steps '()))
    (flet ((leave-by (exit)
             (setf steps '())
             (base:unless-returned (funcall exit)
               (push :first steps)
               (push :second steps))))
      (is (eql 7 (catch 'out (leave-by (lambda () (throw 'out 7))))))
      (is (equal '(:second :first) steps))
      (is (eq :handled (handler-case (leave-by (lambda () (error "It fails.")))
                         (error () :handled))))
      (is (equal '(:second :first) steps)))))
