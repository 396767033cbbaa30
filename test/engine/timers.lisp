(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite timers :in engine
  :description "The heap of what is called later, and the moments.")

(in-suite timers)

;;; The heap, with moments that the test makes up

(defun take-all-due (timers now)
  "The functions of TIMERS that are due at NOW, in their order."
  (loop for function = (take-due-timer timers now)
        while function collect function))

(test timers-that-are-closed-drop-what-they-have-and-what-comes
  (let* ((timers (make-timers))
         (before (loop for deadline below 100 collect (add-timer timers deadline 'list)))
         (later (progn (close-timers timers) (add-timer timers 1 'list))))
    (is (every (lambda (timer) (null (timer-function timer))) (cons later before)))
    (is (notany #'engine:cancel (cons later before)))
    (is (null (take-all-due timers 1000)))
    (close-timers timers)
    (is (zerop (timers-pending timers)))))

(defun check-heap-against-model (state steps)
  "Does STEPS random things to timers and to a list of them.  True when both are the same all the
time."
  (let ((timers (make-timers)) (model '()) (now 0))
    (flet ((add ()
             (let ((deadline (+ now (random 300 state))))
               (push (list deadline (add-timer timers deadline deadline)) model)
               t))
           (cancel-one ()
             (let ((entry (nth (random (length model) state) model)))
               (setf model (remove entry model))
               (and (engine:cancel (second entry))
                    (null (timer-function (second entry)))
                    (null (engine:cancel (second entry)))))) ; once
           (take ()
             (incf now (random 20 state))
             (let ((due (count-if (lambda (entry) (<= (first entry) now)) model)))
               (multiple-value-bind (first more-p) (take-due-timer timers now)
                 (setf model (remove-if-not (lambda (entry) (timer-function (second entry))) model))
                 (and (eq (plusp due) (and first t))
                      (or (null first)
                          (every (lambda (entry) (<= first (first entry))) model))
                      (eq more-p (> due 1)))))))
      (loop repeat steps
            always (and (case (random 5 state)
                          ((0 1) (add))
                          (2 (if model (cancel-one) t))
                          (t (take)))
                        (= (length model) (timers-pending timers)))))))

(test a-heap-is-what-a-sorted-list-would-be
  (let ((seed (fresh-seed)))
    (format t "~&[seed ~D] " seed)
    (is-true (check-heap-against-model (seeded-state seed) 3000))))
