(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; Mutation operators: small mistakes that a programmer could make in a form.

(defparameter *opposites*
  '((if :negate) (when unless) (unless when) (and or) (or and) (not progn) (null progn)
    (< <=) (<= <) (> >=) (>= >) (= /=) (/= =) (+ -) (- +) (1+ 1-) (1- 1+) (incf decf) (decf incf)
    (min max) (max min) (logior logand) (logand logior) (every some) (some every))
  "Operators, and those that stand in their place in a mutant.")

(defparameter *forms-before-body*
  '((progn 0) (let 1) (let* 1) (when 1) (unless 1) (lambda 1) (flet 1) (labels 1) (macrolet 1)
    (block 1) (dolist 1) (dotimes 1) (unwind-protect 1) (multiple-value-bind 2)
    (multiple-value-prog1 1) (prog1 1) (destructuring-bind 2) (defun 2) (defmacro 2) (defmethod 2)
    (define-compiler-macro 2) (define-step 2) (define-frame-step 2) (define-phase 2)
    (define-multipart-phase 2))
  "Operators with a body, by their names, and the number of their arguments before it.")

(defparameter *data* '(quote function declare declaim the check-type)
  "Operators whose arguments are not mutated.")

(defun proper-list-p (form)
  (and (listp form) (null (cdr (last form)))))

(defun replaced (form index &rest new)
  "FORM, a list, with the elements NEW in place of the one at INDEX."
  (append (subseq form 0 index) new (nthcdr (1+ index) form)))

(defun body-start (form)
  "The index at which the body of FORM, a list, begins; NIL if FORM has none."
  (let ((known (second (assoc (first form) *forms-before-body* :test #'string=))))
    (cond ((eq 'defmethod (first form)) ; whose lambda list comes after qualifiers
           (1+ (or (position-if #'listp form :start 2) (length form))))
          (known (1+ known))
          ((uiop:string-prefix-p "WITH-" (first form)) 2))))

(defun with-opposite (form)
  "FORM with the opposite operator, or with its condition negated; a list of at most one."
  (let ((opposite (second (assoc (first form) *opposites*))))
    (cond ((eq :negate opposite) (list (replaced form 1 `(not ,(second form)))))
          (opposite (list (cons opposite (rest form)))))))

(defun without-statements (form)
  "FORM without each form of its body whose value is not FORM's."
  (let ((start (body-start form))
        (cleanup-p (member (first form) '(unwind-protect prog1 multiple-value-prog1))))
    (when start
      (loop for index from start below (if cleanup-p (length form) (1- (length form)))
            for statement = (nth index form)
            unless (or (atom statement) (eq 'declare (first statement)))
              collect (replaced form index)))))

(defun without-parts (form)
  "FORM, of AND, OR, COND, CASE or SETF, without one of its parts."
  (let ((count (length form)))
    (case (first form)
      ((and or) (when (< 2 count)
                  (loop for index from 1 below count collect (replaced form index))))
      (cond (loop for index from 1 below count collect (replaced form index)))
      ((case ecase typecase etypecase)
       (loop for index from 2 below count collect (replaced form index)))
      ((setf setq) (when (< 3 count)
                     (loop for index from 1 below count by 2
                           collect (append (subseq form 0 index) (nthcdr (+ 2 index) form))))))))

(defun with-negated-tests (form)
  "FORM, of COND or LOOP, with each of its conditions negated."
  (loop for (part next) on (rest form)
        for index from 1
        when (and (eq 'cond (first form)) (consp part) (consp (first part)))
          collect (replaced form index (replaced part 0 `(not ,(first part))))
        when (and (eq 'loop (first form)) (symbolp part) next
                  (member part '(while until when if unless always never) :test #'string=))
          collect (replaced form (1+ index) `(not ,next))))

(defun without-loop-statements (form)
  "FORM, of LOOP, without each form after DO."
  (when (eq 'loop (first form))
    (loop with statement-p = nil
          for part in (rest form)
          for index from 1
          if (consp part)
            when statement-p collect (replaced form index '(progn)) end
          else do (setf statement-p (and (symbolp part) (string= 'do part))))))

(defun with-other-constants (form)
  "FORM with each argument that is an integer changed by one, and each T by NIL."
  (loop for part in (rest form)
        for index from 1
        when (integerp part)
          collect (replaced form index (1+ part))
          and when (plusp part) collect (replaced form index (1- part)) end
        when (eq t part)
          collect (replaced form index nil)))

(defun returning-nil (form)
  "FORM, of a function, with NIL as its value."
  (let ((start (body-start form)) (last (1- (length form))))
    (when (and (member (first form) '(defun defmethod lambda)) (<= start last) (nth last form))
      (list (replaced form last nil)))))

(defun changes (form)
  "The lists with one change that FORM, a list, becomes by an operator."
  (when (and (proper-list-p form) (symbolp (first form)))
    (loop for operator in '(with-opposite without-statements without-parts with-negated-tests
                            without-loop-statements with-other-constants returning-nil)
          append (funcall operator form))))

(defun mutations (form)
  "Lists of a form in FORM, what it becomes by one change, and the whole with that change."
  (unless (or (atom form) (not (proper-list-p form)) (member (first form) *data*))
    (append (loop for new in (changes form) collect (list form new new))
            (loop with function-p = (member (first form) '(defun defmacro defmethod lambda))
                  for part in form
                  for index from 0
                  ;; Not in lambda lists: types and names of arguments are no code.
                  unless (and function-p (< index (body-start form)))
                    append (loop for (old new whole) in (mutations part)
                                 collect (list old new (replaced form index whole)))))))

(defun suites-by-folder ()
  "The table of the suites that cover source files: lists of a prefix of names and suites."
  (let ((*package* (find-package '#:hunchentoot-recycling-taskmaster-test)))
    (uiop:read-file-form (uiop:subpathname (source-root) "test/mutation/suites.sexp"))))

(defun covering-suites (name)
  "The suites that cover the source file NAME, the nearest first."
  (loop for (prefix . suites) in (suites-by-folder)
        when (uiop:string-prefix-p prefix name)
          append suites))
