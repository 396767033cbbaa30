(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* request-ids :in acceptors
  :description "Identifiers of requests, and messages in JSON, which have them.")

;;; Which identifier a request has

(defparameter *good-ids*
  (list "a" "7b6e1a54-43d2-4a5b-9c53-0f9d4a8f5d10" "!~\"\\{}"
        (make-string 200 :initial-element #\i))
  "Identifiers that a trusted proxy may tell.")

(defparameter *bad-ids*
  (list "" "two words" (format nil "a~Cb" #\Tab) (format nil "a~Cb" (code-char 233))
        (make-string 201 :initial-element #\i))
  "Values of X-Request-Id that are no identifiers.")

(defun id-told-for (id)
  "The content of the response to a request for / with ID as its X-Request-Id."
  (ask-text "/" :headers `(("X-Request-Id" . ,id))))

(defun new-id-p (text)
  (cl-ppcre:scan "^[0-9a-f]{26}$" text))

(define-server-test (a-request-has-the-identifier-that-a-trusted-proxy-tells :needs :our-http)
  (serving (:trusted-proxies '("127.0.0.1")) (("/" (recycling:request-id)))
    (dolist (id *good-ids*)
      (is (string= id (id-told-for id))))
    (dolist (id *bad-ids*)
      (is (new-id-p (id-told-for id)) "~S" id))))

(define-server-test (nobody-else-gives-a-request-its-identifier :needs :our-engine)
  (dolist (trusted '(() ("10.0.0.0/8" :unix)))
    (serving (:trusted-proxies trusted) (("/" (recycling:request-id)))
      (dolist (id *good-ids*)
        (is (new-id-p (id-told-for id)))))))

(define-server-test (each-request-has-an-identifier-of-its-own :needs :our-engine)
  (serving () (("/" (format nil "~A ~A" (recycling:request-id) (recycling:request-id))))
    (with-connection (connection)
      (let ((pairs (loop repeat 20
                         collect (uiop:split-string (exchange-text connection "/")))))
        (is (every (lambda (pair) (string= (first pair) (second pair))) pairs))
        (is (= 20 (length (remove-duplicates (mapcar #'first pairs) :test #'string=))))))))

(test outside-of-a-request-there-is-no-identifier
  (is (null (recycling:request-id)))
  (let ((hunchentoot:*request* nil))
    (is (null (recycling:request-id)))))

(define-server-test (threads-of-one-request-see-one-identifier :needs :our-http)
  (serving () (("/" (recycling:defer-reply (reply)
                      (bt:make-thread
                       (lambda ()
                         (recycling:complete-reply
                          reply
                          (format nil "~{~A~^ ~}"
                                  (mapcar #'task-result
                                          (loop repeat 4
                                                collect (in-background ("asks")
                                                          (recycling:with-reply-context (reply)
                                                            (recycling:request-id)))))))))
                      nil)))
    (let ((ids (uiop:split-string (ask-text "/"))))
      (is (= 4 (length ids)))
      (is (= 1 (length (remove-duplicates ids :test #'string=)))))))

(test identifiers-of-threads-and-of-processes-differ
  (server::renew-request-ids)
  (flet ((some-ids ()
           (loop repeat 1000 collect (server::new-request-id))))
    (let ((ids (loop for task in (loop repeat 4 collect (in-background ("makes some") (some-ids)))
                     append (task-result task))))
      (is (= 4000 (length (remove-duplicates ids :test #'string=))))
      (is (= 1 (length (remove-duplicates ids :key (lambda (id) (subseq id 0 16))
                                              :test #'string=))))
      (server::renew-request-ids)       ; as the start of a saved image does
      (is (string/= (subseq (first ids) 0 16) (subseq (server::new-request-id) 0 16))))))

;;; The logs

(defun told-objects (text)
  "The objects in TEXT, lines of JSON."
  (mapcar #'parse-json (log-lines text)))

(define-server-test (both-logs-name-a-request-by-its-identifier :needs :our-engine)
  (let ((log (make-string-output-stream)) (id nil))
    (serving (:access-log-destination log :message-log-destination log
              :access-log-format :json :message-log-format :json)
        (("/" (hunchentoot:log-message* :info "First.~%Second.")
              (setf id (recycling:request-id))
              "body")
         ("/quiet" "body"))
      (ask "/")
      (ask "/quiet"))
    ;; A line of the access log is written when its reply was sent, and a client may be faster.
    (destructuring-bind (message access quiet)
        (sort (told-objects (get-output-stream-string log)) #'string<
              :key (lambda (object) (or (fact "uri" object) "")))
      (is (equal '("time" "level" "message" "request" "request_id" "remote_address" "thread"
                   "backtrace")
                 (mapcar #'car message)))
      (is (cl-ppcre:scan "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ$" (fact "time" message)))
      (is (equal "info" (fact "level" message)))
      (is (equal (format nil "First.~%Second.") (fact "message" message)))
      (is (equal "127.0.0.1" (fact "remote_address" message)))
      (is (stringp (fact "thread" message)))
      (is (null (fact "backtrace" message)))
      (is (equal id (fact "request_id" message)))
      (is (equal id (fact "request_id" access)))
      (is (new-id-p (fact "request_id" quiet)))
      (is (string/= id (fact "request_id" quiet))))))

(define-server-test (the-message-of-an-error-has-the-backtrace-apart :needs :our-engine)
  (dolist (backtraces-p '(t nil))
    (with-globals ((hunchentoot:*log-lisp-backtraces-p* backtraces-p))
      (let ((objects (told-objects (with-message-text (log :message-log-format :json)
                                       (("/" (error "It failed.")))
                                     (ask "/")))))
        (is (= 1 (length objects)))
        (is (equal "error" (fact "level" (first objects))))
        (is (equal "It failed." (fact "message" (first objects))))
        (is (equal "GET / HTTP/1.1" (fact "request" (first objects))))
        (is (eq backtraces-p (stringp (fact "backtrace" (first objects)))))))))

(define-server-test (no-client-forges-an-object-of-the-message-log :needs :our-engine)
  (let* ((forged (format nil "\"}~C~%{\"level\":\"forged\"}~C~C\\" #\Return (code-char #x2028)
                         (code-char 133)))
         (text (with-message-text (log :message-log-format :json :trusted-proxies '("127.0.0.1"))
                   (("/error" (error "~A" (hunchentoot:get-parameter "a")))
                    ("/tell" (hunchentoot:log-message* :info "~A" (hunchentoot:get-parameter "a"))
                             "body")
                    ("/session" (hunchentoot:start-session) "body"))
                 (let ((query (hunchentoot:url-encode forged :utf-8)))
                   (dolist (target '("/error" "/tell"))
                     (ask (format nil "~A?a=~A" target query)
                          :headers '(("X-Request-Id" . "\"},{\"") ("X-Forwarded-For" . "\"}{"))))
                   (ask "/session"
                        :headers `(("Cookie" . ,(format nil "hunchentoot-session=1:~A" query)))))))
         (objects (told-objects text)))
    (is (<= 3 (length objects) 4))      ; that the session secret is random may be told as well
    (is (null (find-if #'server::invisible-p (remove #\Newline text))))
    (dolist (object objects)
      (is (= 8 (length object)))
      (is (member (fact "level" object) '("error" "info" "warning") :test #'equal))
      (is (equal "127.0.0.1" (fact "remote_address" object))))
    (is (= 2 (count "\"},{\"" objects :test #'equal
                                      :key (lambda (object) (fact "request_id" object)))))
    (is (equal (string-right-trim '(#\Newline) forged)
               (fact "message" (find "info" objects :test #'equal
                                                    :key (lambda (object)
                                                           (fact "level" object))))))))

(define-server-test (a-message-about-no-request-names-none :needs :our-engine)
  (let ((objects (told-objects
                  (with-message-text (log :message-log-format :json) ()
                    (hunchentoot:acceptor-log-message *server* nil "~A" "Of no request.")))))
    (is (= 1 (length objects)))
    (is (equal "Of no request." (fact "message" (first objects))))
    (is (null (fact "level" (first objects))))
    (is (null (fact "request_id" (first objects))))
    (is (null (fact "remote_address" (first objects))))))

(define-server-test (a-flood-of-messages-in-json-is-limited-too :needs :our-engine)
  (with-globals ((server::*message-burst* 3) (server::*warning-milliseconds* 1000000))
    (let ((objects (told-objects (with-message-text (log :message-log-format :json)
                                     (("/" (error "It failed.")))
                                   (with-connection (connection)
                                     (loop repeat 20 do (exchange connection "/")))))))
      (is (= 3 (length objects))))))
