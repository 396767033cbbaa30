(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What the figures mean, in sentences: who won, by how much, where we lose.

(defparameter *tolerated-failures* 0.001
  "The part of requests that may fail before a server is out of the contest.")

(defun family (cell)
  "The family of CELL's server."
  (family-of (cell-server cell)))

(defun of-family (family cells)
  "Those of CELLS whose server is of FAMILY."
  (remove family cells :key #'family :test-not #'eq))

(defun name-of (cell)
  "What CELL's server is called in sentences."
  (label-of (cell-server cell)))

(defun limit-among (cells)
  "The one of CELLS that is the limit, or NIL."
  (first (of-family :limit cells)))

(defun hunchentoot-among (cells)
  "The one of CELLS that is Hunchentoot as it comes, or NIL."
  (find "hunchentoot" cells :key #'cell-server :test #'string=))

(defun ours-among (cells)
  "The one of CELLS that is ours as it comes, or the first other mode of ours, or NIL.  We do not
choose for each figure the mode that does best."
  (first (of-family :ours cells)))

;;; Who served everybody

(defun too-many-p (failed answered)
  "Are FAILED requests too many beside those that were ANSWERED?"
  (> failed (* *tolerated-failures* answered)))

(defun failures (cell)
  "How often CELL's server failed the clients of the load tool: errors, answers other than 2xx, and
wrong ones."
  (loop for key in '(:errors :non-2xx :wrong)
        sum (or (value-of cell key) 0)))

(defun disqualification (cell)
  "Why CELL can't win, as words, or NIL.  Who serves few clients fast and others
never has not won."
  (let ((requests (value-of cell :requests))
        (unserved (or (value-of cell :unserved) 0))
        (counted (or (value-of cell :counted) 0))
        (refused (or (value-of cell :refused) 0)))
    (cond ((plusp unserved)
           (format nil "~a client~:p waited in vain, all rounds together" unserved))
          ((and requests (zerop requests)) "it answered nothing")
          ((and requests (too-many-p (failures cell) requests))
           (format nil "~a requests failed for ~a answered"
                   (grouped (failures cell)) (grouped requests)))
          ((too-many-p refused counted)
           (format nil "~a requests of the clients that are counted one by one were refused or cut ~
                        off, for ~a answered"
                   (grouped refused) (grouped counted))))))

(defun qualified (cells)
  "Those of CELLS that can win."
  (remove-if #'disqualification cells))

(defun contest (cells)
  "Those of CELLS that can win: the limit and a part of ours are no servers, and some are
disqualified."
  (qualified (append (of-family :ours cells) (of-family :other cells))))

;;; Who is better than whom, by the ratios of the rounds

(defun clearly-better-p (cell other measure)
  "Is CELL better than OTHER by MEASURE in all rounds?"
  (let ((ratios (quotients cell other (measure-key measure))))
    (and ratios
         (not (level-p ratios))
         (better-p measure (middle ratios) 1))))

(defun mostly-better-p (cell other measure)
  "Is CELL better than OTHER by MEASURE, if only by a little?  Without a round that both have it
goes by all rounds of each."
  (let* ((key (measure-key measure))
         (ratio (quotient cell other key)))
    (if ratio
        (better-p measure ratio 1)
        (better-p measure (value-of cell key) (value-of other key)))))

(defun with-figure (measure cells)
  "Those of CELLS that have a figure of MEASURE."
  (remove-if-not (lambda (cell) (value-of cell (measure-key measure))) cells))

(defun best (cells measure)
  "The one of CELLS that is best by MEASURE, or NIL if none has the figure."
  (let ((cells (with-figure measure cells)))
    (and cells
         (reduce (lambda (best cell) (if (mostly-better-p cell best measure) cell best)) cells))))

(defun unbeaten (cells measure)
  "Those of CELLS that have a figure of MEASURE and than which no other is clearly better."
  (let ((cells (with-figure measure cells)))
    (remove-if (lambda (cell)
                 (some (lambda (other) (clearly-better-p other cell measure)) cells))
               cells)))

(defparameter *deciding-measures* (mapcar #'find-measure '(:rate :all :cpu :each))
  "The measures by which a server wins, and by all that a workload has.  Throughput alone flatters
who shares the processors well with the load tool.")

(defun deciding-measures (cells)
  "Those of the *DECIDING-MEASURES* of which CELLS have figures."
  (measures-with-figures cells *deciding-measures*))

(defun winners (cells)
  "Those of CELLS, all of one workload, than which nobody in the contest is clearly better by any
of the *DECIDING-MEASURES*: one, several that are level, or none."
  (let* ((contest (contest cells))
         (measures (deciding-measures contest)))
    (and measures
         (remove-if-not (lambda (cell)
                          (every (lambda (measure) (member cell (unbeaten contest measure)))
                                 measures))
                        contest))))

;;; Words for ratios

(defun times (ratios)
  "RATIOS, those of the rounds, in words: their middle, and what they range over."
  (format nil "~a times~@[ (~{~a-~a~})~]" (significant (middle ratios))
          (and (rest ratios)
               (list (significant (reduce #'min ratios)) (significant (reduce #'max ratios))))))

(defun comparison (cell base measure)
  "How CELL stands to BASE by MEASURE: level, or how many times its figure."
  (let ((ratios (quotients cell base (measure-key measure))))
    (cond ((null ratios) "beyond comparison with")
          ((level-p ratios) "level with")
          (t (times ratios)))))

(defun quantity (cell measure)
  "The figure of CELL by MEASURE, with its unit."
  (format nil "~a~@[ ~a~]" (significant (value-of cell (measure-key measure)))
          (let ((unit (measure-unit measure))) (and (plusp (length unit)) unit))))

;;; One workload

(defun clauses (cell bases measure)
  "How CELL stands to each of BASES, some of which may be NIL, by MEASURE."
  (loop for base in (remove-duplicates (remove nil bases) :from-end t)
        when (quotients cell base (measure-key measure))
          collect (format nil "~a ~a" (comparison cell base measure) (name-of base))))

(defun winner-sentence (measure cells)
  "Who of CELLS is best by MEASURE, how near to the limit, and how far from the next."
  (let* ((contest (contest cells))
         (winner (best contest measure)))
    (when winner
      (format nil "~a: **~a** with ~a~{, ~a~}." (capitalized (measure-title measure))
              (name-of winner) (quantity winner measure)
              (clauses winner (list (limit-among cells) (best (remove winner contest) measure))
                       measure)))))

(defun our-sentence (measure cells)
  "How ours stands among CELLS to Hunchentoot and to the best of the others by MEASURE, or NIL
without us."
  (let ((ours (ours-among (with-figure measure cells)))
        (hunchentoot (hunchentoot-among cells)))
    (when ours
      (format nil "~a of ~a: ~a~{, ~a~}." (capitalized (measure-title measure)) (name-of ours)
              (quantity ours measure)
              (clauses ours (list hunchentoot
                                  (best (qualified (remove hunchentoot (of-family :other cells)))
                                        measure))
                       measure)))))

(defun verdict (cells)
  "Who of CELLS, all of one workload, wins, in words."
  (let ((names (mapcar #'name-of (winners cells))))
    (cond ((null (contest cells)) "nobody: all are out of the contest")
          ((null names) "nobody")
          (t (format nil "~{~a~^, ~}" names)))))

(defun verdict-sentence (cells)
  "The VERDICT on CELLS as a sentence; NIL where only one measure decides, which has a sentence of
its own."
  (let ((measures (deciding-measures (contest cells))))
    (when (rest measures)
      (format nil "~a together: **~a**~:[~;, level~]."
              (capitalized (format nil "~{~a~^ and ~}" (mapcar #'measure-title measures)))
              (verdict cells) (rest (winners cells))))))

(defun out-of-contest-sentences (cells)
  "Who of CELLS can't win, and why."
  (loop for cell in cells
        for reason = (disqualification cell)
        when reason
          collect (format nil "~a is out of the contest: ~a." (name-of cell) reason)))

(defun retry-sentences (cells)
  "Which of CELLS hang up without saying so, and what that does to the load."
  (loop for cell in cells
        for retries = (value-of cell :retries)
        when (and retries (plusp retries))
          collect (format nil "~a closes connections, as it is asked to, but its answers do not say ~
                               `Connection: close`. So wrk asked again on ~a connections that were ~
                               closed by then, after ~a answers. These requests count as asked ~
                               again, not as failed: nobody was refused for that. The attempts ~
                               cost wrk and the kernel some time."
                          (name-of cell) (grouped retries) (grouped (value-of cell :requests)))))

(defun caveat-sentences (cells)
  "What the figures of CELLS, all of one workload, do not mean."
  (loop for cell in cells
        for caveat = (cell-caveat cell)
        when caveat
          collect (format nil "~a: ~a." (name-of cell) caveat)))

(defparameter *told-measures* (mapcar #'find-measure '(:rate :all :cpu :p99 :each))
  "The measures that the sentences speak of.")

(defun sentences (cells)
  "What is to be said of CELLS, all of one workload: a list of sentences."
  (append (list (verdict-sentence cells))
          (loop for measure in *told-measures*
                collect (winner-sentence measure cells)
                collect (our-sentence measure cells))
          (out-of-contest-sentences cells)
          (retry-sentences cells)
          (caveat-sentences cells)))

;;; Where we lose

(defun loss (measure cells)
  "How ours loses by MEASURE among CELLS, all of one workload; else NIL."
  (let ((ours (ours-among cells))
        (winner (best (qualified (of-family :other cells)) measure)))
    (when (and ours winner (clearly-better-p winner ours measure))
      (format nil "~a ~a ~a" (measure-title measure)
              (times (quotients ours winner (measure-key measure))) (name-of winner)))))

(defun losses (cells)
  "All that ours loses among CELLS, all of one workload: clauses."
  (append (remove nil (mapcar (lambda (measure) (loss measure cells)) *told-measures*))
          (loop for ours in (of-family :ours cells)
                for reason = (disqualification ours)
                when reason
                  collect (format nil "~a is out of the contest: ~a" (name-of ours) reason))))
