(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite access-log :in acceptors
  :description "The access log of our acceptors: its lines, and who gets them when.")

(in-suite access-log)

;;; They are the same as Hunchentoot's: see differential/.

(define-server-test (a-request-cannot-forge-lines :needs :our-engine)
  (let ((lines (log-lines (logged (:access-log-destination) (("/" "body"))
                            ;; U+2028 ends a line, U+202E and U+2066 change the direction of text.
                            (ask "/%E2%80%A8%E2%80%AE%E2%81%A6%0D%0A127.0.0.1%20-%20forged")))))
    (is (= 1 (length lines)))
    (is (search "GET /\\u2028\\u202E\\u2066\\x0D\\x0A127.0.0.1 - forged HTTP/1.1"
                (first lines)))))

;; A value that ends its field with a bracket or a quotation mark and goes on as the next one would,
;; or that ends the line.
(defun hostile-access (format)
  "The access log in FORMAT of a request each of whose values tries to forge a part of it."
  (logged (:access-log-destination :access-log-format format) (("/" "body"))
    (ask "/?a=\"%20200%20-\\"
         :headers `(("X-Forwarded-For"
                     . "10.0.0.1) admin [2020-01-01 00:00:00] \"GET /a HTTP/1.1\" 200 1")
                    ("User-Agent" . ,(format nil "a\\\" ~C 200" (code-char 133)))
                    ("Referer" . "\"\\")
                    ;; "a\nb] [\"c" in base 64
                    ("Authorization" . "Basic YQpiXSBbImM6aQ==")))))

(define-server-test (a-value-cannot-forge-another-one :needs :our-engine)
  (let ((lines (log-lines (hostile-access :combined))))
    (is (= 1 (length lines)))
    (is (string= (concatenate 'string
                              "127.0.0.1 (10.0.0.1\\x29 admin \\x5B2020-01-01 00:00:00\\x5D "
                              "\\x22GET /a HTTP/1.1\\x22 200 1) a\\x0Ab\\x5D \\x5B\\x22c [now] "
                              "\"GET /?a=\\x22%20200%20-\\x5C HTTP/1.1\" 200 4 "
                              ;; sent in UTF-8, read as Latin-1
                              "\"\\x22\\x5C\" \"a\\x5C\\x22 Â\\x85 200\"")
                 (cl-ppcre:regex-replace-all *time-of-log* (first lines) "[now]"))))
  (let ((lines (log-lines (hostile-access :json))))
    (is (= 1 (length lines)))
    (is (search "\\u0085" (first lines)))
    (is (string= (format nil "a~%b] [\"c") (cdr (assoc "user" (parse-json (first lines))
                                                       :test #'string=)))))
  (let ((lines (log-lines (hostile-access (lambda (facts)
                                            (format nil "~A~C~A" (getf facts :user) #\Tab
                                                    (getf facts :referer)))))))
    (is (equal (list (format nil "a\\x0Ab] [\"c~C\"\\" #\Tab)) lines))))

(define-server-test (credentials-that-make-no-sense-harm-nobody :needs :our-engine)
  (let ((log (logged (:access-log-destination) (("/" "body"))
               (is (string= "body"
                            (ask-text "/" :headers '(("Authorization" . "Basic \"!\""))))))))
    (is (search "127.0.0.1 - [" log))))

;;; When and where

(define-server-test (a-request-that-ends-after-the-stop-is-logged :needs :our-engine)
  (with-log-file (file)
    (with-busy-threads (acceptor 1 :max-thread-count 2)
      (setf (hunchentoot:acceptor-access-log-destination acceptor) file)
      (hunchentoot:stop acceptor :timeout 0)
      (is (null (lines-of file))))
    (eventually ("the line to be written") (= 1 (length (lines-of file))))))

(define-server-test (a-later-reply-that-a-stop-cuts-off-is-logged :needs :our-engine)
  (with-log-file (file)
    (serving (:access-log-destination file) (("/later" (recycling:defer-reply (reply) reply)))
      (with-connection (connection)
        (send-request connection "/later")
        (await-pending 1)
        (stop-front :soft t :timeout 1)))
    (eventually ("the line to be written") (search "503" (format nil "~{~A~}" (lines-of file))))))

(define-server-test (the-destination-can-be-changed-at-any-time :needs :our-engine)
  (with-log-file (file)
    (let ((other (merge-pathnames "other.log" file)))
      (serving (:access-log-destination (namestring file)) (("/" "body"))
        (ask "/")
        (setf (hunchentoot:acceptor-access-log-destination *server*) other)
        (is (= 1 (length (lines-of file))))
        (ask "/")
        (ask "/")
        (setf (hunchentoot:acceptor-access-log-destination *server*) nil)
        (is (= 2 (length (lines-of other))))
        (ask "/"))
      (is (= 1 (length (lines-of file))))
      (is (= 2 (length (lines-of other)))))))

;;; Which requests have lines

(define-server-test (a-line-is-there-when-the-reply-begins :needs :our-engine)
  (let ((stream (make-string-output-stream)) (log nil))
    (serving (:access-log-destination stream)
        (("/" (let ((client (hunchentoot:send-headers)))
                (setf log (taken-from-log stream))
                (write-parts client "part"))))
      (is (string= "part" (ask-text "/"))))
    (is (search "GET / HTTP/1.1\" 200 -" log))))

(defclass counting-accesses ()
  ((accesses :initform (make-recorder) :reader counted-accesses)))

(defmethod hunchentoot:acceptor-log-access :around ((acceptor counting-accesses)
                                                    &key return-code)
  (record (counted-accesses acceptor) return-code)
  (call-next-method))

(define-server-test (methods-around-log-access-work-in-every-format :needs :our-engine)
  (dolist (format '(:combined :json))
    (let* ((recorder nil)
           (log (logged (:access-log-destination :mixin 'counting-accesses
                         :access-log-format format)
                    (("/" "body"))
                  (ask "/")
                  (ask "/nowhere")
                  (setf recorder (counted-accesses *server*)))))
      (is (equal '(200 404) (recorded recorder)))
      (is (= 2 (length (log-lines log)))))))

;;; Other formats

(defmacro logged-json (&rest arguments)
  "The lines that LOGGED of ARGUMENTS yields, in JSON, as alists."
  (destructuring-bind ((&rest initargs) routes &rest body) arguments
    `(mapcar #'parse-json
             (log-lines (logged (:access-log-destination :access-log-format :json ,@initargs)
                            ,routes ,@body)))))

(define-server-test (json-tells-all-that-is-known :needs :our-engine)
  (destructuring-bind (object)
      (logged-json () (("/page" "Grüße"))
        (ask "/page?a=%22b%22" :version "HTTP/1.0"
                         :headers `(("User-Agent" . "Tester \"1\" \\")
                                    ("Referer" . "http://there/")
                                    ("X-Forwarded-For" . "10.0.0.1")
                                    ("Authorization" . "Basic bmFub29rOmlnbG9v")
                                    ("Traceparent" . ,*traceparent*))))
    (is (equal '("time" "remote_address" "forwarded_for" "user" "method" "uri" "protocol" "status"
                 "bytes" "duration_us" "referer" "user_agent" "request_id" "trace_id")
               (mapcar #'car object)))
    (is (cl-ppcre:scan "^[-0-9]{10}T[:0-9]{8}\\.[0-9]{3}Z$" (fact "time" object)))
    (loop for (name value) in '(("remote_address" "127.0.0.1") ("forwarded_for" "10.0.0.1")
                                ("user" "nanook") ("method" "GET") ("uri" "/page?a=%22b%22")
                                ("protocol" "HTTP/1.0") ("status" 200) ("bytes" 7)
                                ("referer" "http://there/") ("user_agent" "Tester \"1\" \\")
                                ("trace_id" "0af7651916cd43dd8448eb211c80319c"))
          do (is (equal value (fact name object)) "~A is ~S." name (fact name object)))
    (is (typep (fact "duration_us" object) '(integer 0)))))

(define-server-test (json-has-a-line-for-each-request-of-a-connection :needs :our-engine)
  (let ((objects (logged-json () (("/" "body") ("/fails" (error "It fails."))
                                  ("/streams" (write-parts (hunchentoot:send-headers) "part")))
                   (with-connection (connection)
                     (dolist (target '("/" "/fails" "/streams"))
                       (exchange connection target))
                     (exchange connection "/" :method :head)))))
    (is (equal '(200 500 200 200)
               (mapcar (lambda (object) (fact "status" object)) objects)))
    (is (equal '("/" "/fails" "/streams" "/")
               (mapcar (lambda (object) (fact "uri" object)) objects)))
    (is (eql 4 (fact "bytes" (first objects))))
    (is (null (fact "bytes" (third objects))))
    (is (eql 0 (fact "bytes" (fourth objects))))
    (is (null (fact "user" (first objects))))
    (is (null (assoc "trace_id" (first objects) :test #'string=)))))

(define-server-test (a-function-may-make-the-lines :needs :our-engine)
  (is (equal '("GET /one 200" "GET /two 404")
             (log-lines
              (logged (:access-log-destination
                       :access-log-format
                       (lambda (facts)
                         (unless (equal "/hidden" (getf facts :uri))
                           (format nil "~A ~A ~A" (getf facts :method) (getf facts :uri)
                                   (getf facts :status)))))
                  (("/one" "body") ("/hidden" "body"))
                (ask "/one")
                (ask "/hidden")
                (ask "/two"))))))

(define-server-test (a-refusal-is-logged-with-what-the-client-says-it-is :needs :our-http)
  (flet ((line (format &aux (gate (make-gate)))
           (first (log-lines (logged (:access-log-destination :access-log-format format
                                                              :handler-timeout 1/10)
                                 (("/" (await gate) "late"))
                               (with-connection (connection)
                                 (send-request connection "/"
                                               :headers `(("User-Agent" . "Tester")
                                                          ("Traceparent" . ,*traceparent*)))
                                 (is (= 503 (response-status (read-response connection)))))
                               (open-gate gate)
                               (eventually ("the handler to end") (zerop (figure :busy))))))))
    (is (search "\" 503 - \"-\" \"Tester\"" (line :combined)))
    (let ((object (parse-json (line :json))))
      (is (equal "Tester" (fact "user_agent" object)))
      (is (equal "0af7651916cd43dd8448eb211c80319c" (fact "trace_id" object))))))
