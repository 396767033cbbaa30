(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; What Hunchentoot's front tells people beside the errors of handlers, see fronts/messages.lisp:
;;;; what programs log, and where it goes.

(def-suite message-log :in acceptors
  :description "The message log of our acceptors, and the identifiers of requests in it.")

(in-suite message-log)

;;; Programs

(define-server-test (a-message-of-anything-is-written-as-with-hunchentoot :needs :our-engine)
  (dolist (format '(:text :json))
    (let ((text (logged (:message-log-destination :message-log-format format)
                    (("/" (hunchentoot:log-message* 7 (formatter "Of a ~A.") "function")
                          (hunchentoot:log-message* "mine" "~A" "At a level of its own.")
                          (hunchentoot:log-message* :error (make-condition 'simple-error))
                          (hunchentoot:log-message* nil "~A" (make-condition 'without-report))
                          (hunchentoot:log-message* :info "~D and ~?" 1)
                          "body"))
                  (is (string= "body" (ask-text "/"))))))
      (dolist (words '("Of a function." "At a level of its own." "A message could not be made of "
                       "WITHOUT-REPORT"))
        (is (search words text)))
      (is (= 5 (length (log-lines text)))))))

;;; Requests

(test outside-of-a-request-there-is-no-identifier
  (is (null (recycling:request-id)))
  (let ((hunchentoot:*request* nil))
    (is (null (recycling:request-id)))))

(define-server-test (both-logs-name-a-request-by-its-identifier :needs :our-engine)
  (let ((log (make-string-output-stream)) (id nil))
    (serving (:access-log-destination log :message-log-destination log
              :access-log-format :json :message-log-format :json)
        (("/" (hunchentoot:log-message* :info "First.~%Second.")
              (setf id (recycling:request-id))
              "body")
         ("/quiet" "body"))
      (ask "/")
      (ask "/quiet")
      (hunchentoot:acceptor-log-message *server* nil "~A" "Of no request."))
    ;; A line of the access log is written when its reply was sent, and a client may be faster.
    (let ((objects (told-objects (taken-from-log log))))
      (flet ((one (name value)
               (find value objects :key (lambda (object) (fact name object)) :test #'equal)))
        (let ((message (one "message" (format nil "First.~%Second.")))
              (about-none (one "message" "Of no request.")))
          (is (equal "info" (fact "level" message)))
          (is (equal "127.0.0.1" (fact "remote_address" message)))
          (is (stringp (fact "thread" message)))
          (is (null (fact "backtrace" message)))
          (is (equal id (fact "request_id" message)))
          (is (equal id (fact "request_id" (one "uri" "/"))))
          (is (string/= id (fact "request_id" (one "uri" "/quiet"))))
          (dolist (name '("level" "request_id" "remote_address"))
            (is (null (fact name about-none)))))))))

(define-server-test (no-client-forges-an-object-of-the-message-log :needs :our-engine)
  (let* ((forged (format nil "\"}~C~%{\"level\":\"forged\"}~C~C\\" #\Return (code-char #x2028)
                         (code-char 133)))
         (text (logged (:message-log-destination :message-log-format :json
                        :trusted-proxies '("127.0.0.1"))
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
    (is (every (lambda (char) (or (graphic-char-p char) (char= char #\Newline))) text))
    (is (not (find (code-char #x2028) text)))
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

;;; Where it goes

(define-server-test (a-message-log-that-cannot-be-written-costs-no-reply :needs :our-engine)
  (with-directory (directory)
    (let ((gone (merge-pathnames "gone/messages" directory)))
      (dolist (destination (list gone (namestring gone) "/dev/full" directory))
        (serving (:message-log-destination destination) (("/fails" (error "No.")))
          (loop repeat 2
                do (loop repeat 3 do (is (= 500 (response-status (ask "/fails")))))
                   (hunchentoot:stop *server*)
                   (start-elsewhere *server*)))))))
