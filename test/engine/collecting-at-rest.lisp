(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite collecting-at-rest :in engine
  :description "Garbage that the sentinel has collected while nobody is served.")

(in-suite collecting-at-rest)

(defstruct heap
  "A heap that tests have in place of the Lisp's: how many octets are in USE, a MARK that is another one after each
collection, of which there were COLLECTIONS by the sentinel, and how many octets are made BETWEEN two, or NIL."
  (use 1000000)
  (mark 0)
  (collections 0)
  (between 1000000))

(defun collect-heap (heap)
  "What a collection does to HEAP."
  (incf (heap-mark heap))
  (setf (heap-use heap) 500000))

(defmacro with-heap ((heap) &body body)
  "Evaluates BODY while the heap seems to be HEAP, a new one, that nobody watches yet, and what is scheduled is called at
once."
  `(let ((,heap (make-heap)))
     (with-globals ((engine::*heap-watch* (engine::make-heap-watch)))
       (with-function (platform:octets-between-collections (original) (heap-between ,heap))
         (with-function (platform:heap-used (original) (heap-use ,heap))
           (with-function (platform:collection-mark (original) (heap-mark ,heap))
             (with-function (platform:collect-young-garbage (original)
                              (incf (heap-collections ,heap))
                              (collect-heap ,heap))
               (with-function (engine:schedule (original engine seconds function) (funcall function))
                 ,@body))))))))

(defun look-at-heap (engine)
  "Has ENGINE look at the heap, as if nobody had done so for long."
  (setf (engine::heap-watch-looked-at engine::*heap-watch*) nil)
  (engine::collect-at-rest engine))

(defun collections-after-rest (engine heap)
  "How many times garbage is collected where ENGINE looks at HEAP twice."
  (let ((before (heap-collections heap)))
    (look-at-heap engine)
    (look-at-heap engine)
    (- (heap-collections heap) before)))

(defmacro watching-heap ((engine heap) &body body)
  "Evaluates BODY with an ENGINE that rests, and has looked at HEAP once."
  `(with-still-pool (,engine controller)
     (with-heap (,heap)
       (engine::watch-heap-for ,engine)
       (look-at-heap ,engine)
       ,@body)))

(defun garbage-due-p (engine)
  (engine::pool-state-garbage-due-p (engine::engine-pool-state engine)))

(define-server-test much-garbage-is-collected-once-when-nobody-is-served
  (watching-heap (engine heap)
    (is (eql 0 (collections-after-rest engine heap)) "Nothing was made.")
    (incf (heap-use heap) 499999)
    (is (eql 0 (collections-after-rest engine heap)) "That is little.")
    (is (null (garbage-due-p engine)))
    (incf (heap-use heap) 1)
    (look-at-heap engine)
    (is (eql 1 (heap-collections heap)))
    (is (null (garbage-due-p engine)))
    (is (eql 0 (collections-after-rest engine heap)) "It was collected.")
    (incf (heap-use heap) 500000)
    (is (eql 1 (collections-after-rest engine heap)) "It counts from what that has left.")
    (incf (heap-use heap) 500000)
    (is (eql 1 (collections-after-rest engine heap)) "So does what is made before the next look.")))

