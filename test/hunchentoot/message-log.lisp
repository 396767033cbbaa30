(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite message-log :in acceptors
  :description "The message log of our acceptors: what clients cannot do to it, and what it cannot
do to them.")

(in-suite message-log)

(defmacro with-message-text ((log &rest initargs) (&rest routes) &body body)
  "Evaluates BODY while an acceptor that serves ROUTES has its messages in LOG, a string stream;
returns its text."
  `(let ((,log (make-string-output-stream)))
     (serving (:message-log-destination ,log ,@initargs) ,routes ,@body)
     (get-output-stream-string ,log)))

(defun count-messages (text)
  "How many messages TEXT has; their further lines begin with spaces."
  (count-if (lambda (line) (uiop:string-prefix-p "[" line)) (log-lines text)))

;;; Forging

(define-server-test (a-cookie-cannot-forge-messages :needs :our-engine)
  (let ((text (with-message-text (log) (("/" (hunchentoot:start-session) "body"))
                (ask "/" :headers
                     `(("Cookie" . ,(concatenate 'string "hunchentoot-session=1:x%0A"
                                                 "[2020-01-01 00:00:00 [ERROR]] forged"))
                       ("User-Agent" . ,(format nil "a', IP: '10.0.0.1~C" (code-char 155))))))))
    (is (= 1 (length (log-lines text))))
    (is (search "'1:x\\x0A[2020" text))
    (is (search "a\\x27, IP: \\x2710.0.0.1Â\\x9B'" text))))

(define-server-test (an-error-cannot-forge-messages :needs :our-engine)
  (let ((text (with-message-text (log) (("/" (error "No ~A." (hunchentoot:get-parameter "a"))))
                (ask "/?a=b%0D%0A[2020-01-01%2000:00:00%20[ERROR]]%20forged%C2%9B"))))
    (is (search (format nil
                        "[ERROR]] No b\\x0D~%  [2020-01-01 00:00:00 [ERROR]] forged\\x9B. [GET ")
                text))
    (is (= 1 (count-messages text)))))

(define-server-test (messages-of-programs-are-all-written :needs :our-engine)
  (let ((text (with-message-text (log)
                  (("/" (dotimes (i 100)
                          (hunchentoot:log-message* :info "~A~%more of ~D" "\"quoted\" [a\\b]" i))
                        "body"))
                (ask "/"))))
    (is (= 200 (length (log-lines text))))
    (is (search (format nil "[INFO]] \"quoted\" [a\\b]~%  more of 99~%") text))))

(define-condition without-report (error)
  ()
  (:report (lambda (condition stream)
             (declare (ignore condition stream))
             (error "It cannot be printed."))))

