(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/running :in clack
  :description "RUN: its names, its arguments, start and stop.")

(in-suite clack/running)

(test both-names-that-clack-looks-for-are-found
  (dolist (name '("clack.handler.recycling" "clack-handler-recycling"))
    (is (not (null (asdf:find-system name nil))) "~A" name))
  (is (not (null (find-package '#:clack.handler.recycling))))
  (dolist (name '("RUN" "STOP"))
    (is (fboundp (find-symbol name '#:clack.handler.recycling)) "~A" name)))

(defun hello (environment)
  (declare (ignore environment))
  (text-response "Hello"))

(define-server-test destroying-the-thread-of-run-stops-the-server-and-frees-its-port
  (let ((*clack-log* (make-string-output-stream)))
    (multiple-value-bind (server task) (start-clack 'hello '())
      (let ((port (port-of server)))
        (with-connection (connection port)
          (is (equal "Hello" (exchange-text connection "/")))
          (bt:destroy-thread (task-thread task))
          (eventually ("the end of the thread")
            (not (bt:thread-alive-p (task-thread task))))
          (is-true (closed-by-server-p connection)))
        (multiple-value-bind (again task) (start-clack 'hello (list :port port))
          (is (= port (port-of again)))
          (is (eq again (handler:stop again)))
          (is (eq again (handler:stop again)))
          (is (eq again (task-result task))))))))

(test every-documented-argument-is-known
  (is (equal '(":json" ":parallel-acceptor" ":parallel-ssl-acceptor" ":systemd" ":text"
               ":unlimited")
             (sort (keyword-names
                    (loop for name in (keywords-of-docstring 'handler:run)
                          for keyword = (intern (string-upcase (subseq name 1)) :keyword)
                          unless (assoc keyword (server:arguments-of :common :threads :run :tls
                                                                     :limits))
                            collect keyword))
                   #'string<))))

(define-server-test applications-write-where-run-was-called
  (with-clack (environment (progn (write-string "Told." *error-output*)
                                  (text-response "x")))
    (is (equal "x" (ask-text "/")))
    (is-true (await-log "Told."))))

(define-server-test a-server-listens-on-a-path
  (if (platform:readiness-supported-p)
      (with-directory (directory)
        (let ((path (merge-pathnames "socket" directory)) (seen nil))
          (with-clack (environment (progn (setf seen environment)
                                          (text-response "x"))
                                   :listen path)
            (with-open-connection (connection (connect-to-path path))
              (is (equal "x" (exchange-text connection "/"))))
            (is (equal '("unix:" 0) (list (getf seen :remote-addr) (getf seen :remote-port)))))
          (is (null (probe-file path)))))
      (skip "On this Lisp there are no such listeners.")))

(define-server-test the-example-answers
  (load (merge-pathnames "examples/clack.lisp" (source-root)))
  (with-clack (environment (uiop:symbol-call '#:recycling-clack-demo '#:app environment))
    (is (equal "Hello from localhost." (ask-text "/")))
    (is (equal (string (code-char #x3042))
               (ask-text "/echo" :method :post :content (string (code-char #x3042)))))
    (is (equal (format nil "three~%two~%one~%none") (ask-text "/count")))
    (is (search "recycling-clack-demo" (ask-text "/source")))
    (is (= 404 (response-status (ask "/nothing"))))))