(define-server-test garbage-is-not-collected-while-somebody-is-served
  (loop for (what work) in `(("a request" ,(lambda (engine)
                                             (incf (engine::engine-served-before engine))))
                             ("a connection" ,(lambda (engine)
                                                (platform:counter-add (engine::engine-accept-count engine) 1)))
                             ("a timer" ,(lambda (engine)
                                           (incf (engine::timers-run (engine::engine-timers engine))))))
        do (watching-heap (engine heap)
             (incf (heap-use heap) 600000)
             (loop repeat 3
                   do (funcall work engine)
                      (look-at-heap engine)
                      (is-true (garbage-due-p engine)))
             (is (eql 0 (heap-collections heap)) "There was ~A each time." what)
             (look-at-heap engine)
             (is (eql 1 (heap-collections heap)) "There was no ~A since." what))))

(define-server-test garbage-is-not-collected-while-other-threads-make-much
  (watching-heap (engine heap)
    (setf (heap-between heap) 10000000)
    (loop repeat 20
          do (incf (heap-use heap) (1+ engine::*quiet-octets*))
             (look-at-heap engine))
    (is-true (garbage-due-p engine))
    (is (eql 0 (heap-collections heap)))
    (incf (heap-use heap) engine::*quiet-octets*)
    (look-at-heap engine)
    (is (eql 1 (heap-collections heap)))))

(define-server-test garbage-is-not-collected-before-a-timer-that-is-due-soon
  (watching-heap (engine heap)
    (flet ((collections-before (milliseconds took)
             (let ((timer (add-at (engine::engine-timers engine)
                                  (+ (platform:microseconds) (* 1000 milliseconds)))))
               (setf (engine::heap-watch-took engine::*heap-watch*) took)
               (incf (heap-use heap) 600000)
               (prog1 (collections-after-rest engine heap)
                 (engine:cancel timer)))))
      (is (eql 0 (collections-before 90 0)))
      (is (eql 1 (collections-before 5000 0)))
      (is (eql 0 (collections-before 5000 3000)) "The last one took long.")
      (is (eql 1 (collections-before 5000 1000)))
      (is (eql 0 (collections-before -10 0)) "It is due, and nobody has had the time for it."))))

(define-server-test garbage-is-not-collected-while-a-handler-runs
  (watching-heap (engine heap)
    (with-function (engine::busy-count (original engine) 1)
      (incf (heap-use heap) 600000)
      (is (eql 0 (collections-after-rest engine heap))))
    (is (eql 1 (collections-after-rest engine heap)))))

(define-server-test garbage-is-not-collected-while-another-server-works-or-wants-it-not
  (watching-heap (engine heap)
    (with-still-pool (other controller)
      (engine::watch-heap-for other)
      (incf (heap-use heap) 600000)
      (let ((timer (add-at (engine::engine-timers other) 0)))
        (is (eql 0 (collections-after-rest engine heap)))
        (engine:cancel timer))
      (loop repeat 3
            do (incf (engine::engine-served-before other))
               (look-at-heap engine)
               (is-true (garbage-due-p engine)))
      (with-function (engine:collects-at-rest-p (original service)
                       (not (eq service (engine::engine-service other))))
        (is (eql 0 (collections-after-rest engine heap)))
        (engine::forget-heap-of other)
        (is (eql 1 (collections-after-rest engine heap)))))))

(define-server-test garbage-is-not-collected-by-a-worker-that-comes-when-somebody-is-served-again
  (watching-heap (engine heap)
    (let ((functions '()))
      (with-function (engine:schedule (original engine seconds function) (push function functions))
        (incf (heap-use heap) 600000)
        (loop repeat 2 do (look-at-heap engine))
        (is (= 1 (length functions)))
        (with-function (engine::busy-count (original engine) 1)
          (funcall (first functions)))
        (is (eql 0 (heap-collections heap)))
        (look-at-heap engine)
        (is (= 2 (length functions)) "It is looked again at once.")
        (let ((engine::*worker* (engine::make-pool-worker engine 1)))
          (with-function (engine::busy-count (original engine) 1)
            (funcall (first functions))))
        (is (eql 1 (heap-collections heap)) "Nobody but the worker itself is busy.")))))

(define-server-test a-server-is-watched-until-nobody-is-left-in-it
  (with-globals ((engine::*heap-watch* (engine::make-heap-watch)))
    (flet ((watched-p (engine)
             (and (member engine (engine::heap-watch-engines engine::*heap-watch*)) t)))
      (with-each-engine (engine)
        (let ((begun (make-gate)) (gate (make-gate)))
          (eventually ("the sentinel") (watched-p engine))
          (engine:schedule engine 0 (lambda () (open-gate begun) (await gate)))
          (await begun)
          (engine:stop-engine engine :timeout 0)
          (is-true (watched-p engine) "A function still runs.")
          (open-gate gate)
          (eventually ("its end") (not (watched-p engine))))))))

(define-server-test a-server-with-one-worker-does-not-have-that-collect-garbage
  (watching-heap (engine heap)
    (incf (heap-use heap) 600000)
    (flet ((collections-with (limit)
             (setf (engine::engine-thread-limit engine) limit)
             (collections-after-rest engine heap)))
      (is (eql 0 (collections-with 1)))
      (is (eql 1 (collections-with 2)))
      (incf (heap-use heap) 600000)
      (is (eql 1 (collections-with nil))))))

(define-server-test one-of-several-servers-collects-garbage
  (watching-heap (engine heap)
    (with-still-pool (other controller)
      (engine::watch-heap-for other)
      (look-at-heap engine)
      (incf (heap-use heap) 600000)
      (look-at-heap other)
      (look-at-heap engine)
      (look-at-heap other)
      (is (eql 1 (heap-collections heap))))))

(define-server-test who-has-looked-at-the-heap-just-now-does-not-look-again
  (watching-heap (engine heap)
    (incf (heap-use heap) 600000)
    (flet ((look-after (milliseconds)
             (setf (engine::heap-watch-looked-at engine::*heap-watch*) (- (platform:milliseconds) milliseconds))
             (engine::collect-at-rest engine)
             (heap-collections heap)))
      (with-globals ((engine::*quiet-milliseconds* 1000000))
        (is (eql 0 (look-after 0))))
      (look-after -1000000)
      (is (eql 1 (look-after -1000000)) "That was before the system was started."))))

(define-server-test a-collection-that-came-by-itself-counts
  (watching-heap (engine heap)
    (incf (heap-use heap) 900000)
    (collect-heap heap)
    (incf (heap-use heap) 300000)
    (is (eql 0 (collections-after-rest engine heap)))))

(define-server-test garbage-is-left-alone-where-nothing-is-known-of-it
  (watching-heap (engine heap)
    (setf (heap-between heap) nil)
    (incf (heap-use heap) 900000000)
    (is (eql 0 (collections-after-rest engine heap)))))

(define-server-test whether-garbage-is-collected-at-rest-is-the-services-to-say
  (watching-heap (engine heap)
    (incf (heap-use heap) 600000)
    (with-function (engine:collects-at-rest-p (original service) nil)
      (is (eql 0 (collections-after-rest engine heap)))
      (is (null (garbage-due-p engine)) "Who waits for nothing need not look often."))
    (is (eql 1 (collections-after-rest engine heap)))))

(define-server-test garbage-is-not-collected-again-before-a-worker-has-done-so
  (watching-heap (engine heap)
    (let ((functions '()))
      (with-function (engine:schedule (original engine seconds function) (push function functions))
        (incf (heap-use heap) 600000)
        (loop repeat 3 do (look-at-heap engine))
        (is (= 1 (length functions)))
        (is (eql 0 (heap-collections heap)) "That is no work for the sentinel.")
        (catch 'away                    ; as a program may that is called after a collection
          (with-function (platform:collect-young-garbage (original) (throw 'away nil))
            (funcall (first functions))))
        (loop repeat 3 do (look-at-heap engine))
        (is (= 2 (length functions)))
        (setf (engine::heap-watch-collecting-since engine::*heap-watch*) (- (platform:milliseconds) 10000))
        (look-at-heap engine)
        (is (= 3 (length functions)) "The engine whose worker was to collect may have stopped.")))))

(define-server-test a-sentinel-for-which-garbage-is-due-rests-briefly
  (with-globals ((engine::*tick* 1/4) (engine::*idle-tick* 20))
    (watching-heap (engine heap)
      (is (= 20 (engine::idle-wait-seconds engine (platform:milliseconds))))
      (setf (engine::pool-state-garbage-due-p (engine::engine-pool-state engine)) t)
      (is (= 1/4 (engine::idle-wait-seconds engine (platform:milliseconds)))))))

(define-server-test a-server-at-rest-collects-garbage
  (where-supported
    (if (platform:octets-between-collections)
        (let ((collected (make-gate "a collection")) (by (make-recorder)))
          (with-globals ((engine::*collect-share* 0))
            (with-function (platform:collect-young-garbage (original)
                             (record by (typep engine::*worker* 'engine::worker))
                             (open-gate collected))
              (with-ready-engine (engine (constantly nil))
                (await collected)
                (is (equal '(t) (recorded by)))))))
        (skip "This Lisp does not tell when it collects garbage."))))
