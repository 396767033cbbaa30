(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite differential :in all
  :description "The same requests get the same answers as from Hunchentoot's own acceptor.")

(in-suite differential)

(defun abbreviated (value)
  "VALUE, printed, not too long for a message."
  (let ((text (prin1-to-string value)))
    (if (< (length text) 1500)
        text
        (format nil "~A ... (~D characters)" (subseq text 0 1500) (length text)))))

(defun unexplained-differences (usages contestant case stock ours)
  "The differences between the observations STOCK and OURS that are not in the table."
  (remove-if (lambda (difference)
               (explain-difference usages (contestant-mode contestant) case difference))
             (observation-differences stock ours)))

(defun observed-again (contestant world case)
  "What CONTESTANT's reference answers to CASE alone, in WORLD, at another time.  On ECL
Hunchentoot's acceptor closes a kept connection now and then, so that what it was seen to do once is
not always what it does.  Ours has to be right at once."
  (format t "~&; ~A, ~S: ~A is asked again.~%"
          (getf case :name) (world-name world) (contestant-reference contestant))
  (first (observe-in-world world (reference-contestant (contestant-reference contestant))
                           (list case))))

(defun check-case (usages contestant world case stock ours)
  "Checks that each difference between the observations STOCK and OURS is in the table."
  (flet ((unexplained (stock)
           (unexplained-differences usages contestant case stock ours)))
    (let ((unexplained (and (unexplained stock)
                            (unexplained (observed-again contestant world case)))))
      (is (null unexplained)
          "~A, ~S, ~S:~{~%  ~A~}" (getf case :name) (world-name world) (contestant-name contestant)
          (mapcar #'abbreviated unexplained)))))

(defun check-contestant (usages contestant world cases stock-ones our-ones)
  "Compares what was observed of CASES in WORLD: STOCK-ONES, and OUR-ONES at CONTESTANT."
  (loop for case in cases
        for stock-one in stock-ones
        for our-one in our-ones
        do (check-case usages contestant world case stock-one our-one)))

(defun check-world (usages world cases)
  "Tries CASES in WORLD at all contestants, and at what they are compared with."
  (dolist (reference (remove-duplicates (mapcar #'contestant-reference (contestants))))
    (let* ((compared (remove reference (contestants) :key #'contestant-reference :test-not #'eq))
           (observed (loop for contestant in compared
                           collect (observe-in-world world contestant cases)))
           (stock-ones (observe-in-world world (reference-contestant reference) cases)))
      (loop for contestant in compared
            for our-ones in observed
            do (check-contestant usages contestant world cases stock-ones our-ones)))))

(defun possible-worlds ()
  "Those worlds in which Hunchentoot's own acceptor answers on this Lisp."
  (if (header-stream-works-p)
      *worlds*
      (remove :headers-traced *worlds* :key #'world-name)))

(defun check-all-worlds (usages)
  (let ((cases (all-cases)))
    (dolist (world (possible-worlds))
      (let ((here (remove-if-not (lambda (case) (member (world-name world) (case-worlds case)))
                                 cases)))
        (check-world usages world (sample-on-slow-lisps here))))))

(defun current-usages ()
  "A usage for each entry of the table that is true here."
  (loop for entry in (read-table "hunchentoot/differential/differences.sexp")
        when (and (holds-p entry)
                  (intersection (getf entry :at '(:parked :portable))
                                (mapcar #'contestant-mode (contestants))))
          collect (make-usage :entry entry)))

(define-server-test requests-are-answered-as-by-hunchentoot
  (with-directory (directory)
    (with-globals ((*documents* (write-documents directory))
                   ;; Tests in other processes count files from one, too.
                   (hunchentoot:*tmp-directory* (merge-pathnames "uploads/" directory))
                   (*certificate-initargs* (and (some #'contestant-tls-p (contestants))
                                                (certificate-initargs directory))))
      (quietly
        (let ((usages (current-usages)))
          (check-all-worlds usages)
          ;; Elsewhere Hunchentoot's own functions stream replies and send files.
          (when (platform:functions-can-be-wrapped-p)
            (dolist (usage usages)
              (is (null (stale-parts usage))
                  "No request shows any more of ~S: ~{~S~^, ~}"
                  (getf (usage-entry usage) :name) (stale-parts usage)))))))))

(test cases-have-names-of-their-own-and-worlds-that-exist
  (let ((cases (all-cases)))
    (is (= (length cases)
           (length (remove-duplicates cases :key (lambda (case) (getf case :name))
                                            :test #'string=))))
    (dolist (case cases)
      (is (every #'find-world (case-worlds case))))))
