(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack :in all
  :description "Clack applications, by the protocol of Clack's handlers.")

(def-suite clack/environments :in clack
  :description "What an application is told of a request.")

(in-suite clack/environments)

(define-server-test headers-are-in-an-equal-hash-table-by-names-in-lower-case
  (let ((headers nil))
    (with-clack (environment (progn (setf headers (getf environment :headers)) (text-response "")))
      (ask "/" :headers '(("X-Foo" . "bar") ("COOKIE" . "a=1") ("X-Foo" . "baz") ("Cookie" . "b=2"))
               :content "x" :content-type "text/plain"))
    (is (eq 'equal (hash-table-test headers)))
    (is (cl-ppcre:scan "^bar, ?baz$" (gethash "x-foo" headers)))
    (is (equal "a=1; b=2" (gethash "cookie" headers)))
    (is (equal "localhost" (gethash "host" headers)))
    (is (equal "text/plain" (gethash "content-type" headers)))
    (is (equal "1" (gethash "content-length" headers)))))

(define-server-test environments-tell-what-requests-say
  (let ((seen nil))
    (with-clack (environment (progn (setf seen environment) (text-response "seen")))
      (with-connection (connection)
        (loop for (request . facts) in (read-table "clack/environments.sexp")
              do (is (= 200 (response-status (apply #'exchange connection request))))
                 (is (typep (getf seen :remote-port) '(integer 1 65535)))
                 (is (input-stream-p (getf seen :raw-body)))
                 (loop for (name value) on facts by #'cddr
                       do (is (equal value (getf seen name '#:missing)) "~S: ~A" request name)))
        (is (= 501 (response-status (exchange connection "/" :method "NEVER-HEARD-OF-THIS"))))))))

(define-server-test each-request-has-an-environment-of-its-own
  (let ((seen '()))
    (call-with-clack (lambda (environment)
                       (push environment seen)
                       (setf (gethash "x-mine" (getf environment :headers)) "1")
                       (rplacd (last environment) (list :mine t)) ; as Lack does
                       (text-response "seen"))
                     '()
                     (lambda ()
                       (with-connection (connection)
                         (loop repeat 2 do (exchange connection "/")))))
    (destructuring-bind (second first) seen
      (is (not (eq first second)))
      (is (not (eq (getf first :headers) (getf second :headers))))
      (is (= 1 (count :mine second))))))
