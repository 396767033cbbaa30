(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite access-log :in acceptors
  :description "The access log of our acceptors: its lines, and who gets them when.")

(in-suite access-log)

;;; The same lines as Hunchentoot's

(defun say-several-things ()
  "Makes requests of all kinds of *SERVER*."
  (with-connection (connection)
    (loop for (target . keys) in
          `(("/page")
            ("/page?a=b&c=%20d")
            ("/page?")
            ("/page" :method :head)
            ("/nowhere/Gr%C3%BC%C3%9Fe")
            ("/fails")
            ("/moves")
            ("/empty")
            ("/streams")
            ("/page" :method :post :form (("a" . "b")))
            ("/page" :headers (("User-Agent" . "Tester/1.0 (of [all])")
                               ("Referer" . "http://there/?q=1")))
            ("/page" :headers (("X-Forwarded-For" . "10.0.0.1, 10.0.0.2")))
            ("/page" :headers (("Authorization" . "Basic bmFub29rOmlnbG9v")))
            ("/page" :headers (("Authorization" . "Bearer token")))
            ("/page" :version "HTTP/1.0" :headers (("Connection" . "keep-alive"))))
          do (apply #'exchange connection target keys)))
  (ask "/last" :version "HTTP/1.0"))

(defun several-lines (acceptor-class)
  "The access log of SAY-SEVERAL-THINGS to an acceptor of ACCEPTOR-CLASS, its times masked."
  (let ((*acceptor-class* acceptor-class)
        (stream (make-string-output-stream)))
    (serving (:access-log-destination stream)
        (("/page" "Grüße") ("/empty" "") ("/fails" (error "It fails."))
         ("/moves" (hunchentoot:redirect "/page"))
         ("/streams" (write-part (hunchentoot:send-headers) "part")))
      (say-several-things))
    (log-lines (cl-ppcre:regex-replace-all *time-of-log* (get-output-stream-string stream)
                                           "[now]"))))

(define-server-test (lines-are-those-of-hunchentoot :needs :our-engine)
  (let ((stock (several-lines 'hunchentoot:easy-acceptor))
        (ours (several-lines *acceptor-class*)))
    (is (= 16 (length stock)))
    (loop for expected in stock
          for line in ours
          do (is (string= expected line)))
    (is (= (length stock) (length ours)))))

(test the-time-is-told-as-hunchentoot-tells-it
  (loop repeat 20
        for time = (random (get-universal-time))
        do (is (string= (hunchentoot::iso-time time) (server::local-time-text time)))))

(test the-time-of-facts-is-that-of-rfc-3339-in-utc
  (is (string= "1997-08-09T06:05:04Z"
               (server::utc-time-text (encode-universal-time 4 5 6 9 8 1997 0)))))

(define-server-test (a-request-cannot-forge-lines :needs :our-engine)
  (let ((lines (log-lines (logged (:access-log-destination) (("/" "body"))
                            (ask "/a%0D%0A127.0.0.1%20-%20forged")))))
    (is (= 1 (length lines)))
    (is (search "GET /a\\x0D\\x0A127.0.0.1 - forged HTTP/1.1" (first lines)))))

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

(define-server-test (no-line-is-lost-by-a-stop-among-many-requests :needs :our-engine)
  (with-log-file (file)
    (let ((answered 0))
      (serving (:access-log-destination file) (("/" "body"))
        (setf answered
              (reduce #'+ (mapcar #'task-result
                                  (loop repeat 4
                                        collect (as-client ("a client")
                                                  (with-connection (connection)
                                                    (loop repeat 50
                                                          do (exchange connection "/")
                                                          count t)))))))
        (hunchentoot:stop *server* :soft t))
      (is (= 200 answered (length (lines-of file)))))))

(define-server-test (a-request-that-ends-after-the-stop-is-logged :needs :our-engine)
  (with-log-file (file)
    (with-busy-threads (acceptor 1 :max-thread-count 2)
      (setf (hunchentoot:acceptor-access-log-destination acceptor) file)
      (hunchentoot:stop acceptor :timeout 0)
      (is (null (lines-of file))))
    (eventually ("the line to be written") (= 1 (length (lines-of file))))))

(define-server-test (lines-are-there-before-long :needs :our-engine)
  (with-log-file (file)
    (serving (:access-log-destination file) (("/" "body"))
      (ask "/")
      (eventually ("the line to be written") (= 1 (length (lines-of file)))))))

(define-server-test (lines-for-a-stream-keep-their-order :needs :our-engine)
  (let ((stream (make-string-output-stream)))
    (serving (:access-log-destination stream)
        (("/" (format stream "begins ~A~%" (hunchentoot:get-parameter "n"))
              "body"))
      (is (zerop (log-threads)))
      (with-connection (connection)
        (loop for number below 5
              do (exchange connection (format nil "/?n=~D" number))))
      (let ((lines (log-lines (get-output-stream-string stream))))
        (is (= 10 (length lines)))
        (loop for (begin access) on lines by #'cddr
              for number from 0
              do (is (string= (format nil "begins ~D" number) begin))
                 (is (search (format nil "GET /?n=~D " number) access)))))))

(define-server-test (reopened-logs-are-new-files :needs :our-engine)
  (with-log-file (file)
    (let ((old (merge-pathnames "old.log" file)))
      (serving (:access-log-destination file) (("/" "body") ("/new" "body"))
        (ask "/")
        (eventually ("the line to be written") (lines-of file))
        (rename-file file old)
        (is (eq *server* (recycling:reopen-logs *server*)))
        (ask "/new"))
      (is (= 1 (length (lines-of old))))
      (is (= 1 (length (lines-of file))))
      (is (search "GET /new " (first (lines-of file)))))))

(define-server-test (reopening-writes-what-has-gathered :needs :our-engine)
  (with-log-file (file)
    (with-globals ((server::*flush-seconds* *patience*))
      (serving (:access-log-destination file) (("/" "body"))
        (ask "/")
        (recycling:reopen-logs *server*)
        (is (= 1 (length (lines-of file))))))))

(defun log-threads ()
  (count-if (lambda (thread) (uiop:string-prefix-p "log of " (bt:thread-name thread)))
            (bt:all-threads)))

(define-server-test (without-a-destination-there-is-no-thread :needs :our-engine)
  (with-log-file (file)
    (serving () (("/" "body"))
      (ask "/")
      (is (zerop (log-threads)))
      (setf (hunchentoot:acceptor-access-log-destination *server*) file)
      (is (= 1 (log-threads)))
      (ask "/")
      (setf (hunchentoot:acceptor-access-log-destination *server*) nil)
      (is (zerop (log-threads)))
      (is (= 1 (length (lines-of file))))
      (ask "/"))
    (is (= 1 (length (lines-of file))))))

(define-server-test (the-destination-can-be-changed-at-any-time :needs :our-engine)
  (with-log-file (file)
    (let ((other (merge-pathnames "other.log" file)))
      (serving (:access-log-destination (namestring file)) (("/" "body"))
        (ask "/")
        (setf (hunchentoot:acceptor-access-log-destination *server*) other)
        (is (= 1 (length (lines-of file))))
        (ask "/")
        (ask "/")
        (is (= 1 (log-threads))))
      (is (= 1 (length (lines-of file))))
      (is (= 2 (length (lines-of other)))))))

(define-server-test (a-log-that-cannot-be-written-harms-no-request :needs :our-engine)
  (with-directory (directory)
    (let ((messages (make-string-output-stream)))
      (serving (:access-log-destination (merge-pathnames "gone/access.log" directory)
                :message-log-destination messages)
          (("/" "body"))
        (loop repeat 3
              do (is (string= "body" (ask-text "/")))
                 (recycling:reopen-logs *server*)))
      (is (= 1 (count-if (lambda (line) (search "cannot be written" line))
                         (log-lines (get-output-stream-string messages))))))))

(define-server-test (lost-lines-are-in-the-figures :needs :our-engine)
  (serving (:access-log-format (lambda (facts) (error "No line for ~A." (getf facts :uri)))
            :access-log-destination (make-string-output-stream))
      (("/" "body"))
    (is (zerop (getf (recycling:stats *server*) :log-dropped)))
    (is (string= "body" (ask-text "/")))
    (eventually ("the line to be missed")
      (= 1 (getf (recycling:stats *server*) :log-dropped)))))

(define-server-test (lines-that-former-destinations-lost-stay-in-the-figures :needs :our-engine)
  (with-log-file (file)
    (let ((lines (list nil "a line" "a line")))
      (serving (:access-log-format (lambda (facts)
                                     (declare (ignore facts))
                                     (or (pop lines) (error "No line.")))
                :access-log-destination (merge-pathnames "gone/access.log" file)
                :message-log-destination (make-broadcast-stream))
          (("/" "body"))
        (flet ((dropped () (getf (recycling:stats *server*) :log-dropped)))
          (ask "/")
          (eventually ("the first line to be missed") (= 1 (dropped)))
          (ask "/")
          (ask "/")
          (eventually ("the others to be there")
            (= 2 (server::journal-kept (recycling::acceptor-journal *server*))))
          (setf (hunchentoot:acceptor-access-log-destination *server*) file)
          (is (= 3 (dropped)))
          (setf (hunchentoot:acceptor-access-log-destination *server*)
                (merge-pathnames "other.log" file))
          (is (= 3 (dropped)))
          (is (null (lines-of file))))))))

(define-server-test (lines-of-a-log-that-cannot-be-written-at-the-stop-are-counted
                     :needs :our-engine)
  (with-log-file (file)
    (let* ((hidden (merge-pathnames "later/lines.log" file))
           (acceptor (make-test-acceptor :access-log-destination hidden))
           (*server* acceptor))
      (with-routes (("/yo" "Hey!"))
        (hunchentoot:start acceptor)
        (loop repeat 3 do (ask-text "/yo"))
        (hunchentoot:stop acceptor :soft t)
        (is (= 3 (getf (recycling:stats acceptor) :log-dropped)))
        (ensure-directories-exist hidden)
        (hunchentoot:start acceptor)
        (eventually ("the lines to be written, although there is no other")
          (and (probe-file hidden) (= 3 (length (lines-of hidden)))))
        (hunchentoot:stop acceptor :soft t)
        (is (= 3 (length (lines-of hidden))) "They are written after all.")
        (is (zerop (getf (recycling:stats acceptor) :log-dropped)))))))

(define-server-test (lines-of-a-log-that-is-given-up-are-counted :needs :our-engine)
  (with-log-file (file)
    (let ((hidden (merge-pathnames "later/lines.log" file)))
      (serving (:access-log-destination hidden) (("/yo" "Hey!"))
        (loop repeat 3 do (ask-text "/yo"))
        (setf (hunchentoot:acceptor-access-log-destination *server*) file)
        (is (= 3 (getf (recycling:stats *server*) :log-dropped)))))))

;;; A destination that takes its time

(defmacro with-log-held-up ((gate file messages) &body body)
  "Evaluates BODY while a server writes its access log to FILE and its messages to MESSAGES, a
string stream, after a request whose line is written when GATE is opened."
  (let ((entered (gensym "ENTERED")))
    `(with-log-file (,file)
       (let ((,gate (make-gate)) (,entered (make-gate "the line to be written"))
             (,messages (make-string-output-stream)))
         (with-function (server::write-lines (original journal stream)
                          (when (eq ,file (server:journal-destination journal))
                            (open-gate ,entered)
                            (await ,gate))
                          (funcall original journal stream))
           (serving (:access-log-destination ,file :message-log-destination ,messages)
               (("/" "body"))
             (unwind-protect (progn
                               (ask "/")
                               (await ,entered)
                               ,@body)
               (open-gate ,gate))))))))

(define-server-test (a-stop-waits-for-the-last-lines :needs (:our-engine :calls-by-name))
  (with-log-held-up (gate file messages)
    (let ((stop (in-background ("stop") (hunchentoot:stop *server*))))
      (is (not (poll (lambda () (task-done-p stop)) 1/10)))
      (open-gate gate)
      (task-result stop)
      (is (= 1 (length (lines-of file))))
      (is (not (search "last lines" (get-output-stream-string messages)))))))

(define-server-test (a-stop-that-leaves-lines-to-their-thread-tells-so
                     :needs (:our-engine :calls-by-name))
  (with-globals ((server::*log-patience* 1/100))
    (with-log-held-up (gate file messages)
      (hunchentoot:stop *server*)
      (is (search "still takes the last lines" (get-output-stream-string messages)))
      (is (null (lines-of file)))
      (open-gate gate)
      (eventually ("the line to be written") (= 1 (length (lines-of file)))))))

(define-server-test (a-request-that-takes-the-destination-away-has-no-line :needs :our-engine)
  (dolist (format '(:combined :json))
    (let ((stream (make-string-output-stream)) (acceptor nil))
      (serving (:access-log-destination stream :access-log-format format)
          (("/" (setf (hunchentoot:acceptor-access-log-destination hunchentoot:*acceptor*) nil)
                "body"))
        (setf acceptor *server*)
        (is (string= "body" (ask-text "/"))))
      (is (string= "" (get-output-stream-string stream)))
      (is (zerop (getf (recycling:stats acceptor) :log-dropped))))))

(define-server-test (a-destination-that-is-taken-away-amid-a-reply-gets-no-line-at-its-end
                     :needs :our-engine)
  (let ((stream (make-string-output-stream)) (acceptor nil))
    (serving (:access-log-destination stream :access-log-format :json)
        (("/" (let ((client (hunchentoot:send-headers)))
                (setf (hunchentoot:acceptor-access-log-destination hunchentoot:*acceptor*) nil)
                (write-part client "part"))))
      (setf acceptor *server*)
      (is (string= "part" (ask-text "/"))))
    (is (string= "" (get-output-stream-string stream)))
    (is (zerop (getf (recycling:stats acceptor) :log-dropped)))))

(define-server-test (a-combined-line-is-there-when-the-reply-begins :needs :our-engine)
  (let ((stream (make-string-output-stream)) (log nil))
    (serving (:access-log-destination stream)
        (("/" (let ((client (hunchentoot:send-headers)))
                (setf log (get-output-stream-string stream))
                (write-part client "part"))))
      (is (string= "part" (ask-text "/"))))
    (is (search "GET / HTTP/1.1\" 200 -" log))))

(define-server-test (a-connection-without-a-further-request-has-no-further-line :needs :our-engine)
  (dolist (mixin '(nil called-once))
    (let ((stream (make-string-output-stream)) (acceptor nil))
      (serving (:access-log-destination stream :access-log-format :json :mixin mixin)
          (("/" "body"))
        (setf acceptor *server*)
        (with-connection (connection)
          (is (string= "body" (exchange-text connection "/")))))
      (is (= 1 (length (log-lines (get-output-stream-string stream)))))
      (is (zerop (getf (recycling:stats acceptor) :log-dropped))))))

(define-server-test (a-stock-acceptor-on-our-threads-writes-its-own-log :needs :our-engine)
  (let* ((*acceptor-class* 'hunchentoot:easy-acceptor)
         (log (logged (:access-log-destination :taskmaster (taskmaster)) (("/" "body"))
                (is (string= "body" (ask-text "/")))
                (is (null (getf (recycling:stats *server*) :log-dropped)) "Nobody counts."))))
    (is (= 1 (length (log-lines log))))))

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

(defun fact (name object)
  (cdr (assoc name object :test #'string=)))

(define-server-test (json-tells-all-that-is-known :needs :our-engine)
  (destructuring-bind (object)
      (logged-json () (("/page" "Grüße"))
        (ask "/page?a=%22b%22" :version "HTTP/1.0"
                         :headers '(("User-Agent" . "Tester \"1\" \\")
                                    ("Referer" . "http://there/")
                                    ("X-Forwarded-For" . "10.0.0.1")
                                    ("Authorization" . "Basic bmFub29rOmlnbG9v"))))
    (is (equal '("time" "remote_address" "forwarded_for" "user" "method" "uri" "protocol" "status"
                 "bytes" "duration_us" "referer" "user_agent" "request_id")
               (mapcar #'car object)))
    (is (cl-ppcre:scan "^[-0-9]{10}T[:0-9]{8}\\.[0-9]{3}Z$" (fact "time" object)))
    (loop for (name value) in '(("remote_address" "127.0.0.1") ("forwarded_for" "10.0.0.1")
                                ("user" "nanook") ("method" "GET") ("uri" "/page?a=%22b%22")
                                ("protocol" "HTTP/1.0") ("status" 200) ("bytes" 7)
                                ("referer" "http://there/") ("user_agent" "Tester \"1\" \\"))
          do (is (equal value (fact name object)) "~A is ~S." name (fact name object)))
    (is (typep (fact "duration_us" object) '(integer 0)))))

(define-server-test (json-has-a-line-for-each-request-of-a-connection :needs :our-engine)
  (let ((objects (logged-json () (("/" "body") ("/fails" (error "It fails."))
                                  ("/streams" (write-part (hunchentoot:send-headers) "part")))
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
    (is (null (fact "user" (first objects))))))

(define-server-test (durations-last-until-the-reply-is-sent :needs :our-engine)
  (let ((gate (make-gate)) (entered (make-latch 1)) (start (platform:microseconds)))
    (destructuring-bind (object)
        (logged-json () (("/" (let ((stream (hunchentoot:send-headers)))
                                (count-down entered)
                                (await gate)
                                (write-part stream "part"))))
          (let ((client (as-client ("a client") (ask "/"))))
            (await entered)
            (poll (constantly nil) 1/20)
            (open-gate gate)
            (task-result client)))
      (is (<= 50000 (fact "duration_us" object) (- (platform:microseconds) start))))))

(define-server-test (a-function-may-make-the-lines :needs :our-engine)
  ;; Such a line is made after the reply was sent, so two clients' lines come in any order.
  (is (equal '("GET /one 200" "GET /two 404")
             (sort (log-lines
                    (logged (:access-log-destination
                             :access-log-format
                             (lambda (facts)
                               (unless (equal "/hidden" (getf facts :uri))
                                 (format nil "~A ~A ~A" (getf facts :method) (getf facts :uri)
                                         (getf facts :status)))))
                        (("/one" "body") ("/hidden" "body"))
                      (ask "/one")
                      (ask "/hidden")
                      (ask "/two")))
                   #'string<))))

(define-server-test (our-log-works-on-hunchentoots-taskmaster :needs :our-engine)
  (with-log-file (file)
    (serving (:taskmaster (make-instance 'hunchentoot:one-thread-per-connection-taskmaster)
              :access-log-destination file :access-log-format :json)
        (("/" "body"))
      (ask "/"))
    (eventually ("the line to be written") (= 1 (length (lines-of file))))
    (is (equal 200 (fact "status" (parse-json (first (lines-of file))))))))

;;; Requests that are to have no line

(define-server-test (a-test-leaves-requests-out-of-the-access-log :needs :our-engine)
  (dolist (format (list :combined :json (lambda (facts) (getf facts :uri))))
    (let ((lines (log-lines (logged (:access-log-destination
                                     :access-log-format format
                                     :access-log-test (lambda (facts)
                                                        (not (equal "/health" (getf facts :uri)))))
                                (("/health" "well") ("/page" "body"))
                              (with-connection (connection)
                                (dolist (target '("/health" "/page" "/health" "/nowhere"))
                                  (exchange connection target)))))))
      (is (= 2 (length lines)))
      (is (search "/page" (first lines)))
      (is (search "/nowhere" (second lines))))))

(test milliseconds-are-those-of-the-current-second
  (let ((before (get-universal-time))
        (now (floor (platform:universal-milliseconds) 1000))
        (after (get-universal-time)))
    (is (<= before now after))))

(define-server-test (a-refusal-is-logged-with-what-the-client-says-it-is :needs :our-http)
  (flet ((line (format &aux (gate (make-gate)))
           (first (log-lines (logged (:access-log-destination :access-log-format format
                                                              :handler-timeout 1/10)
                                 (("/" (await gate) "late"))
                               (with-connection (connection)
                                 (send-request connection "/"
                                               :headers '(("User-Agent" . "Tester")))
                                 (is (= 503 (response-status (read-response connection)))))
                               (open-gate gate)
                               (eventually ("the handler to end") (zerop (figure :busy))))))))
    (is (search "\" 503 - \"-\" \"Tester\"" (line :combined)))
    (is (equal "Tester" (fact "user_agent" (parse-json (line :json)))))))
