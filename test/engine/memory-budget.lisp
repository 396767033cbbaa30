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

;;; Garbage

(defmacro with-heap ((octets used) &body body)
  "Evaluates BODY as if the heap had room for OCTETS, and USED of them were in use."
  `(with-function (platform:heap-octets (original) ,octets)
     (with-function (platform:heap-used (original) ,used)
       ,@body)))

(defun collections (&key (ended 1000) (took 50) (used 500))
  "The collections of a Lisp of which the last ended at ENDED, took TOOK milliseconds, and left USED
octets in use."
  (let ((collections (make-collections)))
    (setf (collections-ended collections) ended
          (collections-took collections) took
          (collections-used collections) used)
    collections))

(test garbage-is-collected-at-once-where-a-sixteenth-of-the-heap-was-taken-since
  (with-heap (1600 600)
    (is-true (collection-due-p (collections) 1000))
    (is-true (collection-due-p (collections :took 5000) 1000))
    (is-true (collection-due-p (make-collections) 1000) "None was before.")
    (is-false (collection-due-p (collections :used 501) 1000))))

(test collections-that-free-little-take-a-tenth-of-the-time
  (with-heap (1600 599)
    (is-false (collection-due-p (collections :took 50) 1449))
    (is-true (collection-due-p (collections :took 50) 1500))))

(test collections-that-free-little-are-ten-seconds-apart-at-most
  (with-heap (1600 599)
    (is-false (collection-due-p (collections :took 5000) 10999))
    (is-true (collection-due-p (collections :took 5000) 11000))))

(test room-is-made-as-often-as-the-heap-fills
  (when (platform:heap-octets)
    (let ((used 0) (count 0))
      (with-function (platform:collect-garbage (original)
                       (incf count)
                       (setf used 10))
        (with-globals ((engine::*collections* (make-collections)))
          (with-heap (100 used)
            (is-true (engine:make-room-in-heap 60))
            (is (zerop count) "There was room.")
            (dotimes (i 3)
              (setf used 80)
              (is-true (engine:make-room-in-heap 10)))
            (is (= 3 count))
            (is-false (engine:make-room-in-heap 70) "Nor is there room then.")))))))

(test whoever-wants-room-while-another-thread-collects-waits-for-that
  (when (platform:heap-octets)
    (let ((used 80) (begun (make-gate)) (go-on (make-gate)))
      (with-function (platform:collect-garbage (original)
                       (open-gate begun)
                       (await go-on)
                       (setf used 10))
        (with-globals ((engine::*collections* (make-collections)))
          (with-heap (100 used)
            (let ((first (in-background ("one that collects") (engine:make-room-in-heap 10))))
              (await begun)
              (let ((second (in-background ("another one") (engine:make-room-in-heap 10))))
                (open-gate go-on)
                (is-true (task-result first))
                (is-true (task-result second))))))))))
