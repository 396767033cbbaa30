(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/errors :in conformance
  :description "Error pages, errors of handlers, and handlers that end early.")

;;; Pages

(define-server-test a-missing-page-is-404-and-named
  (serving () ()
    (let ((response (ask "/no<where>")))
      (is (= 404 (response-status response)))
      (is (search "/no&lt;where&gt;" (response-text response)))
      (is (uiop:string-prefix-p "text/html" (content-type response))))))

(define-server-test a-return-code-without-body-gets-a-page
  (serving () (("/" (setf (hunchentoot:return-code*)
                          (parse-integer (hunchentoot:query-string*)))
                    nil))
    (loop for (code text) in '((400 "could not understand") (403 "permission")
                               (404 "not found") (503 "error has occurred"))
          for response = (ask (format nil "/?~D" code))
          do (is (= code (response-status response)))
             (is (search text (response-text response))))))

(define-server-test the-connection-goes-on-after-an-error-page
  (serving () (("/fails" (error "The handler fails.")))
    (with-connection (connection)
      (loop repeat 2
            do (is (= 404 (response-status (exchange connection "/nowhere"))))
               (is (= 500 (response-status (exchange connection "/fails"))))))))

;;; Errors of handlers

(define-server-test a-failing-handler-is-500-and-tells-nothing
  (serving () (("/" (error "The secret reason.")))
    (let ((response (ask "/")))
      (is (= 500 (response-status response)))
      (is (search "An error has occurred" (response-text response)))
      (is (not (search "secret" (response-text response)))))))

(define-server-test an-error-is-shown-on-demand
  (with-globals ((hunchentoot:*show-lisp-errors-p* t)
                 (hunchentoot:*show-lisp-backtraces-p* nil))
    (serving (:error-template-directory nil) (("/" (error "The <real> reason.")))
      (let ((text (ask-text "/")))
        (is (cl-ppcre:scan "The .*real.* reason\\." text))
        (is (not (search "<real>" text)))
        (is (not (search "Backtrace" text)))))))

(define-server-test a-backtrace-is-shown-on-demand
  (with-globals ((hunchentoot:*show-lisp-errors-p* t)
                 (hunchentoot:*show-lisp-backtraces-p* t))
    (serving (:error-template-directory nil) (("/" (error "The reason.")))
      (is (search "Backtrace" (ask-text "/"))))))

(define-server-test every-kind-of-error-is-caught
  (serving () (("/type" (car (hunchentoot:script-name*)))
               ("/arithmetic" (/ 1 (length (hunchentoot:query-string*))))
               ("/unbound" (symbol-value (gensym)))
               ("/control" (throw (gensym) nil)))
    (with-connection (connection)
      (dolist (target '("/type" "/arithmetic" "/unbound" "/control"))
        (is (= 500 (response-status (exchange connection target))))))))

(define-server-test a-handler-may-handle-its-own-errors
  (serving () (("/" (handler-case (error "The handler fails.")
                      (error () "handled"))))
    (is (string= "handled" (ask-text "/")))))

(define-server-test warnings-do-not-end-a-handler
  (quietly
    (serving () (("/" (warn "The handler warns.") "went on"))
      (is (string= "went on" (ask-text "/"))))))

(define-server-test a-body-of-the-wrong-type-is-500
  (serving () (("/" :neither-string-nor-octets))
    (is (= 500 (response-status (ask "/"))))
    ;; The server is none the worse for it.
    (is (= 500 (response-status (ask "/"))))))

;;; Templates

(define-server-test an-error-page-may-come-from-a-template
  (with-directory (directory)
    (write-file directory "404.html" "<p>No ${script-name} here.</p>")
    (write-file directory "500.html" "<p>Sorry: ${error}</p>")
    (with-globals ((hunchentoot:*show-lisp-errors-p* t))
      (serving (:error-template-directory directory) (("/fails" (error "A <reason>.")))
        (is (string= "<p>No /nowhere here.</p>" (ask-text "/nowhere")))
        (is (string= "<p>Sorry: A &lt;reason&gt;.</p>" (ask-text "/fails")))
        (is (= 404 (response-status (ask "/nowhere"))))))))

(define-server-test without-a-template-the-built-in-page-is-sent
  (with-directory (directory)
    (with-globals ((hunchentoot:*show-lisp-errors-p* t))
      (serving (:error-template-directory directory) ()
        (is (search "not found" (ask-text "/nowhere")))))))

;;; Pages by method

(defclass own-pages () ()
  (:documentation "A mixin for an acceptor with error pages of its own."))

(defmethod hunchentoot:acceptor-status-message ((acceptor own-pages) code
                                                &key error &allow-other-keys)
  (case code
    (404 "own page for 404")
    (500 (format nil "own page for ~A" error))
    (503 (error "The page fails."))
    (t (call-next-method))))

(define-server-test an-acceptor-may-make-its-own-error-pages
  (serving (:mixin 'own-pages) (("/fails" (error "a reason")))
    (is (string= "own page for 404" (ask-text "/nowhere")))
    (is (string= "own page for a reason" (ask-text "/fails")))
    (is (= 500 (response-status (ask "/fails"))))))

(define-server-test other-pages-are-left-to-hunchentoot
  (serving (:mixin 'own-pages) (("/" (setf (hunchentoot:return-code*) 403)
                                     nil))
    (is (search "permission" (ask-text "/")))))

(define-server-test an-error-page-that-fails-is-replaced
  (serving (:mixin 'own-pages) (("/" (setf (hunchentoot:return-code*) 503)
                                     nil))
    (let ((response (ask "/")))
      (is (= 503 (response-status response)))
      (is (search "An error has occurred" (response-text response))))))

;;; Ending early

(define-server-test abort-request-handler-ends-the-handler-with-its-argument
  (let ((steps (make-recorder)))
    (serving () (("/" (flet ((deep () (hunchentoot:abort-request-handler "aborted")))
                        (unwind-protect (deep)
                          (record steps :cleaned-up))
                        (record steps :after))))
      (is (string= "aborted" (ask-text "/")))
      (is (equal '(:cleaned-up) (recorded steps))))))

(define-server-test abort-request-handler-without-argument-leaves-the-page-to-the-code
  (serving () (("/" (setf (hunchentoot:return-code*) 403)
                    (hunchentoot:abort-request-handler)))
    (let ((response (ask "/")))
      (is (= 403 (response-status response)))
      (is (search "permission" (response-text response))))))

(define-server-test a-handler-may-throw-its-result
  (serving () (("/" (throw 'hunchentoot::handler-done "thrown")))
    (is (string= "thrown" (ask-text "/")))))
