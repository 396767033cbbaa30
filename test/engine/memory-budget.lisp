(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite memory-budget :in engine
  :description "The one budget for memory that clients take.")

(in-suite memory-budget)

(defmacro with-budget ((octets) &body body)
  "Runs BODY with a budget of OCTETS beyond what is reserved by now, where the size of the heap is
known."
  `(let ((reserved (engine:client-memory-reserved)))
     (with-function (engine:client-memory-budget (original)
                      (and (funcall original) (+ reserved ,octets)))
       ,@body)))

(test memory-is-reserved-up-to-the-budget
  (when (engine:client-memory-budget)
    (with-budget (1000)
      (let ((before (engine:client-memory-reserved)))
        (is-true (engine:reserve-client-memory 600))
        (is (= (+ before 600) (engine:client-memory-reserved)))
        (is (not (engine:reserve-client-memory 401)))
        (is (= (+ before 600) (engine:client-memory-reserved)) "Nothing was reserved.")
        (is-true (engine:reserve-client-memory 400))
        (engine:release-client-memory 1000)
        (is (= before (engine:client-memory-reserved)))))))

(test what-does-not-fit-hinders-nobody-else
  (when (engine:client-memory-budget)
    (with-budget (1000)
      (let* ((over-p nil)
             (task (in-background ("asking for too much")
                     (loop until over-p
                           never (engine:reserve-client-memory 1001)))))
        (unwind-protect
             (is (zerop (loop repeat 100000
                              count (not (engine:reserve-client-memory 500))
                              do (engine:release-client-memory 500)))
                 "There was room for it at every moment.")
          (setf over-p t))
        (is-true (task-result task))))))

(test what-waits-leaves-memory-to-what-is-served
  (when (engine:client-memory-budget)
    (with-function (engine:client-memory-budget (original) 1000)
      (when (zerop (engine:client-memory-reserved))
        (is (not (engine:reserve-client-memory 501 1/2)))
        (is-true (engine:reserve-client-memory 501))
        (is (not (engine:reserve-client-memory 1 1/2)))
        (engine:release-client-memory 501)))))
