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
    (is-true (await-log "It failed, for a reason."))))

(define-server-test what-is-no-response-is-an-error
  (dolist (response (list nil 42 "text" '(200) '(ok () ("x")) '(200 () 42) '(200 () (42))
                          '(200 () nil nil)
                          '(200 "x" ())))
    (with-clack (environment response)
      (is (= (if (equal '(200) response) 200 500) (response-status (ask "/"))) "~S" response))))

(define-server-test an-error-that-cannot-be-printed-is-told-and-answered
  (with-clack (environment (error 'unprintable))
    (is (= 500 (response-status (ask "/"))))
    (is-true (await-log "UNPRINTABLE"))))

(define-server-test an-error-whose-report-never-ends-is-told-and-answered-through-clack
  (with-clack (environment (if (equal "/endless" (getf environment :path-info))
                               (error 'endless-report)
                               (error "This is ~A." (circular 1 2))))
    (is (= 500 (response-status (ask "/endless"))))
    (is (= 500 (response-status (ask "/"))))
    (let ((text (await-log "This is (1 2 1 2 1")))
      (is (search "It goes on. It goes on." text))
      (is (< (length text) 40000)))))

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
    (is-true (await-log "Amid the response."))
    (is (= 0 (getf (handler:stats *server*) :failed)) "It is no failure of the server.")))

(define-server-test an-error-before-the-body-was-read-keeps-requests-apart
  (with-clack (environment (error "Before reading."))
    (with-connection (connection)
      (dotimes (n 3)
        (is (= 500 (response-status (exchange connection "/" :method :post
                                                             :content
                                              (request-octets "/inner")))))))))

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
      (is (cl-ppcre:scan "^HTTP/1.1 400 "
                         (decode (ask-raw "GET / HTTP/1.1" :crlf "Host: a b" :crlf :crlf))))
      (is (null called)))))

;;; What is told

(define-condition told-report (error)
  ((text :initarg :text :reader told-text))
  (:report (lambda (condition stream) (write-string (told-text condition) stream))))

(define-server-test an-error-cannot-forge-what-is-told
  (with-clack (environment (error 'told-report
                                  :text (format nil "No.~C~%[ERROR] forged~C"
                                                #\Return (code-char 155))))
    (is (= 500 (response-status (ask "/"))))
    (let ((told (await-log "forged\\x9B")))
      (is (search (format nil " [ERROR]] No.\\x0D~%  [ERROR] forged\\x9B [GET / ") told))
      (is (= 1 (count-messages told))))))

(define-server-test what-is-told-of-an-error-names-its-request-and-where-it-was
  (let ((id nil))
    (dolist (delayed-p '(nil t))
      (with-clack (environment (flet ((answer (responder)
                                        (declare (ignore responder))
                                        (list (fail-with '() '()))))
                                 (setf id (handler:request-id environment))
                                 (if delayed-p #'answer (answer nil))))
        (is (= 500 (response-status (ask "/broken?secret=1"))))
        (let ((told (await-log (format nil "~%"))))
          (is (cl-ppcre:scan (format nil "^\\[[-0-9]{10} [:0-9]{8} \\[ERROR\\]\\] The reason, 0 ~
                                          and 0. \\[GET /broken HTTP/1.1 from 127.0.0.1, ~
                                          request ~A\\]\\n" id)
                             told)
              "~A" told)
          (is (= 1 (count-messages told)))
          (where-supported
           (is (search (format nil "]~%  ") told))
           (is (search "FAIL-WITH" told))
           (is (not (search "CALL-WITH-HANDLER-LIMIT" told)))))))))

(define-server-test no-client-floods-the-stream-for-errors
  (with-globals ((server::*message-burst* 3) (server::*warning-milliseconds* 1000000))
    (with-clack (environment (error "It failed."))
      (with-connection (connection)
        (dotimes (i 50)
          (is (= 500 (response-status (exchange connection "/"))))))
      (is (= 3 (count-messages (await-log (lambda (text) (<= 3 (count-messages text))))))))))

(define-server-test what-is-told-says-how-often-it-was-not
  (let* ((log (make-string-output-stream))
         (server (let ((*error-output* log))
                   (handler::make-clack-server 'hello '()))))
    (with-globals ((server::*message-burst* 1))
      (dotimes (i 3) (engine:note server :error "It failed."))
      (setf (server:log-throttle-silent-until
             (server::throttle-entry (handler::server-throttle server) (list "It failed.")))
            nil)                        ; time passes
      (engine:note server :error "It failed."))
    (is (equal '("It failed." "3 since the last message; the last one: It failed.")
               (mapcar (lambda (line) (cl-ppcre:regex-replace "^\\[.* \\[ERROR\\]\\] " line ""))
                       (log-lines (get-output-stream-string log)))))))

(define-server-test a-stream-for-errors-that-nobody-reads-holds-up-nobody
  (let* ((stream (make-instance 'stalled-stream)) (*clack-stream* stream))
    (unwind-protect
         (with-clack (environment (if (equal "/fine" (getf environment :path-info))
                                      (text-response "fine")
                                      (error "It failed."))
                                  :worker-num 2)
           (with-connection (connection)
             (dotimes (i 40)
               (is (= 500 (response-status (exchange connection "/")))))
             (await (entered stream))
             (is (equal "fine" (exchange-text connection "/fine"))))
           (open-gate (stream-gate stream)))
      (open-gate (stream-gate stream)))
    (is (plusp (recorded-count (written-text stream)))
        "It is written when the server has stopped.")))

(define-server-test a-stop-waits-for-a-stream-that-nobody-reads-a-while-only
  (with-globals ((server::*log-patience* 1/100))
    (let* ((stream (make-instance 'stalled-stream)) (*clack-stream* stream))
      (unwind-protect
           (progn
             (with-clack (environment (error "It failed."))
               (is (= 500 (response-status (ask "/"))))
               (await (entered stream)))
             (is (zerop (recorded-count (written-text stream)))))
        (open-gate (stream-gate stream)))
      (eventually ("the rest to be written")
        (search "It failed." (apply #'concatenate 'string (recorded (written-text stream))))))))

(define-server-test what-a-stream-for-errors-does-not-take-is-counted
  (let ((*clack-stream* (make-instance 'broken-stream)) (server nil))
    (with-clack (environment (error "It failed."))
      (setf server *server*)
      (with-connection (connection)
        (dotimes (i 5)
          (is (= 500 (response-status (exchange connection "/")))))))
    (is (plusp (getf (handler:stats server) :log-dropped)))))

(define-server-test what-is-told-is-written-before-long
  (with-globals ((server::*flush-seconds* *patience*))
    (let* ((stream (make-instance 'stalled-stream)) (*clack-stream* stream))
      (open-gate (stream-gate stream))
      (with-clack (environment (error "It failed."))
        (is (= 500 (response-status (ask "/"))))
        (eventually ("the message" :patience (/ *patience* 2))
          (plusp (recorded-count (written-text stream))))))))

;;; Messages in JSON

(define-server-test a-failure-of-an-application-is-told-in-json
  (let ((forged (format nil "\"}~C~%{\"level\":\"forged\"}" #\Return)) (id nil))
    (with-clack (environment (progn (setf id (handler:request-id environment))
                                    (error "~A" forged))
                             :message-log-format :json)
      (ask "/")
      (let ((objects (told-objects (await-log (string #\Newline)))))
        (is (= 1 (length objects)))
        (is (equal "error" (fact "level" (first objects))))
        (is (equal forged (fact "message" (first objects))))
        (is (equal "GET / HTTP/1.1" (fact "request" (first objects))))
        (is (eq (stringp (fact "backtrace" (first objects)))
                (platform:readiness-supported-p))) ; those of other Lisps have no bounds
        (is (equal id (fact "request_id" (first objects))))
        (is (equal "127.0.0.1" (fact "remote_address" (first objects))))))))

(define-server-test a-delayed-failure-is-told-with-its-request
  (let ((id nil))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (setf id (handler:request-id environment))
                               (error "Later."))
                             :message-log-format :json)
      (ask "/")
      (let ((objects (told-objects (await-log (string #\Newline)))))
        (is (equal (list id) (mapcar (lambda (object) (fact "request_id" object)) objects)))
        (is (equal "Later." (fact "message" (first objects))))))))
