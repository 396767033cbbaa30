(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* rejections :in acceptors
  :description "Requests that are rejected are logged and counted, and warnings do not flood.")

(defun rejections ()
  "The statuses of rejected requests, and how many have each, of those that occur."
  (loop for (status count) on (getf (recycling:stats *server*) :rejected-by-status) by #'cddr
        unless (zerop count)
          collect (cons status count)))

(defparameter *rejected*
  (flet ((request (line &rest headers)
           (octets line :crlf "Host: localhost" :crlf
                   (loop for header in headers collect header collect :crlf) :crlf)))
    `((400 "GET /a HTTP/1.1" ,(request "GET /a HTTP/1.1" "Bad Name: 1"))
      (400 "-" ,(octets "G" #(1) "T / HTTP/1.1" :crlf :crlf))
      (414 "GET"
           ,(request (format nil "GET /~A HTTP/1.1" (make-string 20000 :initial-element #\x))))
      (431 "GET /b HTTP/1.1" ,(request "GET /b HTTP/1.1" (make-string 140000 :initial-element #\x)))
      (413 "POST /c HTTP/1.1" ,(request "POST /c HTTP/1.1" "Content-Length: 2000"))
      (417 "POST /d HTTP/1.1" ,(request "POST /d HTTP/1.1" "Content-Length: 2" "Expect: more"))
      (501 "CONNECT a:80 HTTP/1.1" ,(request "CONNECT a:80 HTTP/1.1"))
      (505 "GET /e" ,(request "GET /e HTTP/2.0"))))
  "Statuses, what is known of the request line, and octets.")

(defmacro with-access-log ((lines &rest initargs) routes &body body)
  "Evaluates BODY while an acceptor made of INITARGS serves ROUTES; then LINES, a function without
arguments, returns the lines of its access log so far."
  (let ((directory (gensym "DIRECTORY")) (log (gensym "LOG")))
    `(with-directory (,directory)
       (let ((,log (merge-pathnames "access" ,directory)))
         (serving (:access-log-destination ,log ,@initargs) ,routes
           (flet ((,lines ()
                    (recycling:reopen-logs *server*)
                    (and (probe-file ,log) (uiop:read-file-lines ,log))))
             ,@body))))))

(define-server-test (rejected-requests-stand-in-the-access-log :needs :our-http)
  (with-access-log (lines :max-body-octets 1000) (("/" "body"))
    (loop for (status line octets) in *rejected*
          for number from 1
          do (with-connection (connection)
               (try-to-send connection octets)
               (is (= status (response-status (read-response connection)))))
             (let ((written (eventually ("the line")
                              (and (= number (length (lines))) (first (last (lines)))))))
               (is (cl-ppcre:scan
                    (format nil "^127\\.0\\.0\\.1 - \\[[-0-9: ]+\\] \"~A\" ~D - \"-\" \"-\"$"
                            (cl-ppcre:quote-meta-chars line) status)
                    written)
                   "~A" written)))
    (eventually ("all to be counted") (= (length *rejected*) (figure :rejected)))
    (is (equal '((400 . 2) (413 . 1) (414 . 1) (417 . 1) (431 . 1) (501 . 1) (505 . 1))
               (rejections)))))

(define-server-test (rejected-requests-stand-in-other-formats-too :needs :our-http)
  (with-access-log (lines :access-log-format :json) (("/" "body"))
    (ask-raw "GET /secret HTTP/1.1" :crlf "Bad Name: 1" :crlf :crlf)
    (let ((line (eventually ("the line") (first (lines)))))
      (is (search "\"status\":400" line))
      (is (search "\"remote_address\":\"127.0.0.1\"" line))
      (is (search "\"method\":\"GET\"" line))
      (is (search "\"uri\":\"/secret\"" line))
      (is (search "\"protocol\":\"HTTP/1.1\"" line)))))

(define-server-test (functions-that-log-are-told-of-rejected-requests-in-strings :needs :our-http)
  (with-access-log (lines :access-log-format
                          (lambda (facts)
                            (format nil "~{~S~^ ~}"
                                    (loop for name in
                                          '(:remote-address :method :uri :protocol :status)
                                          collect (getf facts name)))))
      (("/" "body"))
    (ask-raw "GET /secret HTTP/1.1" :crlf "Bad Name: 1" :crlf :crlf)
    (is (equal "\"127.0.0.1\" \"GET\" \"/secret\" \"HTTP/1.1\" 400"
               (eventually ("the line") (first (lines)))))))

