(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* mutation-operators :in architecture
  :description "The changes that mutation tests make.")

(defun mutants-of (form)
  (mapcar #'third (mutations form)))

(test a-condition-is-negated
  (is (equal '((if (not a) b c)) (mutants-of '(if a b c))))
  (is (equal '((unless a b)) (mutants-of '(when a b))))
  (is (member '(cond ((not (f)) b) (t c)) (mutants-of '(cond ((f) b) (t c))) :test #'equal))
  (is (equal '((loop while (not a) collect b)) (mutants-of '(loop while a collect b))))
  (is (equal '((progn a)) (mutants-of '(not a)))))

(test a-comparison-becomes-its-neighbour
  (loop for (old new) in '((< <=) (<= <) (> >=) (>= >) (= /=))
        do (is (equal `((,new a b)) (mutants-of `(,old a b))))))

(test an-operand-is-dropped
  (is (equal '((or a b) (and b) (and a)) (mutants-of '(and a b))))
  (is (equal '((and a b) (or b) (or a)) (mutants-of '(or a b))))
  (is (equal '((setf c d) (setf a b)) (mutants-of '(setf a b c d))))
  (is (equal '((case a (c 2)) (case a (b 1)))
             (remove-if-not (lambda (form) (= 3 (length form)))
                        (mutants-of '(case a (b 1) (c 2)))))))

(test a-statement-is-dropped-and-the-value-stays
  (is (equal '((progn (b) c) (progn (a) c)) (mutants-of '(progn (a) (b) c))))
  (is (equal '((let ((x (y))) (b))) (mutants-of '(let ((x (y))) (a) (b)))))
  (is (equal '((unwind-protect (a))) (mutants-of '(unwind-protect (a) (b)))))
  (is (equal '((with-open-file (s f) (b))) (mutants-of '(with-open-file (s f) (a) (b)))))
  (is (equal '((loop do (progn) (b)) (loop do (a) (progn))) (mutants-of '(loop do (a) (b))))))

(test a-constant-changes-by-one
  (is (equal '((f 3) (f 1)) (mutants-of '(f 2))))
  (is (equal '((f 1)) (mutants-of '(f 0))))
  (is (equal '((f nil)) (mutants-of '(f t)))))

(test a-function-returns-nil
  (is (equal '((defun f (x) (g x) nil) (defun f (x) (h x)))
             (reverse (mutants-of '(defun f (x) (g x) (h x))))))
  (is (equal '((defmethod f :after ((x y)) nil)) (mutants-of '(defmethod f :after ((x y)) (g x))))))

(test data-declarations-and-lambda-lists-stay
  (dolist (form '('(and a b) #'(setf not) (the (integer 0 5) x)
                  (defun f (&optional (a (not b))) (declare (type (integer 0 1) a)) nil)))
    (is (null (mutants-of form)) "~S" form)))

(test the-change-deep-in-a-form-is-told-with-the-whole
  (is (equal '(((< a b) (<= a b) (list (if (<= a b) a b))))
             (remove '< (mutations '(list (if (< a b) a b))) :key #'caar :test-not #'eq))))

(test every-table-of-suites-names-suites
  (loop with names = (mapcar #'source-name (source-files))
        for (folder . suites) in (suites-by-folder)
        do (is (find folder names :test #'uiop:string-prefix-p)
               "No source file begins with ~A." folder)
           ;; `make mutation-test' needs SBCL, which has all suites.
           (when (uiop:featurep :sbcl)
             (dolist (suite suites)
               (is-true (find-suite suite))))))

(test the-nearest-suites-try-a-mutant-first
  (is (eql 0 (search '(http-protocol-state http)
                     (covering-suites "src/http/protocol-state.lisp"))))
  (is (eql 0 (search '(http) (covering-suites "src/http/parser.lisp")))))

(test a-mutant-meets-each-test-in-the-modes-in-which-it-runs
  (let ((default (first (modes))))
    (is (equal `((dates-are-imf-fixdates ,default))
               (tests-with-modes '(dates-are-imf-fixdates dates-are-imf-fixdates))))
    (is (equal (loop for mode in (modes) collect `(a-handler-has-a-function-called-later ,mode))
               (tests-with-modes '(a-handler-has-a-function-called-later))))))
