(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; From the samples of all rounds to cells, and from cells to ratios.

(defstruct (cell (:constructor make-cell (server workload samples)))
  "All SAMPLES of a server under a workload, both named."
  server workload samples)

(defun summarize (samples)
  "The cells that SAMPLES make up, in the order of their first samples."
  (let ((cells '()))
    (dolist (sample samples (reverse cells))
      (let ((cell (find-cell cells (sample-server sample) (sample-workload sample))))
        (if cell
            (push sample (cell-samples cell))
            (push (make-cell (sample-server sample) (sample-workload sample) (list sample))
                  cells))))))

(defun find-cell (cells server workload)
  "The cell among CELLS of SERVER under WORKLOAD, both names, or NIL."
  (find-if (lambda (cell)
             (and (equal server (cell-server cell)) (equal workload (cell-workload cell))))
           cells))

(defun values-of (cell key)
  "The figures KEY of CELL, one for each round that has it."
  (loop for sample in (cell-samples cell)
        for value = (getf (sample-figures sample) key)
        when value collect value))

(defun value-of (cell key)
  "The figure KEY of CELL: what its rounds amount to, or NIL.  CELL may be NIL."
  (let ((values (and cell (values-of cell key))))
    (and values
         (if (measure-sum-p (find-measure key))
             (reduce #'+ values)
             (median values)))))

(defun lowest-of (cell key)
  "The least of the figures KEY of CELL."
  (reduce #'min (values-of cell key)))

(defun highest-of (cell key)
  "The greatest of the figures KEY of CELL."
  (reduce #'max (values-of cell key)))

;;; Ratios.  There is one notion of them everywhere: what was measured in the same round met the
;;; same mood of the machine, so the figures of one round are divided, and the ratio is the median
;;; of all rounds.  The quotient of two medians may be another number; it is never shown.

(defun quotients (cell base key)
  "The figures KEY of CELL divided by those of BASE, another cell, for each round that both have.
Rounds in which one of them is zero or missing are left out; either cell may be NIL."
  (and cell base
       (loop for sample in (cell-samples cell)
             for other = (find (sample-round sample) (cell-samples base)
                               :key #'sample-round)
             for value = (getf (sample-figures sample) key)
             for one = (and other (getf (sample-figures other) key))
             when (and value one (plusp one))
               collect (/ value one))))

(defun middle (ratios)
  "The median of RATIOS; of two in the middle their geometric mean, so that who is twice as good as
another is never also worse.  NIL of none."
  (let* ((sorted (sort (copy-list ratios) #'<))
         (count (length sorted)))
    (cond ((zerop count) nil)
          ((oddp count) (nth (floor count 2) sorted))
          (t (sqrt (* (nth (1- (/ count 2)) sorted) (nth (/ count 2) sorted)))))))

(defun quotient (cell base key)
  "The figure KEY of CELL divided by that of BASE: the MIDDLE of the QUOTIENTS of their rounds, or
NIL."
  (middle (quotients cell base key)))

(defun level-p (ratios)
  "Do RATIOS, those of the rounds, leave open who is better?  They do when some rounds say so and
others not, or when the difference is too small to be written."
  (or (<= (reduce #'min ratios) 1 (reduce #'max ratios))
      (= 100 (round (* 100 (middle ratios))))))

(defun workload-names (cells)
  "The names of the workloads of CELLS, in order, each once."
  (remove-duplicates (mapcar #'cell-workload cells) :test #'string= :from-end t))

(defun cells-under (workload cells)
  "Those of CELLS that are under WORKLOAD, a name, in the order of *RIVALS*."
  (let ((these (remove workload cells :key #'cell-workload :test-not #'string=)))
    (stable-sort these #'< :key (lambda (cell)
                                  (or (position (cell-server cell) *rivals*
                                                :key #'rival-name :test #'string=)
                                      (length *rivals*))))))

(defun measures-with-figures (cells measures)
  "Those of MEASURES of which some of CELLS has a figure."
  (remove-if-not (lambda (measure)
                   (some (lambda (cell) (values-of cell (measure-key measure))) cells))
                 measures))

(defparameter *tolerated-whole-handshakes* 0.01
  "The part of connections that a server may not resume, without a word in the report.")

(defun resumption-caveat (cell)
  "That connections of CELL which were to be resumed were not, a sentence; or NIL."
  (let ((unresumed (value-of cell :unresumed))
        (requests (value-of cell :requests)))
    (when (and unresumed requests
               (> unresumed (* *tolerated-whole-handshakes* requests)))
      (format nil "~:[some~;most~] of its connections were not resumed, although their clients ~
                   would have, so these had a whole handshake"
              (> unresumed (/ requests 2))))))

(defun cell-caveat (cell)
  "What the figures of CELL do not mean, a sentence; or NIL, also when its server or workload is
known no more."
  (let ((rival (find-rival (cell-server cell)))
        (workload (find-workload (cell-workload cell))))
    (or (and rival workload (caveat rival workload))
        (resumption-caveat cell))))

;;; The table for programs

(defparameter *table-columns*
  '("workload" "server" "measure" "better" "rounds" "value" "min" "max"
    "per_limit" "per_limit_min" "per_limit_max" "per_hunchentoot")
  "The header of table.tsv.")

(defun table-row (cell measure cells)
  "The row for MEASURE of CELL, one of CELLS."
  (let ((key (measure-key measure)))
    (flet ((per (server)
             (quotients cell (find-cell cells server (cell-workload cell)) key)))
      (let ((per-limit (per "limit")))
        (list (cell-workload cell) (cell-server cell) (measure-column measure)
              (and (measure-better measure) (string-downcase (measure-better measure)))
              (length (values-of cell key))
              (value-of cell key) (lowest-of cell key) (highest-of cell key)
              (middle per-limit)
              (and per-limit (reduce #'min per-limit)) (and per-limit (reduce #'max per-limit))
              (middle (per "hunchentoot")))))))

(defun write-table (result cells)
  "Write table.tsv of RESULT: every figure of CELLS with its range and its ratios to
the limit and to Hunchentoot."
  (write-tsv (result-file result "table.tsv") *table-columns*
             (loop for cell in cells
                   append (loop for measure in *measures*
                                when (values-of cell (measure-key measure))
                                  collect (table-row cell measure cells)))))
