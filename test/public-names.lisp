(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; A program that uses the exported names, of one package or of both, meets no surprise.

(def-suite public-names :in all
  :description "What the two public packages export.")

(in-suite public-names)

(defparameter *public-packages*
  '(#:hunchentoot-recycling-taskmaster #:clack.handler.recycling))

(defun our-packages ()
  "The packages of the library, private ones too."
  (list* (find-package '#:hunchentoot-recycling-taskmaster)
         (find-package '#:clack.handler.recycling)
         (loop for layer in (remove "hunchentoot" *layers* :test #'string=)
               for package = (find-package (format nil "~:@(hunchentoot-recycling-taskmaster.~A~)"
                                                   layer))
               when package collect package))) ; HTTP/2's is not everywhere

(defun condition-name-p (symbol)
  (and (find-class symbol nil)
       (subtypep symbol 'condition)))

(defun conditions-of (package)
  "The names in PACKAGE, also unexported ones, of conditions that the library defines."
  (let ((names '()))
    (do-symbols (symbol package names)
      (when (and (member (symbol-package symbol) (our-packages)) (condition-name-p symbol))
        (pushnew symbol names)))))

(defun exported-conditions (package)
  (let ((names '()))
    (do-external-symbols (symbol package names)
      (when (condition-name-p symbol)
        (push symbol names)))))

(test every-condition-of-the-library-is-a-recycling-error
  (dolist (package (our-packages))
    (dolist (name (conditions-of package))
      (is-true (subtypep name 'recycling:recycling-error) "~S" name)))
  (dolist (package *public-packages*)
    (is (< 8 (length (exported-conditions package))))
    (dolist (name (exported-conditions package))
      (is-true (subtypep name 'recycling:recycling-error) "~S" name))))

(test what-tells-that-a-client-is-gone-is-one-condition
  (dolist (name '(server:descriptor-broken server:stream-timeout))
    (is-true (subtypep name 'handler:client-left) "~S" name)))

(defun use-together (&rest packages)
  "Uses PACKAGES in a package of a program.  Returns NIL, or the error that this signals."
  (let ((program (make-package (symbol-name (gensym "PROGRAM")) :use '())))
    (unwind-protect
         (handler-case (progn (use-package packages program)
                              nil)
           (package-error (condition) condition))
      (delete-package program))))

(test a-program-may-use-the-public-packages-beside-those-that-it-needs
  (is (null (use-together '#:common-lisp '#:hunchentoot '#:hunchentoot-recycling-taskmaster)))
  (is (null (use-together '#:common-lisp '#:clack.handler.recycling)))
  (dolist (name '(#:lack #:lack.request #:lack.response #:clack.socket))
    (when (find-package name)
      (is (null (use-together '#:common-lisp name '#:clack.handler.recycling)) "~A" name))))

(test both-public-packages-mean-the-same-by-a-name
  (do-external-symbols (symbol '#:clack.handler.recycling)
    (multiple-value-bind (other status)
        (find-symbol (symbol-name symbol) '#:hunchentoot-recycling-taskmaster)
      (when (eq :external status)
        (is (eq symbol other) "~A" symbol))))
  ;; Without HUNCHENTOOT, which has a STOP as Clack's handlers do.
  (is (null (use-together '#:common-lisp '#:hunchentoot-recycling-taskmaster
                          '#:clack.handler.recycling))))
