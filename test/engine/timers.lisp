(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite timers :in engine
  :description "The heap of what is called later, and the moments.")

(in-suite timers)

;;; The heap, with moments that the test makes up

(defun add-at (timers deadline &optional (function 'list))
  "Adds a timer, due at DEADLINE, to TIMERS, and returns it."
  (let ((timer (make-timer timers deadline function)))
    (add-timer timers timer)
    timer))

(defun take-all-due (timers now)
  "The functions of TIMERS that are due at NOW, in their order."
  (loop for function = (take-due-timer timers now)
        while function collect function))

(test a-timer-that-is-cancelled-lets-go-of-its-function-and-of-its-place
  (let* ((timers (make-timers))
         (others (loop for deadline below 40 collect (add-at timers deadline)))
         (timer (nth 7 others)))
    (is-true (engine:cancel timer))
    (is (null (timer-function timer)))
    (is (null (find timer (timers-entries timers))))
    (is (= 39 (timers-count timers)))
    (is (null (engine:cancel timer)) "It is cancelled once.")
    (is (= 39 (length (take-all-due timers 100))))))

(test a-timer-that-is-due-lets-go-of-its-function
  (let* ((timers (make-timers)) (timer (add-at timers 5)))
    (is (equal '(list) (take-all-due timers 5)))
    (is (null (timer-function timer)))
    (is (every #'null (timers-entries timers)))
    (is (null (engine:cancel timer)))))

(test timers-that-are-closed-drop-what-they-have-and-what-comes
  (let* ((timers (make-timers))
         (before (loop for deadline below 100 collect (add-at timers deadline)))
         (later (progn (close-timers timers) (add-at timers 1))))
    (is (every (lambda (timer) (null (timer-function timer))) (cons later before)))
    (is (notany #'engine:cancel (cons later before)))
    (is (every #'null (timers-entries timers)))
    (is (null (take-all-due timers 1000)))
    (close-timers timers)
    (is (equal '(:pending 0 :run 0 :failed 0) (timer-statistics timers)))))

(defun model-before-p (one other)
  "True when ONE, a list of a deadline and a number, is due before OTHER."
  (or (< (first one) (first other))
      (and (= (first one) (first other)) (< (second one) (second other)))))

(defun check-heap-against-model (state steps)
  "Does STEPS random things to timers and to a list of them.  True when both are the same all the
time."
  (let ((timers (make-timers)) (model '()) (now 0))
    (flet ((add ()
             (let* ((deadline (+ now (random 300 state)))
                    (timer (add-at timers deadline)))
               (push (list deadline (timer-number timer) timer) model)
               t))
           (cancel-one ()
             (let ((entry (nth (random (length model) state) model)))
               (setf model (remove entry model))
               (engine:cancel (third entry))))
           (take ()
             (incf now (random 20 state))
             (let* ((sorted (sort (copy-list model) #'model-before-p))
                    (due (loop for entry in sorted while (<= (first entry) now) collect entry))
                    (taken (first due)))
               (setf model (remove taken model))
               (multiple-value-bind (function more-p) (take-due-timer timers now)
                 (and (eq (null taken) (null function))
                      (or (null taken) (minusp (timer-place (third taken))))
                      (eq more-p (and (rest due) t)))))))
      (loop repeat steps
            always (and (case (random 5 state)
                          ((0 1) (add))
                          (2 (if model (cancel-one) t))
                          (t (take)))
                        (= (length model) (timers-count timers))
                        (loop for (nil nil timer) in model
                              always (eq timer (svref (timers-entries timers)
                                                      (timer-place timer)))))))))

(test a-heap-is-what-a-sorted-list-would-be
  (let ((seed (fresh-seed)))
    (format t "~&[seed ~D] " seed)
    (is-true (check-heap-against-model (seeded-state seed) 3000))))

(test an-alarm-rings-no-earlier-than-who-it-is-for
  (loop for deadline from 1 to 2000 by 7
        for moment = (alarm-moment deadline)
        do (is (<= deadline moment (+ deadline *alarm-microseconds*)))))

(test seconds-of-all-kinds-are-taken
  (loop for (seconds microseconds) in `((0 0) (1 1000000) (1/1000 1000) (0.001 1000) (1d-3 1000)
                                        (0.25 250000) (-1 0) (-1.0 0) (1/3000000 1)
                                        (2000.0 2000000000)
                                        (,(expt 10 30) ,(ash 1 60)) (1d30 ,(ash 1 60)))
        ;; A float of 0.001 is a little more than that.
        do (is (<= microseconds (delay-microseconds seconds) (1+ microseconds)) "~A" seconds)))
