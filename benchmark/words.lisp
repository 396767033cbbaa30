(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What the figures mean, in sentences: who won, by how much, where we lose.

(defparameter *level* 0.05
  "Two figures that differ by less than this part are called level: the same build
measured twice differs that much.")

(defparameter *tolerated-failures* 0.001
  "The part of requests that may fail before a server is out of the contest.")

(defun family (cell)
  "The family of CELL's server."
  (family-of (cell-server cell)))

(defun of-family (family cells)
  "Those of CELLS whose server is of FAMILY."
  (remove family cells :key #'family :test-not #'eq))

(defun failures (cell)
  "How often CELL's server failed its clients: errors and answers other than 2xx."
  (+ (or (value-of cell :errors) 0) (or (value-of cell :non-2xx) 0)))

(defun disqualification (cell)
  "Why CELL can't win, as words, or NIL.  Who serves few clients fast and others
never has not won."
  (let ((requests (value-of cell :requests))
        (unserved (or (value-of cell :unserved) 0)))
    (cond ((plusp unserved) (format nil "~a clients waited in vain" (grouped unserved)))
          ((null requests) nil)
          ((zerop requests) "it answered nothing")
          ((> (failures cell) (* *tolerated-failures* requests))
           (format nil "~a requests failed for ~a answered"
                   (grouped (failures cell)) (grouped requests))))))

(defun qualified (cells)
  "Those of CELLS that can win."
  (remove-if #'disqualification cells))

(defun best (cells measure)
  "The one of CELLS that is best by MEASURE, or NIL if none has the figure."
  (let ((key (measure-key measure))
        (best nil))
    (dolist (cell cells best)
      (when (and (value-of cell key)
                 (or (null best)
                     (better-p measure (value-of cell key) (value-of best key))))
        (setf best cell)))))

(defun name-of (cell)
  "What CELL's server is called in sentences."
  (label-of (cell-server cell)))

(defun quantity (cell measure)
  "The figure of CELL by MEASURE, with its unit."
  (format nil "~a~@[ ~a~]" (significant (value-of cell (measure-key measure)))
          (let ((unit (measure-unit measure))) (and (plusp (length unit)) unit))))

(defun times (ratio)
  "RATIO in words."
  (format nil "~a times" (significant ratio)))

(defun level-p (ratio)
  "Is RATIO so near to one that nobody has won?"
  (< (- 1 *level*) ratio (/ (- 1 *level*))))

(defun comparison (cell base measure)
  "How CELL stands to BASE by MEASURE: level, or how many times its figure."
  (let ((ratio (quotient cell base (measure-key measure))))
    (cond ((null ratio) "beyond comparison with")
          ((level-p ratio) "level with")
          (t (times ratio)))))

(defun loses-p (cell rival measure)
  "Is CELL worse than RIVAL by MEASURE, both by their ratio, and not just a little, and by their
figures, which are told beside it?"
  (let* ((key (measure-key measure))
         (ratio (quotient cell rival key)))
    (and ratio (not (level-p ratio))
         (better-p measure 1 ratio)
         (better-p measure (value-of rival key) (value-of cell key)))))

;;; One workload

(defun contest (cells)
  "Those of CELLS that can win: the limit and a part of ours are no servers, and some are
disqualified."
  (qualified (append (of-family :ours cells) (of-family :other cells))))

(defun limit-part (cell cells measure)
  "How CELL stands to the limit among CELLS by MEASURE, or NIL without a limit."
  (let ((limit (first (of-family :limit cells))))
    (and limit (quotient cell limit (measure-key measure))
         (format nil "~a the limit's" (times (quotient cell limit (measure-key measure)))))))

(defun next-part (winner next measure)
  "How WINNER stands to NEXT, the second, by MEASURE."
  (format nil "~a the next, ~a with ~a" (comparison winner next measure)
          (name-of next) (quantity next measure)))

(defun winner-sentence (measure cells)
  "Who of CELLS is best by MEASURE, how near to the limit, and by how much."
  (let* ((contest (contest cells))
         (winner (best contest measure))
         (next (best (remove winner contest) measure)))
    (when winner
      (format nil "~a: **~a** with ~a~@[ (~a)~]~@[; ~a~]."
              (capitalized (measure-title measure)) (name-of winner) (quantity winner measure)
              (limit-part winner cells measure)
              (and next (next-part winner next measure))))))

(defun hunchentoot-among (cells)
  "The one of CELLS that is Hunchentoot as it comes, or NIL."
  (find "hunchentoot" cells :key #'cell-server :test #'string=))

(defun our-clauses (ours cells measure)
  "How OURS stands to Hunchentoot, and to the best of the others, among CELLS."
  (let* ((hunchentoot (hunchentoot-among cells))
         (other (best (qualified (remove hunchentoot (of-family :other cells))) measure)))
    (loop for base in (list hunchentoot other)
          when (and base (value-of base (measure-key measure)))
            collect (format nil "~a ~a" (comparison ours base measure) (name-of base)))))

(defun our-sentence (measure cells)
  "How our best mode among CELLS stands to the others by MEASURE, or NIL without us."
  (let ((ours (best (of-family :ours cells) measure)))
    (when ours
      (format nil "~a of ~a: ~a~{, ~a~}." (capitalized (measure-title measure)) (name-of ours)
              (quantity ours measure) (our-clauses ours cells measure)))))

(defun out-of-contest-sentences (cells)
  "Who of CELLS can't win, and why."
  (loop for cell in cells
        for reason = (disqualification cell)
        when reason
          collect (format nil "~a is out of the contest: ~a." (name-of cell) reason)))

(defparameter *told-measures* (mapcar #'find-measure '(:rate :all :p99 :cpu))
  "The measures that the sentences speak of.")

(defun sentences (cells)
  "What is to be said of CELLS, all of one workload: a list of sentences."
  (append (loop for measure in *told-measures*
                collect (winner-sentence measure cells)
                collect (our-sentence measure cells))
          (out-of-contest-sentences cells)))

;;; Where we lose

(defun loss (measure cells)
  "How the best of ours among CELLS, all of one workload, loses by MEASURE; else NIL."
  (let ((ours (best (of-family :ours cells) measure))
        (winner (best (qualified (of-family :other cells)) measure)))
    (when (and ours winner (loses-p ours winner measure))
      (format nil "~a: ~a against ~a of ~a (~a)" (measure-title measure)
              (quantity ours measure) (quantity winner measure) (name-of winner)
              (times (quotient ours winner (measure-key measure)))))))

(defun losses (cells)
  "All that ours loses among CELLS, all of one workload: clauses."
  (append (remove nil (mapcar (lambda (measure) (loss measure cells)) *told-measures*))
          (loop for ours in (of-family :ours cells)
                for reason = (disqualification ours)
                when reason
                  collect (format nil "~a is out of the contest: ~a" (name-of ours) reason))))
