(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite engine :in all
  :description "Tables and models of the engine, which need neither threads nor sockets.")

(def-suite pool-sizing :in engine
  :description "How many workers take events: the rule.")

(in-suite pool-sizing)

(defun sized (waiting active blocked asleep lately &key (free-p t) (floor 2) (processors 2))
  "What SIZE-POOL says, a list; how many were blocked lately as an integer."
  (multiple-value-bind (missing excess-p blocked-lately asleep-lately)
      (size-pool :waiting waiting :active active :blocked blocked :asleep asleep
                 :free-p free-p :floor floor :processors processors
                 :blocked-lately lately :asleep-lately lately)
    (declare (ignore blocked-lately))
    (list missing excess-p (round asleep-lately))))

(test as-many-workers-as-processors-take-events
  (loop for (waiting active blocked asleep lately . decision)
          in '((2 2 0 0 0  0 nil 0)     ; at rest
               (0 2 0 0 0  0 nil 0)     ; both serve
               (1 2 1 0 0  2 nil 1)     ; one is blocked, and is replaced; another may be next
               (1 2 1 0 1  1 nil 1)     ; the same, and no more than lately
               (0 2 2 0 0  4 nil 2)     ; both are
               (0 6 6 0 2  6 nil 6)     ; so are those that replaced them: bursts grow faster
               (0 8 6 0 6  0 nil 6)     ; as many as lately, and all were replaced
               (0 9 4 8 4  1 nil 8)     ; requests block for less than a look: one more at each
               (0 9 0 8 0  1 nil 8)     ; the same
               (0 3 0 0 0  0 nil 0)     ; one more than processors may run
               (0 4 0 0 0  0 t 0)       ; two may not
               (1 4 0 0 0  0 nil 0)     ; unless one waits: then a free worker finds out by itself
               (0 9 0 0 4  0 nil 4)     ; some were blocked lately, and soon may be again
               (0 10 0 0 4  0 t 4))
        do (is (equal decision (sized waiting active blocked asleep lately))
               "~A of ~A wait, ~A are blocked, ~A sleep, lately ~A"
               waiting active blocked asleep lately)))

(test a-burst-grows-faster-and-faster-though-its-new-workers-seem-asleep
  (is (equal '(2 6 12 20)
             (loop with lately = 0
                   for workers = 2 then (+ workers missing)
                   for (missing nil blocked-lately)
                     = (multiple-value-list
                        (size-pool :waiting 0 :active workers :blocked workers
                                   :asleep workers :free-p t :floor 2 :processors 2
                                   :blocked-lately lately :asleep-lately workers))
                   repeat 4
                   do (setf lately blocked-lately)
                   collect workers))))

(test an-idle-pool-may-have-fewer-workers-than-processors
  (flet ((missing (waiting active blocked)
           (first (sized waiting active blocked 0 0 :processors 64))))
    (is (= 0 (missing 2 2 0)))
    (is (= 1 (missing 0 2 0)) "No worker waits, and a processor may be free.")
    (is (= 0 (missing 0 64 0)))
    (is (= 0 (missing 1 8 0)))))

(test half-of-those-that-were-blocked-lately-are-forgotten-in-11-looks-or-177
  (flet ((left (looks waiting free-p)
           (let ((lately 64))
             (loop repeat looks
                   do (setf lately (nth-value 3 (size-pool
                                                 :waiting waiting :active 9 :blocked 0 :asleep 0
                                                 :free-p free-p :floor 2 :processors 2
                                                 :blocked-lately 0 :asleep-lately lately))))
             lately)))
    (is (< 31 (left 11 0 t) 33))
    (is (< 31 (left 11 1 nil) 33) "A worker waits: there are enough.")
    (is (< 31 (left 177 0 nil) 33) "No processor is free: it is not known who sleeps briefly.")))
