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
  "The figure KEY of CELL: the median of its rounds, or NIL.  CELL may be NIL."
  (and cell (median (values-of cell key))))

(defun lowest-of (cell key)
  "The least of the figures KEY of CELL."
  (reduce #'min (values-of cell key)))

(defun highest-of (cell key)
  "The greatest of the figures KEY of CELL."
  (reduce #'max (values-of cell key)))

(defun quotient (cell base key)
  "The figure KEY of CELL divided by that of BASE, another cell: the median of this for each round
that both have, since what was measured at nearly the same time met the same mood of the machine.
NIL when there is none, or BASE has zero, or one of the two is NIL."
  (and cell base
       (median (loop for sample in (cell-samples cell)
                     for other = (find (sample-round sample) (cell-samples base)
                                       :key #'sample-round)
                     for value = (getf (sample-figures sample) key)
                     for one = (and other (getf (sample-figures other) key))
                     when (and value one (plusp one))
                       collect (/ value one)))))

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

;;; The table for programs

(defparameter *table-columns*
  '("workload" "server" "measure" "better" "rounds" "median" "min" "max"
    "per_limit" "per_hunchentoot")
  "The header of table.tsv.")

(defun table-row (cell measure cells)
  "The row for MEASURE of CELL, one of CELLS."
  (let ((key (measure-key measure)))
    (flet ((per (server)
             (quotient cell (find-cell cells server (cell-workload cell)) key)))
      (list (cell-workload cell) (cell-server cell) (measure-column measure)
            (and (measure-better measure) (string-downcase (measure-better measure)))
            (length (values-of cell key))
            (value-of cell key) (lowest-of cell key) (highest-of cell key)
            (per "limit") (per "hunchentoot")))))

(defun write-table (result cells)
  "Write table.tsv of RESULT: every figure of CELLS with its range and its ratios to
the limit and to Hunchentoot."
  (write-tsv (result-file result "table.tsv") *table-columns*
             (loop for cell in cells
                   append (loop for measure in *measures*
                                when (values-of cell (measure-key measure))
                                  collect (table-row cell measure cells)))))
