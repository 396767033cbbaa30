(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What a run will do, in which order, and how long that will take.

(defun turn-order (servers round)
  "SERVERS in the order of their turns in ROUND, which counts from 1.  From round to round
everybody has another turn and comes after somebody else (the rows of a Williams square), so that
nobody always follows the lightest server, or the heaviest."
  (loop with count = (length servers)
        for turn below count
        for step = (ceiling turn 2)
        collect (nth (mod (+ (if (oddp turn) step (- step)) round -1) count) servers)))

(defun start-seconds (rival)
  "How long it takes to start RIVAL, about."
  (if (typep rival 'lisp-rival) 3 1))

(defun counted-p (run workload)
  "Is it counted for RUN who is served under WORKLOAD?"
  (and (usable-p run (counting-tool workload))
       (kind-counted-p (kind-of workload))))

(defun turn-seconds (workload seconds)
  "How long SECONDS of load on a server take under WORKLOAD, about, with all that belongs to it."
  (+ *pause* 0.3 seconds (kind-extra-seconds (kind-of workload))))

(defun warm-up-seconds (run workload)
  "How long RUN will warm up a server for WORKLOAD, about."
  (turn-seconds workload (settings-warm-seconds (run-settings run))))

(defun round-seconds (run workload)
  "How long RUN will take for one round of a server under WORKLOAD, about."
  (let ((settings (run-settings run)))
    (+ (turn-seconds workload (settings-seconds settings))
       (if (counted-p run workload) (/ (settings-fair-ms settings) 1000) 0))))

(defun cell-seconds (run workload)
  "How long RUN will take for a server under WORKLOAD, about."
  (+ (warm-up-seconds run workload)
     (* (settings-rounds (run-settings run)) (round-seconds run workload))))

(defun run-seconds (run)
  "How long RUN will take, about."
  (loop for setup in (setups (settings-workloads (run-settings run)))
        sum (reduce #'+ (contenders run setup) :key #'start-seconds)
        sum (loop for workload in (workloads-of-setup run setup)
                  sum (* (length (entrants run workload)) (cell-seconds run workload)))))