(define-server-test (a-message-that-cannot-be-made-is-told-all-the-same :needs :our-engine)
  (let ((text (with-message-text (log)
                  (("/" (hunchentoot:log-message* :info "~D and ~?" 1)
                        (hunchentoot:log-message* nil "~A" (make-condition 'without-report))
                        "body"))
                (is (string= "body" (ask-text "/"))))))
    (is (search "[INFO]] A message could not be made of \"~D and ~?\"." text))
    (is (search "] WITHOUT-REPORT" text))))

(define-server-test (an-error-whose-report-fails-is-answered-and-told :needs :our-engine)
  (dolist (format '(:text :json))
    (with-globals ((hunchentoot:*show-lisp-errors-p* t))
      (let ((text (with-message-text (log :message-log-format format)
                      (("/fails" (error 'without-report)))
                    (let ((response (ask "/fails")))
                      (is (= 500 (response-status response)))
                      (is (search "WITHOUT-REPORT" (response-text response)))))))
        (is (search "WITHOUT-REPORT" text))))))

(define-condition endless-report (error)
  ()
  (:report (lambda (condition stream)
             (declare (ignore condition))
             (loop (format stream "It goes on. ")))))

(define-server-test (an-error-whose-report-never-ends-is-answered-and-told :needs :our-engine)
  (let* ((octets (make-array 10000000 :element-type '(unsigned-byte 8) :initial-element 255))
         (text (with-message-text (log)
                   (("/endless" (error 'endless-report))
                    ("/circular" (error "This is ~A." (circular 1 2)))
                    ("/large" (error 'type-error :datum octets :expected-type 'string)))
                 (dolist (target '("/endless" "/circular" "/large"))
                   (is (= 500 (response-status (ask target))))))))
    (is (search "It goes on. It goes on." text))
    (is (search "This is (1 2 1 2 1" text))
    (is (search "255 255" text))
    (is (= 3 (count-messages text)))
    (is (< (length text) 40000))))

(define-server-test (a-message-of-anything-is-written-as-with-hunchentoot :needs :our-engine)
  (dolist (format '(:text :json))
    (let ((text (with-message-text (log :message-log-format format)
                    (("/" (hunchentoot:log-message* 7 (formatter "Of a ~A.") "function")
                          (hunchentoot:log-message* "mine" "~A" "At a level of its own.")
                          (hunchentoot:log-message* :error (make-condition 'simple-error))
                          "body"))
                  (is (string= "body" (ask-text "/"))))))
      (is (search "Of a function." text))
      (is (search "At a level of its own." text))
      (is (search "A message could not be made of " text))
      (is (= 3 (length (log-lines text)))))))

;;; Flooding

(define-server-test (no-client-floods-the-log :needs :our-engine)
  (hunchentoot:reset-session-secret)    ; that there is none would be told, too
  (with-globals ((server::*message-burst* 3) (server::*warning-milliseconds* 1000000))
    (let ((text (with-message-text (log) (("/" (hunchentoot:start-session) "body")
                                      ("/fails" (error "No.")))
                  (with-connection (connection)
                    (dotimes (i 50)
                      (exchange connection "/"
                                :headers '(("Cookie" . "hunchentoot-session=999999999:x")))
                      (exchange connection "/fails"))))))
      (is (= 6 (count-messages text)) "~A" text))))

(defun complained-of-octets (type &rest content)
  "The octets of a request with TYPE, a Content-Type, and CONTENT, as for OCTETS; of one by GET
where there is none."
  (let ((content (and content (apply #'octets content))))
    (octets (if content "POST" "GET") " /x HTTP/1.1" :crlf "Host: localhost" :crlf
            "Content-Type: " type :crlf
            (format nil "Content-Length: ~D" (length content)) :crlf :crlf (or content ""))))

(defparameter *complained-of*
  (let ((long (make-string 30000 :initial-element #\x)))
    (list (complained-of-octets "text/plain;charset=x")
          (complained-of-octets "text/plain;charset=x" "a")
          (complained-of-octets (octets "text/plain;charset=x" (as-octets (list #xC2 #x9B)) "31m"))
          (complained-of-octets (format nil "text/plain;charset=~A" long) "")
          (complained-of-octets (format nil "a/b;charset=~A" long) "")
          (complained-of-octets "multipart/form-data;boundary=\"\"" "")
          (complained-of-octets "multipart/form-data;boundary=b"
                                "--b" :crlf "Content-Disposition: form-data; name=a" :crlf :crlf
                                "a" :crlf "--b--" :crlf "stray")))
  "Requests of which Hunchentoot warns.")

(define-server-test (what-clients-send-is-complained-of-in-the-log-alone :needs :our-content)
  (let ((errors (make-string-output-stream)))
    (with-globals ((*error-output* errors) (server::*message-burst* 3)
                   (server::*warning-milliseconds* 1000000))
      (let ((text (with-message-text (log :max-header-octets 65536)
                      (("/x" (hunchentoot:post-parameters*) (hunchentoot:raw-post-data) "body"))
                    (loop repeat 5
                          do (dolist (octets *complained-of*)
                               (with-connection (connection)
                                 (send connection octets)
                                 (is (= 200 (response-status (read-response connection))))))))))
        (is (search "Invalid character set 'x'" text))
        (is (search "5 octets of stray data" text))
        (is (not (find (code-char #x9B) text)))
        (is (< (length text) 5000))))
    (is (equal "" (get-output-stream-string errors)))))

(test how-many-messages-there-were-is-told-with-the-next-one
  (let* ((log (make-string-output-stream))
         (acceptor (make-test-acceptor :message-log-destination log))
         (hunchentoot:*acceptor* acceptor))
    (when (ours-p)
      (with-globals ((server::*message-burst* 1))
        (flet ((tell ()
                 (hunchentoot:log-message* :warning "Fake session identifier '~A'" "x")))
          (tell)
          (tell)
          (tell)
          (setf (server:log-throttle-silent-until
                 (server::throttle-entry (recycling::acceptor-throttle acceptor)
                                         (list "Fake session identifier '~A'")))
                nil)                    ; time passes
          (tell)))
      (is (search "[WARNING]] 3 since the last message; the last one: Fake"
                  (second (log-lines (get-output-stream-string log))))))))

(define-server-test (the-report-of-what-a-client-caused-is-short-and-on-one-line
                     :needs :our-engine)
  (let ((text (with-message-text (log) ()
                (hunchentoot:acceptor-log-message
                 *server* :error "Error while processing connection: ~A"
                 (make-condition 'simple-error
                                 :format-control "first~%second ~A"
                                 :format-arguments (list (make-string 1000
                                                                      :initial-element #\x)))))))
    (is (= 1 (length (log-lines text))))
    (is (search "first second xxx" text))
    (is (< 500 (length text) 700))))

;;; Clients that leave

(defparameter *uploads-cut-short*
  `(("/raw" "Content-Length: 3000000" "abc")
    ("/raw" "Transfer-Encoding: chunked" ,(format nil "5~C~%abc" #\Return))
    ("/stream" "Content-Length: 3000000" "abc")
    ("/post" "Content-Type: application/x-www-form-urlencoded" "Content-Length: 1000" "a=b")
    ("/post" "Content-Type: multipart/form-data; boundary=b" "Content-Length: 1000" "--b"))
  "Requests whose client leaves amid their content: a target, lines of the head, and the content.")

(defun leave-amid (target &rest lines)
  "Sends the beginning of a request for TARGET with LINES, the last of which is content, and
leaves."
  (with-connection (connection)
    (send connection (format nil "~{~A~C~%~}~A"
                             (loop for line in `(,(format nil "POST ~A HTTP/1.1" target) "Host: l"
                                                 ,@(butlast lines) "")
                                   collect line
                                   collect #\Return)
                             (first (last lines))))))

(define-server-test (a-client-that-leaves-amid-its-content-is-no-error :needs :our-http)
  (dolist (octets '(1000000 0))
    (let* ((count 0)
           (acceptor nil)
           (text (with-message-text (log :max-early-octets octets)
                     (("/raw" (hunchentoot:raw-post-data :force-binary t) "body")
                      ("/stream" (loop with stream = (hunchentoot:raw-post-data :want-stream t)
                                       while (read-byte stream))
                                 "body")
                      ("/post" (hunchentoot:post-parameter "a") "body"))
                   (setf acceptor *server*)
                   (dolist (upload *uploads-cut-short*)
                     (apply #'leave-amid upload)
                     (incf count))
                   (eventually ("all to be gone")
                     (and (= count (getf (recycling:stats acceptor) :accepted))
                          (zerop (getf (recycling:stats acceptor) :open)))))))
      (is (>= 1 (count-messages text)))
      (is (not (search "[ERROR]" text))))))

;;; Destinations that fail or stall

(defclass broken-stream (stalled-stream)
  ()
  (:documentation "A stream that takes nothing, and says so."))

(defmethod trivial-gray-streams:stream-write-string
    ((stream broken-stream) string &optional start end)
  (declare (ignore string start end))
  (error "The stream is broken."))

(defun ask-for-failures (count)
  "Has a handler fail COUNT times; true if the client got an answer each time."
  (with-connection (connection)
    (loop repeat count
          always (= 500 (response-status (exchange connection "/fails"))))))

(define-server-test (a-message-log-that-cannot-be-written-costs-no-reply :needs :our-engine)
  (with-directory (directory)
    (let ((gone (merge-pathnames "gone/messages" directory)))
      (dolist (destination (list gone (namestring gone) "/dev/full" directory
                                 (make-instance 'broken-stream)))
        (serving (:message-log-destination destination) (("/fails" (error "No.")))
          (is (ask-for-failures 3))
          (hunchentoot:stop *server*)
          (start-elsewhere *server*)
          (is (ask-for-failures 3)))))))

(define-server-test (what-the-message-log-does-not-take-is-counted :needs :our-engine)
  (let ((acceptor nil))
    (serving (:message-log-destination (make-instance 'broken-stream)) (("/fails" (error "No.")))
      (setf acceptor *server*)
      (ask "/fails"))
    (is (plusp (getf (recycling:stats acceptor) :log-dropped)))))

(define-server-test (a-log-that-nobody-reads-holds-up-nobody :needs :our-engine)
  (dolist (log '(:access-log-destination :message-log-destination))
    (let ((stream (make-instance 'stalled-stream)))
      (unwind-protect
           (with-routes (("/fails" (error "No.")))
             (with-acceptor (acceptor log stream)
               (is (ask-for-failures 40))
               (open-gate (stream-gate stream))))
        (open-gate (stream-gate stream)))
      (is (plusp (recorded-count (written-text stream)))))))

(define-server-test (both-logs-of-one-stream-have-one-writer :needs :our-engine)
  (let ((stream (make-instance 'stalled-stream)))
    (open-gate (stream-gate stream))
    (serving (:access-log-destination stream :message-log-destination stream)
        (("/fails" (error "No.")))
      (is (= 1 (log-threads)))
      (ask "/fails")
      (eventually ("the message") (plusp (recorded-count (written-text stream))))
      (setf (hunchentoot:acceptor-access-log-destination *server*) nil)
      (is (= 1 (log-threads)))
      (setf (hunchentoot:acceptor-message-log-destination *server*) nil)
      (is (zerop (log-threads))))
    (let ((text (apply #'concatenate 'string (recorded (written-text stream)))))
      (is (search "GET /fails" text))
      (is (search "No." text)))))

(define-server-test (a-message-is-written-before-long :needs :our-engine)
  (with-log-file (file)
    (with-globals ((server::*flush-seconds* *no-flush-seconds*))
      (serving (:message-log-destination file) (("/" (hunchentoot:log-message* :info "A.") "body"))
        (ask "/")
        (eventually ("the message") (lines-of file))))))

(define-server-test (an-access-log-in-no-folder-is-told-at-the-start :needs :our-engine)
  (with-directory (directory)
    (flet ((told (name)
             (with-message-text (log :access-log-destination
                                     (namestring (merge-pathnames name directory)))
                 (("/" "body")))))
      (is (search "[ERROR]] The folder of the access log, " (told "gone/access.log")))
      (is (equal "" (told "access.log"))))))

;;; Methods of programs

(defclass telling-messages ()
  ((messages :initform (make-recorder) :reader told-messages)))

(defmethod hunchentoot:acceptor-log-message ((acceptor telling-messages) level control
                                             &rest arguments)
  (record (told-messages acceptor) (apply #'format nil control arguments))
  (call-next-method))

(define-server-test (methods-of-programs-get-each-message :needs :our-engine)
  (with-globals ((server::*message-burst* 3))
    (let* ((recorder nil)
           (text (with-message-text (log :mixin 'telling-messages)
                     (("/fails" (error "No.")))
                   (setf recorder (told-messages *server*))
                   (is (ask-for-failures 5)))))
      (is (= 5 (recorded-count recorder)))
      (is (= 3 (count-messages text))))))
