(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/dispatchers :in conformance
  :description "Who handles a request: the dispatch table and its makers.")

(defmacro dispatching ((&rest dispatchers) &body body)
  "Evaluates BODY while an acceptor asks DISPATCHERS, in this order and nobody else."
  `(with-globals ((hunchentoot:*dispatch-table* (list ,@dispatchers)))
     (serving () () ,@body)))

(defun answering (answer)
  "A handler that returns ANSWER."
  (constantly answer))

(define-server-test a-prefix-dispatcher-takes-what-begins-with-its-prefix
  (dispatching ((hunchentoot:create-prefix-dispatcher "/pre" (answering "prefix")))
    (is (string= "prefix" (ask-text "/pre")))
    (is (string= "prefix" (ask-text "/prefix/deeper?x=1")))
    (is (= 404 (response-status (ask "/pr"))))
    (is (= 404 (response-status (ask "/other/pre"))))))

(define-server-test a-regex-dispatcher-takes-what-its-expression-matches
  (dispatching ((hunchentoot:create-regex-dispatcher "^/n/\\d+$" (answering "number")))
    (is (string= "number" (ask-text "/n/42?x=y")))
    (is (= 404 (response-status (ask "/n/x"))))
    (is (= 404 (response-status (ask "/n/42/x"))))))

(define-server-test the-first-dispatcher-that-knows-a-handler-wins
  (dispatching ((hunchentoot:create-prefix-dispatcher "/a" (answering "first"))
                (hunchentoot:create-prefix-dispatcher "/ab" (answering "second"))
                (hunchentoot:create-prefix-dispatcher "/" (answering "last")))
    (is (string= "first" (ask-text "/abc")))
    (is (string= "last" (ask-text "/b")))))

(define-server-test any-function-of-the-request-may-dispatch
  (dispatching ((lambda (request)
                  (and (hunchentoot:header-in :x-special request)
                       (answering "special")))
                (hunchentoot:create-prefix-dispatcher "/" (answering "ordinary")))
    (is (string= "special" (ask-text "/" :headers '(("X-Special" . "1")))))
    (is (string= "ordinary" (ask-text "/")))))

(define-server-test a-handler-may-be-a-symbol
  (dispatching ((hunchentoot:create-prefix-dispatcher "/" 'lisp-implementation-type))
    (is (string= (lisp-implementation-type) (ask-text "/")))))

(define-server-test the-dispatch-table-may-change-while-the-server-runs
  (dispatching ()
    (with-connection (connection)
      (is (= 404 (response-status (exchange connection "/new"))))
      (push (hunchentoot:create-prefix-dispatcher "/new" (answering "new"))
            hunchentoot:*dispatch-table*)
      (is (string= "new" (exchange-text connection "/new"))))))

(define-server-test folders-and-prefixes-must-be-well-formed
  (signals hunchentoot:parameter-error
    (hunchentoot:create-folder-dispatcher-and-handler "/no-slash" #p"/tmp/"))
  (signals hunchentoot:parameter-error
    (hunchentoot:create-folder-dispatcher-and-handler "/slash/" #p"/tmp/file")))

(define-server-test the-path-below-a-prefix-becomes-a-relative-pathname
  (serving () (("/a/b.txt" (shown (namestring (hunchentoot:request-pathname))
                                  (namestring (hunchentoot:request-pathname
                                               hunchentoot:*request* "/a/"))
                                  (hunchentoot:request-pathname
                                   hunchentoot:*request* "/x/"))))
    (is (string= (shown "a/b.txt" "b.txt" nil) (ask-text "/a/b.txt")))))
