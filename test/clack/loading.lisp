(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/loading :in clack
  :description "What the system for Clack brings with it.")

(in-suite clack/loading)

(test both-names-that-clack-looks-for-are-found
  (dolist (name '("clack.handler.recycling" "clack-handler-recycling"))
    (is (not (null (asdf:find-system name nil))) "~A" name))
  (is (not (null (find-package '#:clack.handler.recycling))))
  (dolist (name '("RUN" "STOP"))
    (is (fboundp (find-symbol name '#:clack.handler.recycling)) "~A" name)))

(defun loading-program (system)
  "A program that loads SYSTEM and tells which of some packages there are then."
  (format nil "(progn (asdf:load-system ~S)
                      (format t \"~~&packages:~~{ ~~A~~}~~%\"
                              (remove-if-not #'find-package
                                             '(\"HUNCHENTOOT\" \"CHUNGA\" \"CL-PPCRE\" \"RFC2388\"
                                               \"CLACK.HANDLER.RECYCLING\")))
                      (finish-output)
                      (uiop:quit 0))"
          system))

(test loading-the-handler-does-not-load-hunchentoot
  (if (uiop:featurep :sbcl)
      (uiop:with-temporary-file (:stream stream :pathname program :type "lisp")
        (write-string (loading-program "clack-handler-recycling") stream)
        (finish-output stream)
        (let ((output (uiop:run-program (list (uiop:native-namestring
                                               (merge-pathnames "scripts/lisp" (source-root)))
                                              (uiop:native-namestring program))
                                        :output :string :error-output :string
                                        :ignore-error-status t)))
          (is (search "packages: CLACK.HANDLER.RECYCLING" output) "~A" output)))
      (skip "On this Lisp a second process would take long to begin.")))
