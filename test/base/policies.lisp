(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Under which policy our files are compiled, whatever others have proclaimed.

(def-suite policies :in architecture
  :description "What libraries proclaim about optimisation ends at their files.")

(in-suite policies)

(defparameter *leaked-policy* '((speed 3) (space 0) (safety 0) (debug 0))
  "What a library left behind.")

(defmacro with-leaked-policy (&body body)
  "Evaluates BODY as after loading a library that proclaims *LEAKED-POLICY*."
  `(uiop:with-optimization-settings (*leaked-policy*) ,@body))

(defun quality (name)
  "How much the quality NAME, a symbol of OPTIMIZE, counts in what is compiled now."
  (second (assoc name (uiop:get-optimization-settings))))

(defun files-of (component)
  "The components of COMPONENT that are files of Lisp, or it alone if it is one."
  (typecase component
    (asdf:parent-component (mapcan #'files-of (copy-list (asdf:component-children component))))
    (asdf:cl-source-file (list component))))

(defun own-files ()
  "The components, one for each file, of the library and of its tests."
  (loop for system in (append *library-systems* '("hunchentoot-recycling-taskmaster-test"))
        append (files-of (asdf:find-system system))))

(defun call-as-compiled (file function)
  "Calls FUNCTION under the policy with which the component FILE is compiled."
  (asdf::call-with-around-compile-hook file function))

(test each-of-our-files-is-compiled-with-checks
  (let ((files (own-files)))
    (is (< 100 (length files)))
    (with-leaked-policy
      ;; SAFETY=3, of `make test-safe`, outweighs what anybody proclaims.
      (is (= (parse-integer (or (uiop:getenvp "SAFETY") "0")) (quality 'safety)))
      (dolist (file files)
        (destructuring-bind (safety debug) (call-as-compiled file (lambda ()
                                                                    (list (quality 'safety)
                                                                          (quality 'debug))))
          (is (<= (second (assoc 'safety (rest base:*plain-policy*))) safety)
              "~A is compiled at safety ~D" file safety)
          (is (<= 1 debug) "~A is compiled at debug ~D" file debug))))))

(test a-policy-that-is-asked-for-takes-precedence
  (let ((uiop:*optimization-settings* '((safety 3))))
    (is (= 3 (call-as-compiled (first (own-files)) (lambda () (quality 'safety)))))))
