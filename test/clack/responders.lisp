(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* clack/responders :in clack
  :description "What Clack's responders and writers have beside fronts/later and fronts/streams.")

(defmacro with-responder ((given &rest arguments) form &body body)
  "Evaluates BODY while a server, made with ARGUMENTS, evaluates FORM with RESPONDER and ENVIRONMENT
bound in a function that the application returns; values of FORM are recorded in GIVEN."
  `(let ((,given (make-recorder)))
     (with-clack (environment (lambda (responder)
                                (declare (ignorable responder))
                                (record ,given ,form))
                              ,@arguments)
       ,@body)))

(define-server-test a-response-that-makes-no-sense-is-refused-and-another-one-taken
  (with-responder (given) responder
    (with-connection (connection)
      (send-request connection "/")
      (let ((responder (await-answer given)))
        (signals handler:unfit-response (funcall responder '(200 () 42)))
        (is (null (funcall responder (list 200 '() '("la" nil "ter")))))
        (is (equal "later" (response-text (read-response connection)))))
      (send-request connection "/")
      (outcome (await-answer given) '(200 () (42)))
      (is (= 500 (response-status (read-response connection))))
      (is-true (await-log "42")))))

(define-server-test threads-write-while-the-function-waits-for-them
  (let ((gate (make-gate)))
    (with-responder (given) (let ((writer (funcall responder '(200 ())))
                                  (piece (make-string 100000 :initial-element #\x)))
                              (outcome writer "one")
                              (await gate)
                              (mapc #'task-result
                                    (loop repeat 3
                                          collect (in-background ("writing")
                                                    (loop repeat 10 do (funcall writer piece)))))
                              (funcall writer "end" :close t))
      (with-connection (connection)
        (send-request connection "/")
        (read-head connection)
        (is (equal "one" (chunk-text connection)) "It leaves while the function runs.")
        (open-gate gate)
        (is (= 3000003 (loop for chunk = (read-chunk connection)
                             while chunk sum (length chunk))))))))

(define-server-test a-function-that-fails-amid-its-response-cuts-it-for-all-writers
  (with-responder (given) (let ((writer (funcall responder '(200 ()))))
                            (record given writer)
                            (funcall writer "half")
                            (error "Amid the response."))
    (ask-raw (request-octets "/"))
    (signals handler:client-left (funcall (await-answer given) "more"))))

(define-server-test the-example-answers-later
  (load (merge-pathnames "examples/clack-delayed.lisp" (source-root)))
  (with-clack (environment (uiop:symbol-call '#:recycling-clack-delayed '#:app environment))
    (unwind-protect
         (progn
           (is (search "<h1>Later" (ask-text "/")))
           (is (equal "Half a second later." (ask-text "/timer")))
           (is (search "21,171,191" (ask-text "/primes")))
           (is (cl-ppcre:scan "^data: 5\\n\\ndata: 4\\n\\n(?s:.*)data: over\\n\\n$"
                              (ask-text "/events")))
           (is (= 404 (response-status (ask "/nothing")))))
      (uiop:symbol-call '#:recycling-clack-delayed '#:stop-pool))))
