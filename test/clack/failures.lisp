(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/failures :in clack
  :description "Applications that fail.")

(in-suite clack/failures)

(define-server-test an-error-is-told-and-answered-500
  (with-clack (environment (if (equal "/fine" (getf environment :path-info))
                               (text-response "fine")
                               (error "It failed, for a reason.")))
    (with-connection (connection)
      (let ((answer (exchange connection "/")))
        (is (= 500 (response-status answer)))
        (is (equal "Internal Server Error" (response-text answer))))
      (is (equal "fine" (exchange-text connection "/fine"))))
    (is (search "It failed, for a reason." (clack-log)))))

(define-server-test what-is-no-response-is-an-error
  (dolist (response (list nil 42 "text" '(200) '(ok () ("x")) '(200 () 42) '(200 () (42)) '(200 () nil nil)
                          '(200 "x" ())))
    (with-clack (environment response)
      (is (= (if (equal '(200) response) 200 500) (response-status (ask "/"))) "~S" response))))

(define-server-test an-error-that-cannot-be-printed-is-told-and-answered
  (with-clack (environment (error 'unprintable))
    (is (= 500 (response-status (ask "/"))))
    (is (search "UNPRINTABLE" (clack-log)))))

(defun circular (&rest elements)
  "A list of ELEMENTS without an end."
  (setf (rest (last elements)) elements))

(define-server-test lists-without-a-proper-end-are-no-responses
  (dolist (response (list (circular 200 '() '("x"))
                          (list 200 (circular :x-foo "bar") '("x"))
                          (list 200 '() (circular "x"))
                          '(200 () . "x")
                          '(200 (:x-foo "bar" . "x") ("x"))
                          '(200 () ("x" . "y"))))
    (with-clack (environment response)
      (is (= 500 (response-status (ask "/")))))))

(define-server-test a-status-after-which-another-one-follows-is-no-response
  (dolist (status '(100 102 103 199))
    (with-clack (environment (list status '() '()))
      (is (= 500 (response-status (ask "/"))) "~D" status))))

(define-server-test an-error-amid-a-response-cuts-it
  (with-clack (environment (lambda (responder)
                             (funcall (funcall responder '(200 ())) "half")
                             (error "Amid the response.")))
    (let ((answer (decode (ask-raw (request-octets "/")))))
      (is (search "half" answer))
      (is (not (search (format nil "0~C~C~C~C" #\Return #\Newline #\Return #\Newline) answer))))
    (is (search "Amid the response." (clack-log)))
    (is (= 0 (getf (handler:server-statistics *server*) :failed)) "It is no failure of the server.")))

(define-server-test an-error-before-the-body-was-read-keeps-requests-apart
  (with-clack (environment (error "Before reading."))
    (with-connection (connection)
      (dotimes (n 3)
        (is (= 500 (response-status (exchange connection "/" :method :post
                                                             :content (request-octets "/inner")))))))))

(define-server-test debugging-takes-errors-to-the-debugger-and-goes-on-with-500
  (let ((entered (make-gate "the debugger"))
        (leave (make-gate "leave of the debugger"))
        (seen nil))
    (flet ((debugger (condition)
             (setf seen (list (bt:thread-name (bt:current-thread)) (princ-to-string condition)))
             (open-gate entered)
             (await leave)
             (invoke-restart 'abort)))
      (call-with-debugger
       #'debugger
       (lambda ()
         (with-clack (environment (if (equal "/fine" (getf environment :path-info))
                                      (text-response "fine")
                                      (error "This is to be debugged."))
                                  :debug t)
           (with-connection (connection)
             (send-request connection "/")
             (await entered)
             (is (equal "fine" (ask-text "/fine")) "Others are served meanwhile.")
             (open-gate leave)
             (is (= 500 (response-status (read-response connection))))
             (is (equal "fine" (exchange-text connection "/fine"))))
           (is (search "clack-worker" (first seen)))
           (is (equal "This is to be debugged." (second seen)))))))))

(define-server-test debugging-does-not-mind-errors-that-an-application-handles
  (with-clack (environment (handler-case (error "handled")
                             (error () (text-response "handled")))
                           :debug t)
    (is (equal "handled" (ask-text "/")))))

(define-server-test no-bad-request-reaches-the-application
  (let ((called nil))
    (with-clack (environment (progn (setf called t)
                                    (text-response "x")))
      (is (cl-ppcre:scan "^HTTP/1.1 400 " (decode (ask-raw "GET / HTTP/1.1" :crlf "Host: a b" :crlf :crlf))))
      (is (null called)))))