(define-server-test (rejected-requests-over-hunchentoots-reader-are-counted :needs :our-engine)
  (with-access-log (lines :max-body-octets 1000) (("/" "body"))
    (is (= 413 (response-status (ask "/" :method :post :content (test-octets 1001)))))
    (eventually ("the line")
      (find-if (lambda (line) (search "\"POST / HTTP/1.1\" 413 -" line)) (lines)))
    (eventually ("the rejection to be counted") (equal '((413 . 1)) (rejections)))))

(define-server-test (a-head-that-is-late-is-refused-by-who-finds-it-so :needs :parking)
  (with-access-log (lines :read-timeout 1) (("/" "body"))
    ;; The sentinel may look while a worker owns the connection.
    (with-function (engine::time-out-if-due (original engine connection now) nil)
      (with-connection (connection)
        (send connection "GET /late HTTP/1.1" :crlf)
        (is (not (readable-p connection)))
        (eventually ("a refusal of who sends on and on")
          (send connection "a")
          (readable-p connection 1/20))
        (is (= 408 (response-status (read-response connection))))
        (is (closed-by-server-p connection))))
    (eventually ("the rejection to be counted") (equal '((408 . 1)) (rejections)))))

(define-server-test (slow-heads-and-slow-content-are-counted :needs :our-http)
  (with-access-log (lines :read-timeout 1 :idle-timeout 60) (("/" (hunchentoot:raw-post-data)))
    (with-connection (connection)
      (send connection "GET /slow HTTP/1.1" :crlf)
      (is (= 408 (response-status (read-response connection)))))
    (eventually ("the line")
      (find-if (lambda (line) (search "\"GET /slow HTTP/1.1\" 408 -" line)) (lines)))
    (with-connection (connection)
      (send connection (post-head "/" "Content-Length: 5") "a")
      (is (= 408 (response-status (read-response connection)))))
    (eventually ("the rejections to be counted") (equal '((408 . 2)) (rejections)))
    (eventually ("the other line")
      (find-if (lambda (line) (search "\"POST / HTTP/1.1\" 408 " line)) (lines)))))

(define-server-test (what-limits-reject-within-handlers-is-counted :needs :our-engine)
  (serving (:max-form-octets 10) (("/" (hunchentoot:post-parameters*)))
    (let ((response (ask "/" :method :post :form '(("a" . "123456789")))))
      (is (= 413 (response-status response)))
      (is (null (response-header response "retry-after")) "It would not help."))
    (eventually ("the rejection to be counted") (equal '((413 . 1)) (rejections)))
    ;; What a program answers by itself is no rejection.
    (is (= 404 (response-status (ask "/nowhere"))))
    (is (= 1 (getf (recycling:stats *server*) :rejected)))))

(define-server-test (a-length-that-is-no-number-is-answered :needs :our-engine)
  (serving () (("/" "body"))
    (with-connection (connection)
      (send connection (octets "GET / HTTP/1.1" :crlf "Host: localhost" :crlf
                               "Content-Length: none" :crlf :crlf))
      (is (member (response-status (read-response connection)) '(200 400))))
    (is (zerop (getf (recycling:stats *server*) :failed)))))

(define-server-test
    (without-an-access-log-no-lines-of-rejected-requests-are-lost :needs :our-engine)
  (serving (:max-body-octets 10) (("/" "body"))
    (is (= 413 (response-status (ask "/" :method :post :content (test-octets 11)))))
    (eventually ("the rejection to be counted") (equal '((413 . 1)) (rejections)))
    (is (zerop (getf (recycling:stats *server*) :log-dropped)))))

(define-server-test (rejections-under-a-replaced-taskmaster-are-answered :needs :our-engine)
  (serving (:max-body-octets 10) (("/" "body"))
    (reinitialize-instance *server* :taskmaster (make-instance
                                                 'hunchentoot:one-thread-per-connection-taskmaster))
    (is (= 413 (response-status (ask "/" :method :post :content (test-octets 11)))))
    (is (zerop (getf (recycling:stats *server*) :failed)))))

(define-server-test (counts-of-rejections-begin-anew-with-each-start :needs :our-engine)
  (serving (:max-body-octets 10) (("/" "body"))
    (is (= 413 (response-status (ask "/" :method :post :content (test-octets 11)))))
    (eventually ("the rejection to be counted") (equal '((413 . 1)) (rejections)))
    (hunchentoot:stop *server*)
    (hunchentoot:start *server*)
    (is (null (rejections)))))

;;; Overload

(define-server-test (refused-connections-stand-in-the-access-log :needs :our-engine)
  (let ((entered (make-gate)) (leave (make-gate)))
    (with-access-log (lines :taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 1
                                                    :max-accept-count nil))
        (("/slow" (open-gate entered) (await leave) "slow"))
      (with-connection (first)
        (send-request first "/slow")
        (await entered)
        (with-connection (second)       ; now: else it could take the thread
          (try-to-send second (request-octets "/quick"))
          (is (= 503 (response-status (read-response second))))
          (eventually ("the line")
            (find-if (lambda (line) (cl-ppcre:scan "^127\\.0\\.0\\.1 - .* \"-\" 503 -" line))
                     (lines)))
          (open-gate leave)
          (is (string= "slow" (response-text (read-response first)))))))))

(define-server-test (a-stock-acceptor-on-our-threads-refuses-and-has-no-line :needs :our-engine)
  (let ((*acceptor-class* 'hunchentoot:easy-acceptor))
    (with-directory (directory)
      (with-busy-threads (acceptor 1 :max-thread-count 1 :max-accept-count nil)
        (setf (hunchentoot:acceptor-access-log-destination acceptor)
              (merge-pathnames "access" directory))
        (is (= 503 (response-status (ask "/quick"))))
        (is (zerop (getf (recycling:stats acceptor) :failed)))))))

(define-server-test (who-refuses-a-connection-warns :needs :our-engine)
  (let ((log (make-string-output-stream)))
    (with-busy-threads (acceptor 1 :max-thread-count 1 :max-accept-count nil)
      (setf (hunchentoot:acceptor-message-log-destination acceptor) log)
      (is (= 503 (response-status (ask "/quick"))))
      (let ((text ""))
        (eventually ("a warning")
          (setf text (concatenate 'string text (get-output-stream-string log)))
          (find #\Newline text))
        (is (search "[WARNING]" text))
        (is (search "A connection was refused" text))))))

(define-server-test (a-client-is-refused-whose-address-cannot-be-asked-for :needs :our-engine)
  (with-busy-threads (acceptor 1 :max-thread-count 1 :max-accept-count nil)
    (with-globals (((fdefinition 'platform:peer-name)
                    (lambda (socket)
                      (declare (ignore socket))
                      (error 'platform:peer-gone))))
      (is (= 503 (response-status (ask "/quick")))))
    (is (zerop (getf (recycling:stats acceptor) :failed)))))

(define-server-test (who-refuses-a-connection-of-an-address-says-so-in-both-logs :needs :our-engine)
  (let ((log (make-string-output-stream)))
    (with-access-log (lines :max-address-connections 1 :defer-accept nil
                            :message-log-destination log)
        (("/next" "next"))
      (with-admitted (first)
        (with-connection (refused)
          (check-refused refused)))
      (eventually ("the line")
        (find-if (lambda (line) (cl-ppcre:scan "^127\\.0\\.0\\.1 - .* \"-\" 503 -" line))
                 (lines))))
    (is (search "A connection was refused: 127.0.0.1 has 1 open, as many as one address may."
                (get-output-stream-string log)))))

(test warnings-of-refused-connections-come-every-ten-seconds-with-their-number
  (let ((log-throttle (server:make-log-throttle)))
    (flet ((said (&rest times)
             (loop for time in times collect (server:count-throttled log-throttle time))))
      (is (equal '(1 nil nil) (said 5000 5001 14999)))
      (is (equal '(3 nil) (said 15000 15500)))
      (is (equal '(2) (said 90000))))))

(test some-messages-of-a-kind-may-follow-each-other
  (let ((log-throttle (server:make-log-throttle :burst 3)))
    (flet ((said (&rest times)
             (loop for time in times collect (server:count-throttled log-throttle time))))
      (is (equal '(1 1 1 nil nil) (said 5000 5000 5001 5002 14999)))
      (is (equal '(3 nil) (said 15000 15001)) "One more every ten seconds.")
      (is (equal '(2 1 1 nil) (said 90000 90000 90000 90000))))))

(test a-sentence-of-the-log-ends-in-one-full-stop
  (flet ((told (reason)
           (server:log-rarely (server:make-log-throttle)
                              (lambda (control &rest arguments)
                                (apply #'format nil control arguments))
                              "A request was refused" "requests were refused" reason)))
    (is (string= "A request was refused: it has no host." (told "it has no host.")))
    (is (string= "A request was refused: it has no host." (told "it has no host")))
    (is (string= "A request was refused." (told nil)))))

(test what-was-refused-is-told-in-a-sentence
  (let ((taskmaster (taskmaster :max-thread-count 7)) (told '()))
    (call-with-definition 'engine:note
                          (lambda (former taskmaster level control &rest arguments)
                            (declare (ignore former taskmaster level))
                            (push (apply #'format nil control arguments) told))
                          (lambda ()
                            (loop repeat 3
                                  do (hunchentoot:too-many-taskmaster-requests taskmaster nil))
                            (setf (server:log-throttle-silent-until
                                   (server::log-throttle-of taskmaster :refused))
                                  nil)
                            (hunchentoot:too-many-taskmaster-requests taskmaster nil)))
    (is (equal '("A connection was refused: all 7 threads serve."
                 "3 connections were refused since the last message: all 7 threads serve.")
               (reverse told)))))
